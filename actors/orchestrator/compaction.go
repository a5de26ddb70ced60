package orchestrator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/respondent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// sessionRecord is what the orchestrator knows of the earlier tasks of a session: their tokens, and a short record for
// the next plan. All its texts are filtered.
type sessionRecord struct {
	Tasks     []pastTask     `json:"tasks,omitempty"` // oldest first
	Summary   string         `json:"summary,omitempty"`
	Compacted int            `json:"compacted,omitempty"` // tasks that are in the summary only
	Tokens    map[string]int `json:"tokens,omitempty"`    // by task
}

// pastTask is an earlier task in the prompt of a plan.
type pastTask struct {
	TaskID  string `json:"task_id,omitempty"`
	Task    string `json:"task"` // the user's words, shortened
	State   string `json:"state"`
	Summary string `json:"summary,omitempty"` // filtered
}

const (
	maxPastTasks   = 30
	maxSummary     = 1 << 10 // bytes of the summary of earlier tasks: about 200 tokens
	keptWhole      = 2       // latest tasks that are not summarized
	fastBurn       = 50      // percent of the token budget after which earlier tasks are summarized sooner
	maxPastQuery   = 400     // bytes of the words of an earlier task
	summaryPredict = 300     // output tokens of a summary
)

var sessions = actor.Bucket[sessionRecord]{Name: bucket, MaxSize: maxRecord}

// loadSession reads the record of the session.
func (t *task) loadSession(ctx context.Context) (sessionRecord, error) {
	v, err := sessions.Load(ctx, t.Out, sessionKey(t.Session))
	return v.Value, err
}

// tokensWithout is the tokens of all tasks of the session but one.
func (s sessionRecord) tokensWithout(task string) (n int) {
	for id, tokens := range s.Tokens {
		if id != task {
			n += tokens
		}
	}
	return n
}

// describe is the record for the prompt of a plan; "" = there are no earlier tasks.
func (s sessionRecord) describe() string {
	var lines []string
	if s.Summary != "" {
		lines = append(lines, s.Summary)
	}
	for _, p := range s.Tasks {
		p.TaskID = "" // says nothing to a model
		if data, err := json.Marshal(p); err == nil {
			lines = append(lines, string(data))
		}
	}
	return strings.Join(lines, "\n")
}

// Append implements [respondent.Work]: it adds the ended task and its tokens to the record of its session, once, and
// summarizes the earlier tasks when they take too much of the window.
func (t *task) Append(ctx context.Context, p respondent.Pending) error {
	r := t.Record()
	v, err := sessions.Update(ctx, t.Out, "session.add", sessionKey(t.Session),
		func(s *sessionRecord, _ bool) (bool, error) {
			if _, ok := s.Tokens[t.Query.QueryID]; ok {
				return false, nil
			}
			tokens := map[string]int{t.Query.QueryID: r.Tokens}
			for id, n := range s.Tokens {
				tokens[id] = n
			}
			s.Tokens = tokens
			s.Tasks = append(slices.Clone(s.Tasks), pastTask{
				TaskID: t.Query.QueryID, Task: text.OneLine(r.Query, maxPastQuery),
				State: r.State, Summary: p.Summary,
			})
			for len(s.Tasks) > maxPastTasks {
				s.Tasks, s.Compacted = s.Tasks[1:], s.Compacted+1
			}
			return true, nil
		})
	if err != nil {
		return err
	}
	t.compact(ctx, v.Value)
	return nil
}

// needsCompaction reports whether the record of earlier tasks exceeds its part of the window: percent, or half of it
// when more than half of the token budget is used.
func (s sessionRecord) needsCompaction(window, percent, budget int) bool {
	if percent == 0 || len(s.Tasks) <= keptWhole {
		return false
	}
	if budget > 0 && s.tokensWithout("")*100 > budget*fastBurn {
		percent /= 2
	}
	return loop.Estimate(s.describe(), nil, nil) > window*percent/100
}

// compact summarizes all earlier tasks but the last keptWhole, when they take too much of the window. The summary
// passes the filter: only words of the record itself remain. When the model fails, the words of the tasks alone are
// kept, shortened. A failed write is only logged; a later task tries again.
func (t *task) compact(ctx context.Context, s sessionRecord) {
	window := t.o.models.Role(ctx, t.Out, subjects.RoleOrchestrator).Window
	if !s.needsCompaction(window, t.o.cfg.CompactAt, t.o.cfg.SessionTokens) {
		return
	}
	n := len(s.Tasks) - keptWhole
	old := sessionRecord{Tasks: s.Tasks[:n], Summary: s.Summary}.describe()
	summary, err := t.askJSON(ctx, jsonRequest{
		role: subjects.RoleSummaries, predict: summaryPredict,
		messages: []model.Message{
			{Role: model.System, Content: readPrompt("compact")}, {Role: model.User, Content: text.Clip(old, window)},
		},
	})
	if summary = newFilter(old).apply(summary); err != nil || strings.Trim(summary, " ….,") == "" {
		summary = describeTitles(s.Tasks[:n])
	}
	_, err = sessions.Update(ctx, t.Out, "session.compact", sessionKey(t.Session),
		func(now *sessionRecord, _ bool) (bool, error) {
			if len(now.Tasks) < n || now.Tasks[0].TaskID != s.Tasks[0].TaskID ||
				now.Tasks[n-1].TaskID != s.Tasks[n-1].TaskID {
				return false, nil // another task was faster
			}
			now.Tasks, now.Summary, now.Compacted = slices.Clone(now.Tasks[n:]), text.Clip(summary, maxSummary),
				now.Compacted+n
			return true, nil
		})
	if err != nil {
		t.Out.LogError(fmt.Errorf("summarizing earlier tasks: %w", err))
		return
	}
	t.EmitState(subjects.AgentState{
		To: t.snapshot().State, Code: subjects.NoteCompacted,
		Words: fmt.Sprintf("%d earlier tasks were summarized", n),
	})
}

// describeTitles is the summary of tasks without a model: the beginning of the user's words and the state of each.
func describeTitles(all []pastTask) string {
	lines := make([]string, 0, len(all))
	for _, p := range all {
		lines = append(lines, text.OneLine(p.Task, 60)+": "+p.State)
	}
	return text.Clip(strings.Join(lines, "; "), maxSummary)
}
