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
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Grades of the critic and the user arrive as events and are stored with their turn in the conversation. With
// grades.prompt the model is told the grades of its last answer before the next question.

const (
	maxGradeWords    = 2 << 10 // bytes of a comment that are stored
	maxGradeShown    = 400     // bytes of a comment that the model is sent
	gradeAttempts    = 5       // attempts to store a grade against concurrent writers
	maxPendingGrades = 256     // grades that wait for their turn to be stored
	storeTimeout     = 10 * time.Second
)

// onCritique stores a grade of the critic. It ignores other respondents' grades, ungraded answers and invalid scores.
func (g *Generator) onCritique(ctx context.Context, in actor.Msg[subjects.Critique], out actor.Out) error {
	c := in.Body
	if c.RespondentID != g.Account || c.Ungraded != "" || c.Score < 1 || c.Score > 5 {
		return nil
	}
	return g.addGrade(ctx, out, c.SessionID, c.QueryID,
		subjects.Grades{Critic: c.Score, Feedback: text.Clip(c.Feedback, maxGradeWords), Retry: c.Retry})
}

// onReward stores a rating of the user. It ignores other respondents' ratings, a count below 1 and values outside of -1
// to 1. Of a rating that a model derived from the conversation only the value is stored: its text is not the user's.
func (g *Generator) onReward(ctx context.Context, in actor.Msg[subjects.Reward], out actor.Out) error {
	r := in.Body
	if r.RespondentID != g.Account || r.Count < 1 || r.Value < -1 || r.Value > 1 {
		return nil
	}
	add := subjects.Grades{Reward: r.Value, Rewards: r.Count}
	if r.Source == subjects.RewardUser {
		add.Words = text.Clip(r.Words, maxGradeWords)
	}
	return g.addGrade(ctx, out, r.SessionID, r.QueryID, add)
}

// addGrade buffers a grade and stores it. The buffer is needed because an answer is published before its turn is in the
// conversation, so a grade may arrive first. Invalid ids are ignored.
func (g *Generator) addGrade(ctx context.Context, out actor.Out, session, query string, add subjects.Grades) error {
	if subjects.CheckToken(session) != nil || subjects.CheckToken(query) != nil {
		return nil
	}
	g.pendingGrades.add(gradeKey(session, query), add)
	return g.storeGrades(ctx, out, session, query)
}

