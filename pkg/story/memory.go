package story

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"conclave/subjects"
)

// Memory is a change that the user makes to memory before the question. One operation is set, and one that changes
// nothing fails the story.
type Memory struct {
	Add    *Add    `yaml:"add"`
	Import *Import `yaml:"import"`
	Forget string  `yaml:"forget"` // words; the entries found for them are deleted
	// The following select entries by words in name, description or text.
	Pin    string `yaml:"pin"`
	Unpin  string `yaml:"unpin"`
	Accept string `yaml:"accept"` // candidates; all = every one
	Reject string `yaml:"reject"`
	// Refused means that memory must reject the change. Otherwise a rejection fails the story.
	Refused bool `yaml:"refused"`
}

// Add is a new entry.
type Add struct {
	Text   string   `yaml:"text"`
	Name   string   `yaml:"name"`
	Tags   []string `yaml:"tags"`
	Pinned bool     `yaml:"pinned"`

	Speaker  string    `yaml:"speaker"`  // who said it; "" = not known
	Happened time.Time `yaml:"happened"` // when it was said, as 2026-05-08T13:56:00Z; not known when it is missing
}

// Import is a document to import.
type Import struct {
	From  string `yaml:"from"` // file name; its extension selects the format
	Text  string `yaml:"text"`
	Trust string `yaml:"trust"` // trusted when the user vouches for every word
}

// All selects every candidate.
const All = "all"

// Feedback is the user's rating of an answer, as with conclave rate.
type Feedback struct {
	Of    int    `yaml:"of"`    // number of the turn, from 1
	Query string `yaml:"query"` // in place of Of: the id of a question that does not exist
	Thumb int    `yaml:"thumb"` // -1, 1
	Stars int    `yaml:"stars"` // 1 to 5
	Words string `yaml:"words"`
}

// hasActions reports whether the turn acts or waits before the question.
func (t Turn) hasActions() bool {
	return t.After != nil || t.Override != nil || t.Memory != nil || t.Feedback != nil
}

// asksNothing reports whether the turn has neither question nor request.
func (t Turn) asksNothing() bool { return strings.TrimSpace(t.Query) == "" && t.Request == nil }

// validateActions checks the actions before the question of turn i: after, memory, request and feedback. It rejects a
// reference to a turn that is not earlier or has no question, and feedback that is empty or out of range. It parses
// after.
func (s *Story) validateActions(i int) error {
	path, t := fmt.Sprintf("turns[%d]", i), &s.Turns[i]
	if err := s.validateAfter(path+".after", t); err != nil {
		return err
	}
	if t.Memory != nil {
		if err := s.validateMemory(path+".memory", *t.Memory); err != nil {
			return err
		}
	}
	if t.Request != nil && t.Request.Of != 0 {
		if err := s.validateOf(path+".request.of", i, t.Request.Of); err != nil {
			return err
		}
		if t.Session != "" {
			return s.invalid(path+".session", "must be omitted: the session is that of turn %d", t.Request.Of)
		}
	}
	if t.Feedback != nil && t.Feedback.Query == "" {
		if err := s.validateOf(path+".feedback.of", i, t.Feedback.Of); err != nil {
			return err
		}
	}
	switch f := t.Feedback; {
	case f == nil:
	case f.Thumb < -1 || f.Thumb > 1 || f.Stars < 0 || f.Stars > 5:
		return s.invalid(path+".feedback", "thumb is -1 or 1, stars are 1 to 5")
	case f.Thumb == 0 && f.Stars == 0 && strings.TrimSpace(f.Words) == "":
		return s.invalid(path+".feedback", "is empty: write thumb, stars or words")
	case f.Query != "" && (f.Of != 0 || subjects.CheckToken(f.Query) != nil):
		return s.invalid(path+".feedback.query", "must be a valid id, and excludes of")
	}
	return nil
}

// validateOf checks that turn n, from 1, is one with a question before turn i, from 0.
func (s *Story) validateOf(path string, i, n int) error {
	switch {
	case n < 1 || n > len(s.Turns):
		return s.invalid(path, "must be a turn from 1 to %d", len(s.Turns))
	case strings.TrimSpace(s.Turns[n-1].Query) == "":
		return s.invalid(path, "turn %d has no question", n)
	case n > i:
		return s.invalid(path, "turn %d is not earlier", n)
	}
	return nil
}

