package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Number of definitions in a reply. The assistant's shipped tools fit into maxTools, so that no model call selects
// them; an agent with a small model asks for fewer.
const (
	defaultTools = 4
	maxTools     = 12
)

// onDiscover returns the definitions of tools that fit the task, ordered by name: only such as the caller may use, and
// at most Max of the request, at most maxTools; 0 is defaultTools. The request is recorded, and denied for a caller
// without a type or with an unregistered path, and when the session's records cannot be read. It waits until
// [Broker.Start] has asked for all tools or ctx ends. A listed tool can still be denied when it is called.
func (b *Broker) onDiscover(ctx context.Context, in actor.Msg[subjects.DiscoverRequest],
	out actor.Out,
) (subjects.DiscoverReply, error) {
	caller, err := subjects.ParseAgentSubject("broker.discover", in.Subject)
	if err != nil {
		return subjects.DiscoverReply{}, subjects.Faultf(subjects.CodeSubject, "invalid discover subject: %v", err)
	}
	turnErr := b.recordTurns(ctx, out, caller, in.Session, in.Query)
	r := stage.Received{Caller: caller, Session: in.Session, Query: in.Query}
	seen, fault := b.gatherFacts(ctx, out, r, Known{}, true)
	asked, rules := seen.call, seen.rules
	if turnErr != nil && fault == nil {
		out.LogError(fmt.Errorf("recording the turns of a session: %w", turnErr))
		fault = subjects.Faultf(subjects.CodeUnavailable, "the session's records cannot be written, so no tools are "+
			"listed; see conclave doctor")
	}
	rec := subjects.AuditRecord{
		ID: out.NewID(), AgentID: caller.ID(), AgentType: asked.Type, Action: subjects.ActionDiscover,
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
		return subjects.DiscoverReply{}, subjects.Faultf(subjects.CodeDenied, "%s has no type in the manifest, so it "+
			"has no tools", caller.ID())
	}
	if err := b.gate.Record(ctx, out, rec, subjects.StatusShown, ""); err != nil {
		return subjects.DiscoverReply{}, err
	}
	select {
	case <-b.table.discovered:
	case <-ctx.Done():
	}
	b.discoverMissing(ctx, out)
	most := in.Body.Max
	if most <= 0 {
		most = defaultTools
	}
	most = min(most, maxTools)
	always, may, rare := b.listAllowed(caller, asked, rules, in.Body.Task, most)
	picked := append(always, b.chooseTools(ctx, out, in.Body.Task, may, rare, most-len(always))...)
	// Ordered by name, so that the prompt prefix stays the same from query to query.
	slices.SortFunc(picked, func(a, b subjects.ToolSchema) int { return strings.Compare(a.Name, b.Name) })
	reply := subjects.DiscoverReply{Tools: picked}
	if len(caller.Path) > 0 {
		reply.Unavailable = b.listUnavailable(ctx, out, picked)
		reply.Tools = slices.DeleteFunc(picked, func(s subjects.ToolSchema) bool {
			return slices.ContainsFunc(reply.Unavailable, func(u subjects.UnavailableTool) bool {
				return u.Name == s.Name
			})
		})
	}
	return reply, nil
}

// listUnavailable returns those of the tools whose process says that their backend does not answer. It asks those of
// the build that have one. An agent that is to search and cannot reports a failure, while it would have written from
// its own knowledge without the tool.
func (b *Broker) listUnavailable(ctx context.Context, out actor.Out,
	tools []subjects.ToolSchema,
) (all []subjects.UnavailableTool) {
	for _, s := range tools {
		k, ok := b.table.get(s.Name)
		if !ok || !k.Backend {
			continue
		}
		info, err := askInfo(ctx, out, k.Zone, s.Name)
		if err != nil {
			out.LogError(err)
		}
		if why := text.OneLine(info["unavailable"], maxFaultBytes); why != "" {
			all = append(all, subjects.UnavailableTool{Name: s.Name, Why: why})
		}
	}
	return all
}

