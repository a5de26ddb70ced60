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
	maxGradeWords    = 2 << 10 // of what was written about an answer, kept
	maxGradeShown    = 400     // of that, as the model is shown it
	gradeAttempts    = 5       // to write a grade down while others write too
	maxPendingGrades = 256     // grades that wait for their turn to be kept
)

// onCritique takes down a grade. An answer that was not graded has none.
func (g *Generator) onCritique(ctx context.Context, in actor.Msg[subjects.Critique], out actor.Out) error {
	c := in.Body
	if c.RespondentID != g.name || c.Ungraded != "" || c.Score < 1 || c.Score > 5 {
		return nil
	}
	return g.addGrade(ctx, out, c.SessionID, c.QueryID, subjects.Grades{Critic: c.Score, Feedback: text.Clip(c.Feedback, maxGradeWords), Retry: c.Retry})
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
	return g.addGrade(ctx, out, r.SessionID, r.QueryID, add)
}

// addGrade takes down something about an answer. It waits in memory until it is written: the answer is told before its turn
// is kept, so whoever thinks fast is heard first.
func (g *Generator) addGrade(ctx context.Context, out actor.Out, session, query string, add subjects.Grades) error {
	if subjects.CheckToken(session) != nil || subjects.CheckToken(query) != nil {
		return nil
	}
	g.pendingGrades.add(gradeKey(session, query), add)
	return g.storeGrades(ctx, out, session, query)
}

// storeGrades writes what waits about an answer beside its turn. Without the turn it goes on waiting, and whoever keeps the
// turn takes it along: he looks before he writes and after, so that nothing comes in between.
func (g *Generator) storeGrades(ctx context.Context, out actor.Out, session, query string) error {
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	store, key := out.Store(g.bucket()), gradeKey(session, query)
	s, hot := g.sessions.get(session)
	c, rev := s.conversation, s.conversationRev
	for try := range gradeAttempts {
		add := g.pendingGrades.get(key)
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
			g.pendingGrades.remove(key, *add)
			return nil
		}
		next, changed := withGrades(c, at, *add)
		if changed {
			data, err := encodeJSON(next)
			if err != nil || len(data) > maxRecord {
				g.pendingGrades.remove(key, *add)
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
		g.sessions.replaceOlder(session, next, rev)
		if changed {
			g.emitGraded(ctx, out, session, query)
		}
		if g.pendingGrades.remove(key, *add) {
			return nil
		}
	}
	if add := g.pendingGrades.get(key); add != nil {
		g.pendingGrades.remove(key, *add)
		out.LogError(fmt.Errorf("a grade of query %s was not written down: its conversation changes all the time", query))
	}
	return nil
}

// emitGraded says that the next turn of the session knows what was thought of this one.
func (g *Generator) emitGraded(ctx context.Context, out actor.Out, session, query string) {
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
	now := mergeGrades(had, add)
	if now == had {
		return c, false
	}
	c.Turns = slices.Clone(c.Turns) // others may hold the old ones
	c.Turns[at].Grades = &now
	return c, true
}

// mergeGrades is what is known with something more. What the user thinks takes the place of what they thought before, in
// whatever order it is heard.
func mergeGrades(had, add subjects.Grades) subjects.Grades {
	if add.Critic > 0 {
		had.Critic, had.Feedback, had.Retry = add.Critic, add.Feedback, add.Retry
	}
	if add.Rewards > had.Rewards {
		had.Reward, had.Rewards, had.Words = add.Reward, add.Rewards, add.Words
	}
	return had
}

// gradeBuffer holds what was heard of answers and is not written down yet. The zero value is ready.
type gradeBuffer struct {
	mu     sync.Mutex
	grades map[string]subjects.Grades // by session and query
	order  []string                   // oldest first
}

// gradeKey names an answer: a user may give questions of two sessions the same name.
func gradeKey(session, query string) string { return session + "." + query }

func (e *gradeBuffer) add(key string, more subjects.Grades) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.grades == nil {
		e.grades = map[string]subjects.Grades{}
	}
	had, ok := e.grades[key]
	if !ok {
		if len(e.order) >= maxPendingGrades { // a question of another process, or one that never came to an end
			delete(e.grades, e.order[0])
			e.order = slices.Delete(e.order, 0, 1)
		}
		e.order = append(e.order, key)
	}
	e.grades[key] = mergeGrades(had, more)
}

// get is what waits about an answer, nil when nothing does.
func (e *gradeBuffer) get(key string) *subjects.Grades {
	e.mu.Lock()
	defer e.mu.Unlock()
	g, ok := e.grades[key]
	if !ok {
		return nil
	}
	return &g
}

// remove forgets what is written down. It reports false when something more was heard since.
func (e *gradeBuffer) remove(key string, written subjects.Grades) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g, ok := e.grades[key]; ok && g != written {
		return false
	}
	delete(e.grades, key)
	e.order = slices.DeleteFunc(e.order, func(q string) bool { return q == key })
	return true
}

// gradedText is the reviewed text that tells a model how its last answer was received.
//
//go:embed graded.md
var gradedText string

var gradedPrompt = template.Must(template.New("graded").Parse(gradedText))

// describeGrades is what the model is told of the last answer of a conversation, "" = nothing.
func (g *Generator) describeGrades(c subjects.Conversation) string {
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
		Score: seen.Critic, Feedback: quoteLine(seen.Feedback), Words: quoteLine(seen.Words), Liked: seen.Reward > 0, Disliked: seen.Reward < 0,
		Retry: g.cfg.Grades.Retry && (seen.Retry || seen.Reward < 0),
	}
	var b bytes.Buffer
	if err := gradedPrompt.Execute(&b, said); err != nil {
		return "" // a buffer takes everything
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

// quoteLine is what somebody wrote, on one line and between quotation marks that it cannot end.
func quoteLine(words string) string {
	if words = text.OneLine(words, maxGradeShown); words == "" {
		return ""
	}
	return strconv.Quote(words)
}
