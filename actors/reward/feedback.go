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
	"time"
	"unicode"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// maxWords bounds the stored words of the user, in bytes.
const maxWords = 8 << 10

// maxUnknownAttempts is the number of deliveries after which feedback on an unknown answer is rejected. Answers are
// stored in the order of the stream: one that precedes the feedback is stored by then, or another process handles it.
const maxUnknownAttempts = 2

// unknownRetryDelay is the wait after an attempt to rate an unknown answer that may still be assigned to a crashed
// process. It doubles up to [subjects.AckWait] before the last attempt: the answer is delivered again by then.
func unknownRetryDelay(attempt int) time.Duration {
	return subjects.AckWait >> (subjects.MaxDeliver - 1 - attempt)
}

// onFeedback rates an answer with the user's feedback, which replaces an earlier rating. Repeated and redelivered
// feedback changes nothing. Feedback that is invalid, not of the user or of another session than its answer becomes a
// dead letter; on an unknown answer it is delivered again some times before, because the answer may arrive later.
func (r *Reward) onFeedback(ctx context.Context, in actor.Msg[subjects.Feedback], out actor.Out) error {
	query := cmp.Or(in.Body.QueryID, in.Query)
	o, fault := parseFeedback(in.From, query, in.Body)
	if fault != nil {
		return r.publishDeadLetter(ctx, in, out, fault)
	}
	here, foreign := streamPosition{in.Seq, in.StoredAt.UTC()}, false
	_, err := r.updateAnswer(ctx, out, query, func(a *answer) outcome {
		if foreign = in.Session != "" && a.Session != "" && in.Session != a.Session; foreign {
			return ignored // the query id was used in another session too
		}
		if a.Heard != (streamPosition{}) && !here.isAfter(a.Heard) {
			return ignored // redelivered, perhaps after later feedback
		}
		a.Heard = here
		if a.Opinion == o {
			return recorded
		}
		a.Opinion = o
		return changed
	})
	if err == nil && foreign {
		return r.publishDeadLetter(ctx, in, out, subjects.Faultf(subjects.CodeUnknownAnswer, "the id %s was used in "+
			"another session before, so this answer cannot be rated", query))
	}
	if errors.Is(err, actor.ErrNotFound) {
		fault := subjects.Faultf(subjects.CodeUnknownAnswer, "there is no answer to %s that could be rated; conclave "+
			"session list shows the sessions, and conclave session show the answers of one", query)
		switch {
		case in.Attempt < subjects.MaxDeliver && r.mayHaveUnackedAnswers(in.Time):
			return actor.RetryAfter(fault, unknownRetryDelay(in.Attempt))
		case in.Attempt < maxUnknownAttempts:
			return fault // it is delivered again
		}
		return r.publishDeadLetter(ctx, in, out, fault)
	}
	return err
}

// parseFeedback converts feedback of the account from to an opinion. It denies accounts that are not the user's, and
// rejects an invalid query id, values out of range and empty feedback. Stars count before a thumb; 0 means that stars
// or thumb are not given. Words alone are stored with the value 0: no rule reads what they mean.
func parseFeedback(from, query string, f subjects.Feedback) (opinion, *subjects.Fault) {
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
	o := opinion{Source: subjects.RewardUser, Thumb: f.Thumb, Stars: f.Stars, Words: cleanWords(f.Words)}
	switch {
	case f.Stars > 0:
		o.Value = float64(f.Stars-3) / 2
	case f.Thumb != 0:
		o.Value = float64(f.Thumb)
	case o.Words == "":
		return malformed("it says nothing: give a thumb, stars or words")
	}
	return o, nil
}

// cleanWords returns the words without invisible characters and credentials, cut to [maxWords] bytes. Line breaks stay.
func cleanWords(words string) string {
	words = text.ReplaceHidden(strings.ToValidUTF8(words, "?"), func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return -1 // before the redaction: it could split a credential
	})
	words, _ = firewall.Redact(strings.TrimSpace(words))
	return text.Clip(words, maxWords)
}

// publishDeadLetter publishes the dead letter of feedback that no retry would help, as the runtime would after the last
// attempt: the client waits for it. The hash is that of the body as [actor.Emit] encodes it. When publishing fails it
// returns f, so that the feedback is delivered again; nil means that it is done with.
func (r *Reward) publishDeadLetter(ctx context.Context, in actor.Msg[subjects.Feedback], out actor.Out,
	f *subjects.Fault,
) error {
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
		Actor: name, Subject: text.Clip(in.Subject, subjects.MaxSubject), Code: f.Code, Reason: f.Text, Size: len(body),
		SHA256: hex.EncodeToString(sum[:]), Time: out.Now().UTC(),
	}
	if err := actor.Emit(ctx, out.WithIDs(in.Session, query), topic, letter); err != nil {
		out.LogError(fmt.Errorf("publishing a dead letter: %w", err))
		return f // it is delivered again, and after the last attempt the runtime publishes the dead letter
	}
	return nil
}
