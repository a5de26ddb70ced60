package broker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// How many definitions an asker gets: a small model handles about five tools, and fewer are better.
const (
	usualTools = 4
	mostTools  = 8
)

// onDiscover shows an agent the tools that fit its task and that it may use. Nobody sees the whole set.
func (b *Broker) onDiscover(ctx context.Context, in actor.Msg[subjects.DiscoverRequest], out actor.Out) (subjects.DiscoverReply, error) {
	caller := subjects.Caller{Account: in.From}
	typ, known := b.manifest.TypeOf(caller)
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: caller.ID(), AgentType: typ, Action: "broker.discover", ParamsHash: b.hash.Hash([]byte(in.Body.Task)), Session: in.Session, Query: in.Query}
	if !known {
		if err := b.store(ctx, rec, subjects.AuditBefore, subjects.StatusDenied, "manifest: no type"); err != nil {
			return subjects.DiscoverReply{}, noAudit(err)
		}
		return subjects.DiscoverReply{}, subjects.Faultf(subjects.CodeDenied, "%s has no type in the manifest, so it has no tools", in.From)
	}
	if err := b.store(ctx, rec, subjects.AuditBefore, subjects.StatusShown, ""); err != nil {
		return subjects.DiscoverReply{}, noAudit(err)
	}
	select { // those that were here before the broker
	case <-b.table.looked:
	case <-ctx.Done():
	}
	var may []subjects.ToolSchema
	for _, k := range b.table.all() {
		if b.manifest.May(typ, k.Name) {
			may = append(may, k.schema)
		}
	}
	most := in.Body.Max
	if most <= 0 {
		most = usualTools
	}
	return subjects.DiscoverReply{Tools: rank(in.Body.Task, may, min(most, mostTools))}, nil
}

// rank picks the tools whose words are most like the task's. Where all fit, all are given, in the order of their names,
// so that a prompt does not change from question to question.
func rank(task string, tools []subjects.ToolSchema, most int) []subjects.ToolSchema {
	if len(tools) <= most {
		return tools
	}
	asked := words(task)
	score := func(s subjects.ToolSchema) (n int) {
		for w := range words(s.Name + " " + s.Description) {
			if asked[w] {
				n++
			}
		}
		return n
	}
	picked := slices.Clone(tools)
	slices.SortStableFunc(picked, func(a, b subjects.ToolSchema) int { return cmp.Compare(score(b), score(a)) })
	picked = picked[:most]
	slices.SortFunc(picked, func(a, b subjects.ToolSchema) int { return strings.Compare(a.Name, b.Name) })
	return picked
}

// words are the words of a text that can tell tools apart.
func words(text string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if len(w) > 3 {
			out[w] = true
		}
	}
	return out
}