// validateAfter parses the events that a turn waits for, one or a list, into t.after. It rejects an empty list and
// invalid patterns.
func (s *Story) validateAfter(path string, t *Turn) error {
	list, isList := t.After.([]any)
	switch {
	case t.After == nil:
		return nil
	case isList && len(list) == 0:
		return s.invalid(path, "has no event")
	case !isList:
		list = []any{t.After}
	}
	t.after = make([]EventPattern, len(list))
	for i, v := range list {
		at := path
		if isList {
			at = fmt.Sprintf("%s[%d]", path, i)
		}
		text, ok := v.(string)
		if !ok {
			return s.invalid(at, "must be an event, such as memory.stored action=stored")
		}
		if err := t.after[i].UnmarshalText([]byte(text)); err != nil {
			return s.invalid(at, "%v", err)
		}
	}
	return nil
}

// validateMemory checks that a memory change has exactly one complete operation.
func (s *Story) validateMemory(path string, m Memory) error {
	given := []bool{m.Add != nil, m.Import != nil}
	for _, words := range []string{m.Forget, m.Pin, m.Unpin, m.Accept, m.Reject} {
		given = append(given, strings.TrimSpace(words) != "")
	}
	if countTrue(given...) != 1 {
		return s.invalid(path, "needs one of add, import, forget, pin, unpin, accept, reject, and words with it")
	}
	switch {
	case m.Add != nil && strings.TrimSpace(m.Add.Text) == "":
		return s.invalid(path+".add.text", "is required")
	case m.Import != nil && strings.TrimSpace(m.Import.Text) == "":
		return s.invalid(path+".import.text", "is required")
	case m.Import != nil && (filepath.Ext(m.Import.From) == "" || strings.ContainsAny(m.Import.From, "/\\\x00") ||
		strings.HasPrefix(m.Import.From, ".")):
		return s.invalid(path+".import.from", "is not a file name; write notes.md")
	case m.Import != nil && m.Import.Trust != "" && m.Import.Trust != subjects.Trusted &&
		m.Import.Trust != subjects.Untrusted:
		return s.invalid(path+".import.trust", "is neither %s nor %s", subjects.Trusted, subjects.Untrusted)
	}
	return nil
}

// prepareTurn executes the actions before the question of turn i: override, memory, feedback. It stops at the first
// error, which names the field of the story.
func (r *runner) prepareTurn(ctx context.Context, i int) error {
	t := r.story.Turns[i]
	ctx, cancel := context.WithTimeout(ctx, r.opts.AnswerTimeout)
	defer cancel()
	if t.Override != nil {
		if err := r.system.SetOverride(ctx, r.sessionOf(i), *t.Override); err != nil {
			return r.stepError(i, "override", fmt.Errorf("setting the override: %w", err))
		}
	}
	if t.Memory != nil {
		if err := r.changeMemory(ctx, *t.Memory); err != nil {
			return r.stepError(i, "memory", err)
		}
	}
	if f := t.Feedback; f != nil {
		if err := r.sendFeedback(ctx, *f); err != nil {
			return r.stepError(i, "feedback", err)
		}
	}
	return nil
}

// sendFeedback rates an answer as the user: that of f.Query, or of the turn f.Of, counted from 1.
func (r *runner) sendFeedback(ctx context.Context, f Feedback) error {
	query, session := f.Query, ""
	if query == "" {
		query, session = r.queries[f.Of-1], r.sessionOf(f.Of-1)
	}
	if err := r.system.SendFeedback(ctx, session, subjects.Feedback{
		QueryID: query, Thumb: f.Thumb, Stars: f.Stars,
		Words: f.Words,
	}); err != nil {
		return fmt.Errorf("rating %s: %w", query, err)
	}
	return nil
}

// changeMemory changes memory as the user. With m.Refused it fails unless memory answers with a fault, of any code;
// otherwise any error fails.
func (r *runner) changeMemory(ctx context.Context, m Memory) error {
	err := r.system.ChangeMemory(ctx, m)
	switch {
	case err == nil && m.Refused:
		return errors.New("memory did not reject the change")
	case err == nil, m.Refused && errors.As(err, new(*subjects.Fault)):
		return nil
	}
	return fmt.Errorf("changing memory: %w", err)
}
