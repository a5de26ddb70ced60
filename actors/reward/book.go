package reward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// bucket is the book: answers that can be rewarded, and how they were. What is not touched for 90 days is let go there.
const bucket = "rewarded"

// answerKey is where an answer stands, and lastKey where it says which question of a session was answered last. Both ids
// must be tokens.
func answerKey(query string) string { return "answer." + query }

func lastKey(session string) string { return "last." + session }

// place is where and when the stream stored a message.
type place struct {
	Seq    uint64    `json:"seq"`
	Stored time.Time `json:"stored"`
}

// after reports whether p came later. A stream that is made anew counts from one again, so a later time is enough.
func (p place) after(q place) bool { return p.Seq > q.Seq || p.Stored.After(q.Stored) }

// answer is what is known of an answer and of what was thought of it.
type answer struct {
	Session    string `json:"session,omitempty"`
	Respondent string `json:"respondent"` // the account that the server wrote
	Place      place  `json:"place"`

	Opinion opinion `json:"opinion,omitzero"` // what holds
	Count   int     `json:"count,omitempty"`  // how often it changed
	EventID string  `json:"event_id,omitempty"`
	Said    bool    `json:"said,omitempty"` // the event of this count is stored

	Heard place    `json:"heard,omitzero"`  // of the user's latest feedback: what is older and comes late changes nothing
	Asked []string `json:"asked,omitempty"` // questions and calls in which the conversation gave its opinion
}

// opinion is what somebody thought of an answer.
type opinion struct {
	Value  float64         `json:"value"`
	Source subjects.Source `json:"source"`
	Thumb  int             `json:"thumb,omitempty"`
	Stars  int             `json:"stars,omitempty"`
	Words  string          `json:"words,omitempty"`
}

// unsaid reports whether an event was written down and perhaps never said.
func (a answer) unsaid() bool { return a.EventID != "" && !a.Said }

// lastAnswer is the question of a session that was answered last.
type lastAnswer struct {
	Query string `json:"query"`
	Place place  `json:"place"`
}

const (
	rounds  = 8                // tries against others who write the same key
	storing = 10 * time.Second // longest wait for one write, and for one event
)

// errBusy means that others kept writing the same key.
var errBusy = errors.New("others kept changing it")

// get reads a key. [actor.ErrNotFound] is its error when there is none.
func get[T any](ctx context.Context, store actor.Store, key string) (v T, rev uint64, err error) {
	data, rev, err := store.Get(ctx, key)
	if err != nil {
		return v, 0, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, 0, fmt.Errorf("reading %s in %s: %w", key, bucket, err)
	}
	return v, rev, nil
}

// put writes a key if it is still at its revision. step names the boundary.
func (r *Reward) put(ctx context.Context, store actor.Store, step, key string, v any, rev uint64) (uint64, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("encoding %s: %w", key, err)
	}
	r.at(step + "/before")
	if rev, err = store.Put(ctx, key, data, rev); err != nil {
		return 0, err
	}
	r.at(step + "/after")
	return rev, nil
}

// What becomes of an opinion.
type effect int

const (
	ignored effect = iota // nothing changes
	noted                 // the book changes, and nobody is told
	counted               // it holds from now on, and everybody is told
)

// change has decide take something into an answer, writes it down and says what came of it. decide may be called again,
// with what somebody else wrote in between. An event that was written down and perhaps never said is said first: none is
// lost, whoever comes next.
func (r *Reward) change(ctx context.Context, out actor.Out, query string, decide func(*answer) effect) (effect, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*storing) // what was begun is seen through
	defer cancel()
	store := out.Store(bucket)
	for range rounds {
		a, rev, err := get[answer](ctx, store, answerKey(query))
		if err != nil {
			return ignored, err
		}
		if a.unsaid() {
			if err := r.say(ctx, out, query, a, rev); err != nil {
				return ignored, err
			}
			continue
		}
		what := decide(&a)
		switch what {
		case ignored:
			return what, nil
		case counted:
			a.Count, a.EventID, a.Said = a.Count+1, out.NewID(), false
		}
		rev, err = r.put(ctx, store, "opinion", answerKey(query), a, rev)
		switch {
		case errors.Is(err, actor.ErrChanged):
			continue
		case err != nil:
			return ignored, fmt.Errorf("writing down what was thought of %s: %w", query, err)
		case what == counted:
			return what, r.say(ctx, out, query, a, rev)
		}
		return what, nil
	}
	return ignored, fmt.Errorf("writing down what was thought of %s: %w", query, errBusy)
}

// say says the event that is written down, and writes down that it was said. Another may do so at the same time: under the
// same id it is stored once. Said again later than the stream remembers ids it has the same count, and changes nothing.
func (r *Reward) say(ctx context.Context, out actor.Out, query string, a answer, rev uint64) error {
	o := a.Opinion
	r.at("event/before")
	err := actor.EmitOnce(ctx, out.WithIDs(a.Session, query), subjects.RewardEvent, a.EventID, subjects.Reward{
		SessionID: a.Session, QueryID: query, RespondentID: a.Respondent, Value: o.Value, Count: a.Count, Source: o.Source, Thumb: o.Thumb, Stars: o.Stars, Words: o.Words,
	})
	if err != nil {
		return fmt.Errorf("telling what was thought of %s: %w", query, err)
	}
	r.at("event/after")
	store, id := out.Store(bucket), a.EventID
	for range rounds {
		a.Said = true
		_, err = r.put(ctx, store, "said", answerKey(query), a, rev)
		if !errors.Is(err, actor.ErrChanged) {
			break
		}
		if a, rev, err = get[answer](ctx, store, answerKey(query)); err != nil || a.EventID != id || a.Said {
			break // another has said it, and perhaps gone on from there
		}
	}
	if err != nil {
		return fmt.Errorf("writing down that %s was rewarded: %w", query, err)
	}
	return nil
}
