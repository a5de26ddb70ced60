package critic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// The book is where judgements are written down before they are said. Of two that judge the same answer only one can
// write; the other takes what it finds. Each has an id that nobody can guess: said again, it is stored once.

// bucket is the critic's book.
const bucket = "judged"

// gradeKey is where the grade of an answer stands, pairKey where two answers meet.
func gradeKey(query, account string) string { return "grade." + query + "." + account }

func pairKey(query string) string { return "pair." + query }

// judgement is a grade as it is written down.
type judgement struct {
	ID       string             `json:"id"`
	Session  string             `json:"session,omitempty"`
	Critique *subjects.Critique `json:"critique,omitempty"` // until it was said
	Said     bool               `json:"said,omitempty"`
}

// storing is the longest wait for one write or one event.
const storing = 10 * time.Second

// lasting is a context for a step that is seen through although the system closes: what a model worked for is not lost.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storing)
}

// graded sees to it that an answer has its one grade.
func (c *Critic) graded(ctx context.Context, out actor.Out, h heard) error {
	key := gradeKey(h.QueryID, h.from)
	var j judgement
	rev, err := c.read(ctx, out, key, &j)
	if err != nil {
		return err
	}
	// Whoever asks chooses the id, and may choose it again in another session. Grades go by it, also in memory: a second
	// one would be taken for that of the first answer.
	if twice := rev > 0 && j.Session != "" && h.SessionID != "" && j.Session != h.SessionID; twice {
		key, j = key+"."+h.SessionID, judgement{}
		if rev, err = c.read(ctx, out, key, &j); err != nil {
			return err
		}
		h.reused = true
	}
	if rev == 0 {
		g, err := c.critique(ctx, out, h)
		if err != nil {
			return err
		}
		j = judgement{ID: out.NewID(), Session: h.SessionID, Critique: &g}
		rev, err = c.write(ctx, out, "grade", key, j, 0)
		if errors.Is(err, actor.ErrChanged) { // another was faster, and what it wrote holds
			j = judgement{}
			rev, err = c.read(ctx, out, key, &j)
		}
		if err != nil && h.last() { // the book is full, or cannot be written: it is said all the same, perhaps twice
			out.LogError(err)
			return say(ctx, c, out, "critique", subjects.CritiqueResult, out.NewID(), g)
		}
		if err != nil {
			return err
		}
	}
	if j.Said || j.Critique == nil {
		return nil
	}
	if err := say(ctx, c, out, "critique", subjects.CritiqueResult, j.ID, *j.Critique); err != nil {
		return err
	}
	_, err = c.write(ctx, out, "graded", key, judgement{ID: j.ID, Session: j.Session, Said: true}, rev)
	if errors.Is(err, actor.ErrChanged) {
		return nil // another has said it, under the same id
	}
	return err
}

// read reads a record. Revision 0 means that there is none.
func (c *Critic) read(ctx context.Context, out actor.Out, key string, to any) (uint64, error) {
	ctx, cancel := lasting(ctx)
	defer cancel()
	data, rev, err := out.Store(bucket).Get(ctx, key)
	if errors.Is(err, actor.ErrNotFound) {
		return 0, nil
	}
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		return 0, fmt.Errorf("reading the book: %w", err)
	}
	return rev, nil
}

// write writes a record if nobody has since. step names the boundary.
func (c *Critic) write(ctx context.Context, out actor.Out, step, key string, v any, rev uint64) (uint64, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("encoding for the book: %w", err)
	}
	ctx, cancel := lasting(ctx)
	defer cancel()
	c.at(step + "/before")
	rev, err = out.Store(bucket).Put(ctx, key, data, rev)
	if err != nil {
		return 0, fmt.Errorf("writing the book: %w", err)
	}
	c.at(step + "/after")
	return rev, nil
}

// say says an event under its id. step names the boundary.
func say[T any](ctx context.Context, c *Critic, out actor.Out, step string, topic subjects.Topic[T], id string, body T) error {
	ctx, cancel := lasting(ctx)
	defer cancel()
	c.at(step + "/before")
	if err := actor.EmitOnce(ctx, out, topic, id, body); err != nil {
		return err
	}
	c.at(step + "/after")
	return nil
}
