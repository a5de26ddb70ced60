package memory

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// TestEventsAreRetriedUntilAudited: an answer is not dead-lettered while the audit is unavailable: it is retried, and
// stored once.
func TestEventsAreRetriedUntilAudited(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.m.started.Store(true)
	w.mu.Lock()
	w.auditErrors[subjects.AuditBefore] = errors.New("away")
	w.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		done <- w.deliverAnswer("generator", subjects.Response{
			SessionID: "s1", QueryID: "q1", Query: "What is the cat called?", Answer: "Momo.",
			Labels: &subjects.Labels{Trust: subjects.Trusted},
		})
	}()
	for len(w.rec.Logged()) == 0 { // it has failed once, and waits
		select {
		case err := <-done:
			t.Fatalf("it gave up: %v", err)
		default:
		}
	}
	w.mu.Lock()
	delete(w.auditErrors, subjects.AuditBefore)
	w.mu.Unlock()
	if err := <-done; err != nil || w.count() != 1 {
		t.Errorf("%v, %d entries", err, w.count())
	}
}

// TestDisabledMemoryStoresNothing: a disabled memory consumes events without storing them, so that enabling it does not
// store them later.
func TestDisabledMemoryStoresNothing(t *testing.T) {
	t.Parallel()
	w, dir := newFixture(t), t.TempDir()
	m := Open(t.Context(), Config{}, dir, w, w.hash)
	_, err := w.rec.Deliver(t, m, actortest.Message{
		Subject: "from.generator.response.generation",
		Body:    subjects.Response{QueryID: "q1", Query: "x", Answer: "y"},
	})
	if err != nil {
		t.Error(err)
	}
	_, err = w.rec.Deliver(t, m, actortest.Message{
		Subject:  "ctl.user.memory.admin",
		Deadline: time.Now().Add(time.Minute), Body: subjects.MemoryAdminRequest{Op: "list"},
	})
	if actortest.Code(err) != subjects.CodeUnavailable || !strings.Contains(err.Error(), "memory.yaml") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Dir(DatabaseFile(dir))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it made %s", DatabaseFile(dir))
	}
}

// TestRejectedEmbeddingDoesNotBlockBackfill: a text that the embedding model rejects does not keep the others from
// being embedded.
func TestRejectedEmbeddingDoesNotBlockBackfill(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	good := w.embed
	w.embed = func([]string) (subjects.EmbedReply, error) { return subjects.EmbedReply{}, errors.New("away") }
	for _, word := range []string{"apple", "poison", "pear", "plum", "cherry"} {
		w.storeFact("The basket holds one " + word + ".")
	}
	w.embed = func(texts []string) (subjects.EmbedReply, error) {
		if slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "poison") }) {
			return subjects.EmbedReply{}, errors.New("refused")
		}
		return good(texts)
	}
	if n, err := w.m.backfillBatch(t.Context(), w.rec.Out()); n != 4 || err != nil {
		t.Fatalf("%d got vectors, %v", n, err)
	}
	if n, err := w.m.backfillBatch(t.Context(), w.rec.Out()); n != 0 || err != nil {
		t.Errorf("the refused one is tried at once again: %d, %v", n, err)
	}
	if left, err := w.db.CountUnembedded(t.Context(), w.m.search.model); left != 1 || err != nil {
		t.Errorf("%d wait, %v", left, err)
	}
	w.embed = good
}

// TestRejectedEntryIsNotRetriedForever: the only waiting entry is deferred when the model rejects it, for a longer time
// after each rejection, until nothing but a change of the entry or of the model makes another attempt.
func TestRejectedEntryIsNotRetriedForever(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	good, requests := w.embed, 0
	w.setEmbedder(func([]string) (subjects.EmbedReply, error) {
		requests++
		return subjects.EmbedReply{}, errors.New("refused")
	})
	id := w.storeFact("The basket holds one poison.")
	requests = 0
	attempts := func(runs int, wait time.Duration) int {
		before := requests
		for range runs {
			if n, err := w.m.backfillBatch(t.Context(), w.rec.Out()); n != 0 || err != nil {
				t.Fatalf("%d got vectors, %v", n, err)
			}
			w.advance(wait)
		}
		return requests - before
	}
	if n := attempts(10, time.Minute); n > 2 { // once in the batch, once alone
		t.Errorf("%d requests in ten minutes", n)
	}
	if n := attempts(100, 10*time.Hour); n > 2*maxRejections {
		t.Errorf("%d requests in a thousand hours", n)
	}
	if n := attempts(10, 10*time.Hour); n != 0 {
		t.Errorf("%d more requests after it was given up", n)
	}
	w.setEmbedder(good)
	edit := subjects.MemoryAdminRequest{
		Op: "edit", IDs: []string{id},
		Edit: &subjects.MemoryEdit{Name: new("The basket")},
	}
	if _, err := w.admin(edit); err != nil {
		t.Fatal(err)
	}
	if _, err := w.m.backfillBatch(t.Context(), w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	if left, err := w.db.CountUnembedded(t.Context(), ""); left != 0 || err != nil {
		t.Errorf("the edited entry still waits: %d, %v", left, err)
	}
}

// TestForgetDeletesSupersededEntries: forgetting an entry also deletes the entries it superseded, which hold the same
// words.
func TestForgetDeletesSupersededEntries(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	first := w.storeFact("The spare key lies under the blue pot.")
	again := w.storeFact("The spare key lies under the blue pot.")
	if first == again || w.entry(again).SupersededBy != first {
		t.Fatalf("not merged: %s %s", first, again)
	}
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{first}}); err != nil ||
		w.count() != 0 {
		t.Errorf("%v, %d entries are left", err, w.count())
	}
}

// TestUntrustedDuplicatesDoNotHideTrusted: a recall never shows an untrusted entry instead of the user's own of the
// same name.
func TestUntrustedDuplicatesDoNotHideTrusted(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	own := w.storeAnswer("q1", "Where does Ana live?", "Ana lives in Lisbon.")
	if err := w.deliverAnswer("generator", subjects.Response{
		SessionID: "s2", QueryID: "q2", Query: "Where does Ana live?", Answer: "Ana lives in Porto.",
		Labels: &subjects.Labels{Trust: subjects.Untrusted},
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.recallIDs("Where does Ana live?"); !slices.Contains(got, own) {
		t.Errorf("recalls %v, without %s", got, own)
	}
}