// storeGrades stores the buffered grades of an answer with its turn; nil = stored, or nothing to do. Without the turn
// they stay buffered until storeConversation takes them; it looks before and after its write, so that none is missed.
// Grades of a turn that was dropped are discarded, as are those that exceed the size of a record (an error) or lose
// against concurrent writers gradeAttempts times (logged only).
func (g *Generator) storeGrades(ctx context.Context, out actor.Out, session, query string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	store, key := out.Store(g.Bucket.Name), gradeKey(session, query)
	s, hot := g.sessions.get(session)
	c, rev := s.conversation, s.conversationRev
	for try := range gradeAttempts {
		add := g.pendingGrades.get(key)
		if add == nil {
			return nil
		}
		if try > 0 || !hot {
			var err error
			if c, rev, err = conversation.Read(ctx, store, session); err != nil {
				return err
			}
		}
		at := slices.IndexFunc(c.Turns, func(t subjects.Turn) bool { return t.QueryID == query })
		switch {
		case at < 0 && hot && try == 0: // the cache may be outdated
			continue
		case at < 0 && !slices.Contains(c.Past, query):
			return nil
		case at < 0: // the turn was dropped
			g.pendingGrades.remove(key, *add)
			return nil
		}
		next, changed := applyGrades(c, at, *add)
		if changed {
			data, err := actor.EncodeValue(next)
			if err != nil || len(data) > maxRecord {
				g.pendingGrades.remove(key, *add)
				return errors.Join(err, fmt.Errorf("storing a grade of query %s: its conversation is too large", query))
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
			g.emitSessionNote(out, session, query, subjects.NoteGraded, "the grade is stored with the answer")
		}
		if g.pendingGrades.remove(key, *add) {
			return nil
		}
	}
	if add := g.pendingGrades.get(key); add != nil {
		g.pendingGrades.remove(key, *add)
		out.LogError(fmt.Errorf("storing a grade of query %s: others kept changing its conversation", query))
	}
	return nil
}

// applyGrades merges grades into the turn at index at, which must exist, and reports whether that changes it. The turns
// of c are not modified.
func applyGrades(c subjects.Conversation, at int, add subjects.Grades) (subjects.Conversation, bool) {
	var had subjects.Grades
	if c.Turns[at].Grades != nil {
		had = *c.Turns[at].Grades
	}
	now := mergeGrades(had, add)
	if now == had {
		return c, false
	}
	c.Turns = slices.Clone(c.Turns)
	c.Turns[at].Grades = &now
	return c, true
}

// mergeGrades merges new grades into old ones. The rating with the highest count is the user's latest, in whatever
// order ratings arrive.
func mergeGrades(had, add subjects.Grades) subjects.Grades {
	if add.Critic > 0 {
		had.Critic, had.Feedback, had.Retry = add.Critic, add.Feedback, add.Retry
	}
	if add.Rewards > had.Rewards {
		had.Reward, had.Rewards, had.Words = add.Reward, add.Rewards, add.Words
	}
	return had
}

// gradeBuffer holds grades that are not stored yet, at most maxPendingGrades. The zero value is ready.
type gradeBuffer struct {
	mu     sync.Mutex
	grades map[string]subjects.Grades // by session and query
	order  []string                   // oldest first
}

// gradeKey is the key of an answer: query ids are unique only within a session.
func gradeKey(session, query string) string { return session + "." + query }

// add merges grades into the buffered ones of an answer. Of more than maxPendingGrades answers the oldest is dropped.
func (e *gradeBuffer) add(key string, more subjects.Grades) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.grades == nil {
		e.grades = map[string]subjects.Grades{}
	}
	had, ok := e.grades[key]
	if !ok {
		if len(e.order) >= maxPendingGrades { // drop the oldest: its turn runs elsewhere, or never ended
			delete(e.grades, e.order[0])
			e.order = slices.Delete(e.order, 0, 1)
		}
		e.order = append(e.order, key)
	}
	e.grades[key] = mergeGrades(had, more)
}

// get returns the buffered grades of an answer, nil when there are none.
func (e *gradeBuffer) get(key string) *subjects.Grades {
	e.mu.Lock()
	defer e.mu.Unlock()
	g, ok := e.grades[key]
	if !ok {
		return nil
	}
	return &g
}

// remove removes the grades of an answer if they are still written, the ones that were stored. It reports false, and
// keeps them, when others arrived since.
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

// gradedText is the prompt that tells a model how its last answer was graded.
//
//go:embed graded.md
var gradedText string

var gradedPrompt = template.Must(template.New("graded").Parse(gradedText))

// describeGrades describes for the model how the last turn was graded by the critic and the user, with the user's
// words; "" = neither graded it, or the configuration does not send grades. Unless the turn is labelled trusted, the
// critic's comment is left out, because it may repeat untrusted content. Comments are cut to one line and quoted.
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
		seen.Feedback = ""
	}
	said := struct {
		Score                  int
		Feedback, Words        string
		Liked, Disliked, Retry bool
	}{
		Score: seen.Critic, Feedback: quoteLine(seen.Feedback), Words: quoteLine(seen.Words), Liked: seen.Reward > 0,
		Disliked: seen.Reward < 0,
		Retry:    g.cfg.Grades.Retry && (seen.Retry || seen.Reward < 0),
	}
	var b bytes.Buffer
	if err := gradedPrompt.Execute(&b, said); err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

// quoteLine is text on one line, as a quoted string that the text itself cannot end; "" stays "".
func quoteLine(words string) string {
	if words = text.OneLine(words, maxGradeShown); words == "" {
		return ""
	}
	return strconv.Quote(words)
}