// hasFolder reports whether the caller has a folder for a tool with paths, and one of them is there: without one each
// call would fail. The working folder of the question is made when it is used. Every other tool has one.
func (b *Broker) hasFolder(asked policy.Call, rules policy.Rules, k Known) bool {
	if len(k.Paths) == 0 {
		return true
	}
	asked.Tool = k.Tool
	folders := rules.Chain.FolderRules(asked, b.workFolder(stage.Received{Session: asked.Session, Query: asked.Query}))
	return folders == nil || folders.Work != "" || slices.ContainsFunc(folders.Allowed, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// listAllowed returns the tools that the caller may use: those that it always gets, at most most, those that a task may
// need, and those that only a task with one of their words needs. Tools that have no folder to work in are left out. No
// schema has a key: only the broker seals to it.
func (b *Broker) listAllowed(caller subjects.Caller, asked policy.Call, rules policy.Rules, task string,
	most int,
) (always, may, rare []subjects.ToolSchema) {
	effective := rules.Manifest.EffectiveTools(caller.Account, asked.Lineage, asked.Override.Grant)
	for _, k := range b.table.all() {
		if k.Disabled != "" || !slices.Contains(effective, k.Name) || slices.Contains(asked.Override.Disable, k.Name) ||
			isRespondentB(caller) && hasSideEffects(k.Tool) || !b.hasFolder(asked, rules, k) {
			continue
		}
		s := k.schema
		s.Key = ""
		// A task with a URL always gets the tools that take one, and one that names a tool gets that tool.
		opens := k.Args.With(policy.RoleURL) != "" && strings.Contains(task, "://")
		switch {
		case (k.Known && (k.Standing || opens) || namesTool(task, k.Name)) && len(always) < most:
			always = append(always, s)
		case k.Known && len(k.Rare) > 0 && !hasAnyWord(task, k.Rare):
			rare = append(rare, s)
		default:
			may = append(may, s)
		}
	}
	return always, may, rare
}

// recordTurns stores the messages of a session up to the query, with their attachments, in its flow. Each question
// begins with a discovery, so the taint of an attachment is stored while TURNS has the message, also when no tool is
// called, and stays as long as the conversation, which has the text. It does nothing for an account that does not
// answer the user's messages.
func (b *Broker) recordTurns(ctx context.Context, out actor.Out, caller subjects.Caller, session, query string) error {
	if session == "" || query == "" || !subjects.ConsumesTurns(caller.Account) || isRespondentB(caller) {
		return nil
	}
	_, err := b.loadFlow(ctx, out, caller.Account, session, query, false)
	return err
}

// chooseTools picks at most most tools that fit a task: all when they are few enough, otherwise by a model, or by
// shared words when the model fails. Tools in rare are returned only when the model names them, and so never when tools
// are few enough.
func (b *Broker) chooseTools(ctx context.Context, out actor.Out, task string, tools, rare []subjects.ToolSchema,
	most int,
) []subjects.ToolSchema {
	if len(tools) <= most {
		return tools
	}
	picked, err := b.rankByModel(ctx, out, task, tools, rare, most)
	if err != nil {
		if !errors.Is(err, errNoModel) {
			out.LogError(fmt.Errorf("ranking tools by model: %w; ranking by words instead", err))
		}
		picked = rankByWords(task, tools, most)
	}
	return picked
}

// rankByWords returns the at most most tools whose name and description share the most words with the task, best first.
// Tools without a shared word fill up the rest, in the order of tools.
func rankByWords(task string, tools []subjects.ToolSchema, most int) []subjects.ToolSchema {
	asked := extractWords(task)
	picked := slices.Clone(tools)
	slices.SortStableFunc(picked, func(a, b subjects.ToolSchema) int {
		return cmp.Compare(countSharedWords(asked, b), countSharedWords(asked, a))
	})
	return picked[:min(most, len(picked))]
}

// namesTool reports whether the task contains the name of a tool as a word of letters, digits, "_" and "-".
func namesTool(task, name string) bool {
	return slices.Contains(strings.FieldsFunc(task, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '-'
	}), name)
}

// hasAnyWord reports whether the task contains one of the candidates as a word, ignoring the task's case. Candidates
// must be in lower case and longer than three bytes; others never match.
func hasAnyWord(task string, candidates []string) bool {
	asked := extractWords(task)
	return slices.ContainsFunc(candidates, func(w string) bool { return asked[w] })
}

// countSharedWords returns how many distinct words of a tool's name and description are in asked.
func countSharedWords(asked map[string]bool, s subjects.ToolSchema) (n int) {
	for w := range extractWords(s.Name + " " + s.Description) {
		if asked[w] {
			n++
		}
	}
	return n
}

// extractWords returns the set of lower-case words of letters and digits of a text with more than three bytes.
func extractWords(text string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		if len(w) > 3 {
			out[w] = true
		}
	}
	return out
}
