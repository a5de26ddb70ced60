package respondent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/respondent/respondenttest"
	"conclave/subjects"
)

// testRecord is the record of a respondent with a place for the mark that its answer is published, and one event.
type testRecord struct {
	QueryID   string    `json:"query_id"`
	Owner     string    `json:"owner"`
	Stalled   int       `json:"stalled"`
	Written   time.Time `json:"written"`
	Answer    *Pending  `json:"answer"`
	Published bool      `json:"published"`
	Edits     int       `json:"edits"`
	Event     string    `json:"event"` // id of the event that is not published yet, "" = none
}

// Pending implements [actor.Outbox].
func (r *testRecord) Pending() (out []actor.Event) {
	if topic, err := subjects.DeliberationEvent.With(r.QueryID); err == nil && r.Event != "" {
		out = append(out, actor.NewEvent("deliberation", topic, r.Event, subjects.Deliberation{QueryID: r.QueryID}))
	}
	return out
}

// MarkPublished implements [actor.Outbox].
func (r *testRecord) MarkPublished() { r.Event = "" }

var testBucket = actor.Bucket[testRecord]{Name: subjects.StateBucket(subjects.Committee)}

// testWork answers "yes", and a failure with its cause.
type testWork struct {
	*Turn[testRecord]
	appended *int
}

func (w testWork) Load(ctx context.Context, _ bool) (v actor.Versioned[testRecord], done bool, err error) {
	v, err = testBucket.Load(ctx, w.Out, "turn.q1")
	return v, false, err
}

func (w testWork) Claim(*testRecord, bool)                         {}
func (w testWork) Run(context.Context) error                       { return nil }
func (w testWork) Finish(*testRecord) bool                         { return true }
func (w testWork) Shrink(*testRecord) bool                         { return false }
func (w testWork) Enter(context.Context, Stage)                    {}
func (w testWork) Append(_ context.Context, _ Pending) (err error) { *w.appended++; return nil }

func (w testWork) Respond(_ context.Context, cause error) (Pending, func(*testRecord), error) {
	r := subjects.Response{SessionID: "s1", QueryID: "q1", Query: "?", Answer: "yes", RespondentID: subjects.Committee}
	if cause != nil {
		r.Answer, r.Error = "", &subjects.Fault{Code: subjects.CodeInternal, Text: cause.Error()}
	}
	return Pending{Response: r}, func(r *testRecord) { r.Event = "e1" }, nil
}

