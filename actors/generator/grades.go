package generator

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"text/template"

	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// What the critic and the user thought of an answer is heard live and written beside its turn in the conversation.
// With grades.prompt the model is told of the last one before the next question.

const (
	maxGradeWords = 2 << 10 // of what was written about an answer, kept
	maxGradeShown = 400     // of that, as the model is shown it
	gradeTries    = 5       // to write a grade down while others write too
	maxEarly      = 256     // grades that wait for their turn to be kept
)

// onCritique takes down a grade. An answer that was not graded has none.
func (g *Generator) onCritique(ctx context.Context, in actor.Msg[subjects.Critique], out actor.Out) error {
	c := in.Body
	if c.RespondentID != g.name || c.Ungraded != "" || c.Score < 1 || c.Score > 5 {
		return nil
	}
	return g.grade(ctx, out, c.SessionID, c.QueryID, subjects.Grades{Critic: c.Score, Feedback: text.Clip(c.Feedback, maxGradeWords), Retry: c.Retry})
}

// onReward takes down what the user thinks. What a model took from a conversation is a number here: its words are not
// the user's.
func (g *Generator) onReward(ctx context.Context, in actor.Msg[subjects.Reward], out actor.Out) error {
	r := in.Body
	if r.RespondentID != g.name || r.Count < 1 || r.Value < -1 || r.Value > 1 {
		return nil
	}
	add := subjects.Grades{Reward: r.Value, Rewards: r.Count}
	if r.Source == subjects.RewardUser {
		add.Words = text.Clip(r.Words, maxGradeWords)
	}
	return g.grade(ctx, out, r.SessionID, r.QueryID, add)
}

// grade takes down something about an answer. It waits in memory until it is written: the answer is told before its turn
// is kept, so whoever thinks fast is heard first.
func (g *Generator) grade(ctx context.Context, out actor.Out, session, query string, add subjects.Grades) error {
	if subjects.CheckToken(session) != nil || subjects.CheckToken(query) != nil {
		return nil
	}
	g.early.add(earlyKey(session, query), add)
	return g.regrade(ctx, out, session, query)
}

// regrade writes what waits about an answer beside its turn. Without the turn it goes on waiting, and whoever keeps the
// turn takes it along: he looks before he writes and after, so that nothing comes in between.
func (g *Generator) regrade(ctx context.Context, out actor.Out, session, query string) error {
	ctx, cancel := lasting(ctx)
	defer cancel()
	store, key := out.Store(g.bucket()), earlyKey(session, query)
	s, hot := g.hot.get(session)
	c, rev := s.conv, s.convRev
	for try := range gradeTries {
		add := g.early.of(key)
		if add == nil {
			return nil
		}
		if try > 0 || !hot {
			var err error
			if c, rev, err = readConversation(ctx, store, session); err != nil {
				return err
			}
		}
		at := slices.IndexFunc(c.Turns, func(t subjects.Turn) bool { return t.QueryID == query })
		switch {
		case at < 0 && hot && try == 0: // what is in memory may be old
			continue
		case at < 0 && !slices.Contains(c.Past, query):
			return nil
		case at < 0: // let go, and nobody asks any more
			g.early.drop(key, *add)
			return nil
		}
		next, changed := withGrades(c, at, *add)
		if changed {
			data, err := marshal(next)
			if err != nil || len(data) > maxRecord {
				g.early.drop(key, *add)
				return errors.Join(err, fmt.Errorf("a grade of query %s does not fit into its conversation", query))
			}
			rev, err = store.Put(ctx, subjects.ConversationKey(session), data, rev)
			if errors.Is(err, actor.ErrChanged) {
				continue
			}
			if err != nil {
				return err
			}
		}
		g.hot.freshen(session, next, rev)
		if changed {
			g.tellGraded(ctx, out, session, query)
		}
		if g.early.drop(key, *add) {
			return nil
		}
	}
	if add := g.early.of(key); add != nil {
		g.early.drop(key, *add)
		out.LogError(fmt.Errorf("a grade of query %s was not written down: its conversation changes all the time", query))
	}
	return nil
}

