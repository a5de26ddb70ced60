package reward

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// maxWords bounds what is kept of the user's words, in bytes.
const maxWords = 8 << 10

// tries is after how many an answer that is not in the book does not exist. The book is written in the order of the stream:
// an answer that was stored before the feedback is in it, or another process has it in its hands.
const tries = 2

// onFeedback takes in what the user says of an answer. What they think now takes the place of what they thought before;
// said once more, or handed out again, it changes nothing.
func (r *Reward) onFeedback(ctx context.Context, in actor.Msg[subjects.Feedback], out actor.Out) error {
	query := cmp.Or(in.Body.QueryID, in.Query)
	o, fault := read(in.From, query, in.Body)
	if fault != nil {
		return r.refuse(ctx, in, out, fault)
	}
	here, foreign := place{in.Seq, in.StoredAt.UTC()}, false
	_, err := r.change(ctx, out, query, func(a *answer) effect {
		if foreign = in.Session != "" && a.Session != "" && in.Session != a.Session; foreign {
			return ignored // the id was used in another session too, and that answer is not meant
		}
		if a.Heard != (place{}) && !here.after(a.Heard) {
			return ignored // handed out again, perhaps after what was said later
		}
		a.Heard = here
		if a.Opinion == o {
			return noted
		}
		a.Opinion = o
		return counted
	})
	if err == nil && foreign {
		return r.refuse(ctx, in, out, subjects.Faultf(subjects.CodeUnknownAnswer, "the id %s was used in another session before, so this answer cannot be rated", query))
	}
	if errors.Is(err, actor.ErrNotFound) {
		fault := subjects.Faultf(subjects.CodeUnknownAnswer, "there is no answer to %s that could be rated; conclave session list shows the sessions, and conclave session show the answers of one", query)
		most := tries
		if r.young(in.Time) {
			most = subjects.MaxDeliver
		}
		if in.Attempt < most {
			return fault // it comes again in a moment
		}
		return r.refuse(ctx, in, out, fault)
	}
	return err
}

// read makes an opinion of feedback, or tells what is wrong with it. Stars are the finest, and words have to be understood:
// where several are given, stars count before a thumb and a thumb before words.
func read(from, query string, f subjects.Feedback) (opinion, *subjects.Fault) {
	malformed := func(format string, a ...any) (opinion, *subjects.Fault) {
		return opinion{}, subjects.Faultf(subjects.CodeMalformed, format, a...)
	}
	switch {
	case !slices.Contains(subjects.UserAccounts, from):
		return opinion{}, subjects.Faultf(subjects.CodeDenied, "only the user rates answers")
	case subjects.CheckToken(query) != nil:
		return malformed("query_id must say which answer is meant: letters, digits, - and _ only")
	case f.Thumb < -1 || f.Thumb > 1:
		return malformed("thumb is 1 or -1, not %d", f.Thumb)
	case f.Stars < 0 || f.Stars > 5:
		return malformed("stars are 1 to 5, not %d", f.Stars)
	}
	o := opinion{Source: subjects.RewardUser, Thumb: f.Thumb, Stars: f.Stars, Words: clean(f.Words)}
	switch {
	case f.Stars > 0:
		o.Value = float64(f.Stars-3) / 2
	case f.Thumb != 0:
		o.Value = float64(f.Thumb)
	case o.Words != "":
		o.Value = float64(moodOf(o.Words))
	default:
		return malformed("it says nothing: give a thumb, stars or words")
	}
	return o, nil
}

// clean is what is kept of somebody's words: text that can be seen, no credentials, and not too much of it.
func clean(words string) string {
	words = strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case unicode.IsSpace(r):
			return ' '
		case !text.IsVisible(r):
			return -1 // before the look for credentials: one could be cut in two by it
		}
		return r
	}, strings.ToValidUTF8(words, "?"))
	words, _ = firewall.Redact(strings.TrimSpace(words))
	return text.Clip(words, maxWords)
}

// refuse writes the dead letter of feedback that no other try would help, as the runtime would after its last one: whoever
// said it waits for that. The body is what [actor.Emit] makes of it, so its hash is that of the message.
func (r *Reward) refuse(ctx context.Context, in actor.Msg[subjects.Feedback], out actor.Out, f *subjects.Fault) error {
	topic, err := subjects.DeadLetterEvent.With(name)
	if err != nil {
		return err
	}
	body, err := json.Marshal(in.Body)
	if err != nil {
		return fmt.Errorf("encoding feedback: %w", err)
	}
	sum := sha256.Sum256(body)
	query := in.Query
	if subjects.CheckToken(in.Body.QueryID) == nil {
		query = in.Body.QueryID
	}
	letter := subjects.DeadLetter{
		Actor: name, Subject: text.Clip(in.Subject, subjects.MaxSubject), Code: f.Code, Reason: f.Text, Size: len(body), SHA256: hex.EncodeToString(sum[:]), Time: out.Now().UTC(),
	}
	if err := actor.Emit(ctx, out.WithIDs(in.Session, query), topic, letter); err != nil {
		out.LogError(fmt.Errorf("telling that feedback was refused: %w", err))
		return f // it comes again, and after the last try the runtime writes the letter
	}
	return nil
}