// storeRecord stores what an earlier attempt left.
func storeRecord(t *testing.T, rec *actortest.Recorder, r testRecord) {
	t.Helper()
	data, err := actor.EncodeValue(&r)
	if err == nil {
		_, err = rec.Out().Store(testBucket.Name).Put(t.Context(), "turn.q1", data, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// deliver delivers the question q1 to a new process.
func deliver(t *testing.T, rec *actortest.Recorder, attempt int) (appended int, err error) {
	t.Helper()
	k := &Respondent[testRecord]{
		Account: subjects.Committee, Tokens: 1, Bucket: testBucket, Patience: 10 * time.Millisecond,
		Key: func(_, query string) string { return "turn." + query },
		Fields: func(r *testRecord) Fields {
			return Fields{&r.QueryID, &r.Owner, &r.Stalled, &r.Written, &r.Answer, &r.Published}
		},
		New: func(t *Turn[testRecord]) Work[testRecord] { return testWork{t, &appended} },
	}
	ctx := t.Context()
	if rec.Steps != nil {
		ctx = actor.WithSteps(ctx, rec.Steps)
	}
	err = k.OnTurn(ctx, actor.Msg[subjects.Query]{
		Tokens: []string{"s1"}, Attempt: attempt, Body: subjects.Query{SessionID: "s1", QueryID: "q1", Query: "?"},
	}, rec.Out())
	return appended, err
}

// countResponses counts the published responses, and those with a fault.
func countResponses(rec *actortest.Recorder) (all, faults int) {
	for _, m := range rec.Published() {
		if m.Subject == subjects.ResponseGeneration.Name {
			all++
			if strings.Contains(m.Body, `"code":`) {
				faults++
			}
		}
	}
	return all, faults
}

func storedAnswer() *Pending {
	return &Pending{Response: subjects.Response{QueryID: "q1", Answer: "yes"}, ResponseID: "r1", DialogID: "d1"}
}

// An answer that the record calls published is not published again: the stream may have forgotten its ids.
func TestPublishedAnswerIsNotPublishedAgain(t *testing.T) {
	t.Parallel()
	for _, published := range []bool{false, true} {
		rec := &actortest.Recorder{}
		storeRecord(t, rec, testRecord{QueryID: "q1", Answer: storedAnswer(), Published: published})
		appended, err := deliver(t, rec, 2)
		if all, _ := countResponses(rec); err != nil || appended != 1 || (all == 0) != published {
			t.Errorf("published %v: %d responses, %d times appended, %v", published, all, appended, err)
		}
	}
}

// The last attempt publishes no failure when the record that it could not claim has an answer: it may be published.
func TestNoFailureBesideAStoredAnswer(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	storeRecord(t, rec, testRecord{QueryID: "q1", Answer: storedAnswer()})
	rec.FailStore = errors.New("no space")
	_, err := deliver(t, rec, subjects.MaxDeliver)
	if all, _ := countResponses(rec); err == nil || all != 0 {
		t.Errorf("%d responses, %v", all, err)
	}
}

// An answer that is stored stays when an event of its record could not be published at the last attempt.
func TestStoredAnswerIsKept(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	failed := false
	rec.FailPublish = func(subject string) error {
		if strings.HasPrefix(subject, "committee.deliberation.") && !failed {
			failed = true
			return errors.New("no reply")
		}
		return nil
	}
	appended, err := deliver(t, rec, subjects.MaxDeliver)
	if all, faults := countResponses(rec); err != nil || !failed || all != 1 || faults != 0 || appended != 1 {
		t.Errorf("%d responses, %d faults, %d times appended, failed %v, %v", all, faults, appended, failed, err)
	}
}

// The wait for another process ends when that writes nothing for Patience, whatever its clock says.
func TestOtherOwnerWithAnotherClock(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	storeRecord(t, rec, testRecord{QueryID: "q1", Owner: "other", Written: time.Now().Add(time.Hour)})
	k := &Respondent[testRecord]{
		Patience: 10 * time.Millisecond,
		New:      func(t *Turn[testRecord]) Work[testRecord] { return testWork{t, new(int)} },
	}
	turn := k.newTurn("s1", subjects.Query{QueryID: "q1"}, rec.Out())
	if err := turn.awaitOtherOwner(t.Context()); actortest.Code(err) != subjects.CodeBusy {
		t.Error(err)
	}
}

// A turn that is published and appended has been answered, also when its last write fails.
func TestFailedLastWriteIsLogged(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	rec.Steps = func(step string) {
		if step == "turn.finish/before" {
			rec.FailStore = errors.New("no space")
		}
	}
	appended, err := deliver(t, rec, subjects.MaxDeliver)
	if all, faults := countResponses(rec); err != nil || all != 1 || faults != 0 || appended != 1 ||
		len(rec.Logged()) == 0 {
		t.Errorf("%d responses, %d faults, %d times appended, logged %v, %v", all, faults, appended, rec.Logged(), err)
	}
}

// Checkpoints of work that is done in parallel are all in the record, and each event is published once, also when
// acknowledgements of some are lost.
func TestParallelCheckpoints(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 20
	for at := range 4 {
		rec := &actortest.Recorder{}
		out, lost := respondenttest.LoseAcknowledgement(rec.Out(), at)
		k := &Respondent[testRecord]{
			Account: subjects.Committee, Bucket: testBucket,
			Key: func(_, query string) string { return "turn." + query },
			Fields: func(r *testRecord) Fields {
				return Fields{&r.QueryID, &r.Owner, &r.Stalled, &r.Written, &r.Answer, &r.Published}
			},
			New: func(t *Turn[testRecord]) Work[testRecord] { return testWork{t, new(int)} },
		}
		turn := k.newTurn("s1", subjects.Query{QueryID: "q1"}, out)
		if done, err := turn.claim(t.Context()); done || err != nil {
			t.Fatal(done, err)
		}
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for n := range each {
					turn.Edit(func(r *testRecord) { r.Edits++ })
					if err := turn.Checkpoint(t.Context(), "turn.step", func(r *testRecord) {
						r.Edits++
						r.Event = fmt.Sprintf("e%d-%d", w, n)
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		stored, err := testBucket.Load(t.Context(), rec.Out(), "turn.q1")
		if err != nil || stored.Value.Edits != 2*writers*each || turn.Record().Edits != 2*writers*each || !lost() {
			t.Errorf("%d edits are stored of %d, %v", stored.Value.Edits, 2*writers*each, err)
		}
		published := map[string]int{}
		for _, m := range rec.Published() {
			published[m.ID]++
		}
		for id, n := range published {
			if n != 1 {
				t.Errorf("%s was published %d times", id, n)
			}
		}
		if len(published) != writers*each {
			t.Errorf("%d events of %d", len(published), writers*each)
		}
	}
}
