package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// How many definitions a caller gets: a small model handles about five tools, and fewer are better.
const (
	defaultTools = 4
	maxTools     = 8
)

// onDiscover shows an agent the tools that fit its task and that it may use. Nobody sees the whole set.
func (b *Broker) onDiscover(ctx context.Context, in actor.Msg[subjects.DiscoverRequest], out actor.Out) (subjects.DiscoverReply, error) {
	caller, err := subjects.ParseAgentSubject("broker.discover", in.Subject)
	if err != nil {
		return subjects.DiscoverReply{}, subjects.Faultf(subjects.CodeSubject, "nobody asks like this: %v", err)
	}
	seen := b.gatherFacts(ctx, out, caller, Known{}, call{session: in.Session, query: in.Query}, true)
	asked, rules, fault := seen.call, seen.rules, seen.fault
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: caller.ID(), AgentType: asked.Type, Lineage: caller.Path, Action: "broker.discover",
		ParamsHash: b.hash.Hash([]byte(in.Body.Task)), Session: in.Session, Query: in.Query,
	}
	if fault != nil {
		if err := b.gate.Record(ctx, out, rec, subjects.StatusDenied, fault.Code); err != nil {
			return subjects.DiscoverReply{}, err
		}
		return subjects.DiscoverReply{}, fault
	}
	if asked.Type == "" || len(asked.Lineage) != len(caller.Path) {
		if err := b.gate.Record(ctx, out, rec, subjects.StatusDenied, "manifest: no type"); err != nil {
			return subjects.DiscoverReply{}, err
		}
		return subjects.DiscoverReply{}, subjects.Faultf(subjects.CodeDenied, "%s has no type in the manifest, so it has no tools", caller.ID())
	}
	if err := b.gate.Record(ctx, out, rec, subjects.StatusShown, ""); err != nil {
		return subjects.DiscoverReply{}, err
	}
	select { // those that were here before the broker
	case <-b.table.discovered:
	case <-ctx.Done():
	}
	effective := rules.Manifest.EffectiveTools(caller.Account, asked.Lineage, asked.Override.Grant)
	most := in.Body.Max
	if most <= 0 {
		most = defaultTools
	}
	most = min(most, maxTools)
	var always, may, rare []subjects.ToolSchema
	for _, k := range b.table.all() {
		if slices.Contains(effective, k.Name) && !slices.Contains(asked.Override.Disable, k.Name) && !(isRespondentB(caller) && hasSideEffects(k.Tool)) {
			s := k.schema
			s.Key = "" // for the broker alone
			// An address in the task is asked for by its owner's tool, whatever the other words are.
			opens := k.URL != "" && strings.Contains(in.Body.Task, "://")
			switch {
			case k.Known && (k.Standing || opens) && len(always) < most:
				always = append(always, s)
			case k.Known && len(k.Rare) > 0 && !hasAnyWord(in.Body.Task, k.Rare):
				rare = append(rare, s)
			default:
				may = append(may, s)
			}
		}
	}
	picked := append(always, b.chooseTools(ctx, out, in.Body.Task, may, rare, most-len(always))...)
	// By name, so that a prompt does not change from question to question.
	slices.SortFunc(picked, func(a, b subjects.ToolSchema) int { return strings.Compare(a.Name, b.Name) })
	return subjects.DiscoverReply{Tools: picked}, nil
}

// chooseTools picks the tools that fit a task. Where all fit, all are given. Those that are rare are given only when the model
// names them.
func (b *Broker) chooseTools(ctx context.Context, out actor.Out, task string, tools, rare []subjects.ToolSchema, most int) []subjects.ToolSchema {
	if len(tools) <= most {
		return tools
	}
	picked, err := b.rankByModel(ctx, out, task, tools, rare, most)
	if err != nil {
		if !errors.Is(err, errNoModel) {
			out.LogError(fmt.Errorf("choosing tools by a model: %w; words are compared instead", err))
		}
		picked = rankByWords(task, tools, most)
	}
	return picked
}

// rankByWords picks the tools whose words are most like the task's.
func rankByWords(task string, tools []subjects.ToolSchema, most int) []subjects.ToolSchema {
	asked := extractWords(task)
	picked := slices.Clone(tools)
	slices.SortStableFunc(picked, func(a, b subjects.ToolSchema) int {
		return cmp.Compare(countSharedWords(asked, b), countSharedWords(asked, a))
	})
	return picked[:min(most, len(picked))]
}

// hasAnyWord reports whether a task has one of these words.
func hasAnyWord(task string, candidates []string) bool {
	asked := extractWords(task)
	return slices.ContainsFunc(candidates, func(w string) bool { return asked[w] })
}

func countSharedWords(asked map[string]bool, s subjects.ToolSchema) (n int) {
	for w := range extractWords(s.Name + " " + s.Description) {
		if asked[w] {
			n++
		}
	}
	return n
}

// extractWords are the words of a text that can tell tools apart.
func extractWords(text string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if len(w) > 3 {
			out[w] = true
		}
	}
	return out
}
