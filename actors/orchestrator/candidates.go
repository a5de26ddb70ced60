package orchestrator

import (
	"context"
	"fmt"
	"strings"

	"conclave/pkg/agent"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Agents propose memories; the orchestrator decides by rules, not by a model. A candidate is kept when its result is
// verified or inferred, and when nothing untrusted was read: such text could have written it. It is saved under the
// orchestrator's own identity, which the broker judges as any other call.

// candidate is a memory that an agent proposes.
type candidate struct {
	text    string
	quality string
	trusted bool // the agent read no untrusted content
}

// candidatesOf are the candidates of a subtask. labels are those of its results; nil = it read none.
func candidatesOf(s subjects.Subtask, labels *subjects.Labels) (out []candidate) {
	for _, c := range s.Return.Candidates {
		out = append(out, candidate{
			text: text.OneLine(c, 400), quality: s.Return.ResultQuality,
			trusted: s.Return.Source != subjects.SourceWeb && (labels == nil || labels.Trust == subjects.Trusted),
		})
	}
	return out
}

// rejects says why a candidate is not kept; "" = it is.
func (c candidate) rejects(all *subjects.Labels, state string) string {
	switch {
	case state == subjects.TaskStopped:
		return "the task was stopped"
	case c.quality != subjects.QualityVerified && c.quality != subjects.QualityInferred:
		return "it is uncertain"
	case !c.trusted || all == nil || all.Trust != subjects.Trusted:
		return "the task read untrusted content"
	}
	return ""
}

// keepCandidates saves the candidates that pass the rules, at most Memories, and says what was kept and what was
// dropped, for the report; "" = there were none. labels are those of the whole task.
func (t *task) keepCandidates(ctx context.Context, all []candidate, labels *subjects.Labels, state string) string {
	if len(all) == 0 {
		return ""
	}
	root := &agent.Agent{
		Out: t.Out, Session: t.Session, Query: t.Query.QueryID, Scope: "memory", ToolTimeout: t.o.cfg.ToolTimeout,
		MaxResult: int(t.o.cfg.Result),
	}
	var kept, dropped []string
	seen := map[string]bool{}
	for i, c := range all {
		why := c.rejects(labels, state)
		switch {
		case seen[c.text]:
			continue
		case why == "" && len(kept) >= t.o.cfg.Memories:
			why = "enough were kept"
		case why == "":
			res := root.RunTool(ctx, model.Call{
				ID: fmt.Sprintf("memory-%d", i), Name: "save_memory",
				Arguments: encodeArguments(map[string]string{"content": c.text}),
			})
			if res.Fault != "" {
				why = "saving it failed (" + res.Fault + ")"
			}
		}
		seen[c.text] = true
		if why == "" {
			kept = append(kept, c.text)
		} else {
			dropped = append(dropped, why)
		}
	}
	var parts []string
	if len(kept) > 0 {
		parts = append(parts, fmt.Sprintf("%d remembered: %s", len(kept), strings.Join(kept, " | ")))
	}
	if len(dropped) > 0 {
		parts = append(parts, fmt.Sprintf("%d proposed memories dropped: %s", len(dropped),
			strings.Join(dropped, "; ")))
	}
	return strings.Join(parts, "; ")
}