// tellGraded says that the next turn of the session knows what was thought of this one.
func (g *Generator) tellGraded(ctx context.Context, out actor.Out, session, query string) {
	topic, err := subjects.AgentStateEvent.With(g.name)
	if err == nil {
		err = actor.EmitAsync(ctx, out.WithIDs(session, query), topic, subjects.AgentState{
			SessionID: session, QueryID: query, To: string(idle), Code: subjects.NoteGraded, Words: "what was thought of the answer is kept beside it",
		})
	}
	if err != nil {
		out.LogError(err)
	}
}

// withGrades is a conversation with something more known about one turn, and whether that is news.
func withGrades(c subjects.Conversation, at int, add subjects.Grades) (subjects.Conversation, bool) {
	var had subjects.Grades
	if c.Turns[at].Grades != nil {
		had = *c.Turns[at].Grades
	}
	now := merged(had, add)
	if now == had {
		return c, false
	}
	c.Turns = slices.Clone(c.Turns) // others may hold the old ones
	c.Turns[at].Grades = &now
	return c, true
}

// merged is what is known with something more. What the user thinks takes the place of what they thought before, in
// whatever order it is heard.
func merged(had, add subjects.Grades) subjects.Grades {
	if add.Critic > 0 {
		had.Critic, had.Feedback, had.Retry = add.Critic, add.Feedback, add.Retry
	}
	if add.Rewards > had.Rewards {
		had.Reward, had.Rewards, had.Words = add.Reward, add.Rewards, add.Words
	}
	return had
}

// early holds what was heard of answers and is not written down yet. The zero value is ready.
type early struct {
	mu    sync.Mutex
	held  map[string]subjects.Grades // by session and query
	order []string                   // oldest first
}

// earlyKey names an answer: a user may give questions of two sessions the same name.
func earlyKey(session, query string) string { return session + "." + query }

func (e *early) add(key string, more subjects.Grades) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil {
		e.held = map[string]subjects.Grades{}
	}
	had, ok := e.held[key]
	if !ok {
		if len(e.order) >= maxEarly { // a question of another process, or one that never came to an end
			delete(e.held, e.order[0])
			e.order = slices.Delete(e.order, 0, 1)
		}
		e.order = append(e.order, key)
	}
	e.held[key] = merged(had, more)
}

// of is what waits about an answer, nil when nothing does.
func (e *early) of(key string) *subjects.Grades {
	e.mu.Lock()
	defer e.mu.Unlock()
	g, ok := e.held[key]
	if !ok {
		return nil
	}
	return &g
}

// drop forgets what is written down. It reports false when something more was heard since.
func (e *early) drop(key string, written subjects.Grades) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g, ok := e.held[key]; ok && g != written {
		return false
	}
	delete(e.held, key)
	e.order = slices.DeleteFunc(e.order, func(q string) bool { return q == key })
	return true
}

// gradedText is the reviewed text that tells a model how its last answer was received.
//
//go:embed graded.md
var gradedText string

var gradedPrompt = template.Must(template.New("graded").Parse(gradedText))

// graded is what the model is told of the last answer of a conversation, "" = nothing.
func (g *Generator) graded(c subjects.Conversation) string {
	if !g.cfg.Grades.Prompt || len(c.Turns) == 0 {
		return ""
	}
	last := c.Turns[len(c.Turns)-1]
	if last.Grades == nil || last.Grades.Critic == 0 && last.Grades.Rewards == 0 {
		return ""
	}
	seen := *last.Grades
	if last.Labels == nil || last.Labels.Trust != subjects.Trusted {
		seen.Feedback = "" // whoever writes about a stranger's words may repeat them
	}
	said := struct {
		Score                  int
		Feedback, Words        string
		Liked, Disliked, Retry bool
	}{
		Score: seen.Critic, Feedback: quoted(seen.Feedback), Words: quoted(seen.Words), Liked: seen.Reward > 0, Disliked: seen.Reward < 0,
		Retry: g.cfg.Grades.Retry && (seen.Retry || seen.Reward < 0),
	}
	var b bytes.Buffer
	if err := gradedPrompt.Execute(&b, said); err != nil {
		return "" // a buffer takes everything
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

// quoted is what somebody wrote, on one line and between quotation marks that it cannot end.
func quoted(words string) string {
	if words = text.OneLine(words, maxGradeShown); words == "" {
		return ""
	}
	return strconv.Quote(words)
}
