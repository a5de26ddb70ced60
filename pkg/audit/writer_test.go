package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"conclave/pkg/datatest"
	"conclave/subjects"
)

func TestAppendResult(t *testing.T) {
	for _, tc := range []struct {
		name   string
		plan   func([]byte) mode
		want   error // nil: stored
		chains int   // after one more append that goes through
		first  int   // which record of the chain that one is, counting the open record
	}{
		{"stored", planModes(store), nil, 1, 3},
		{"full", planModes(store, full), ErrFull, 1, 2},
		{"refused", planModes(store, refuse), ErrRefused, 1, 2},
		{"id used by another client", planModes(store, dup), ErrDuplicate, 1, 2},
		{"answer lost once", planModes(store, loseAck), nil, 1, 3},
		{"message lost twice", planModes(store, drop, drop), nil, 1, 3},
		{"message late", planModes(store, late), nil, 1, 3},
		{"answer lost, then full: the first try may be stored", planModes(store, loseAck, full), ErrUncertain, 2, 2},
		{"message lost, then refused", planModes(store, drop, refuse), ErrUncertain, 1, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := headsDir(t)
				s := newStream(t, dir)
				w := openWriter(t, s, dir, "BROKER", "")
				s.plan = tc.plan
				if err := w.Append(t.Context(), beforeRecord("a")); !errors.Is(err, tc.want) {
					t.Fatalf("err %v, want %v", err, tc.want)
				}
				must(t, w.Append(t.Context(), beforeRecord("b")))
				s.deliverDelayed()
				wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
				must(t, w.Close(t.Context()))
				r := verifySource(t, s.source(), readHeads(t, dir))
				wantOK(t, r)
				if r.Chains != tc.chains+1 {
					t.Errorf("%d chains, want %d and the genesis", r.Chains, tc.chains)
				}
				recs := recordsOf(t, s.msgs, "BROKER")
				if last := recs[len(recs)-1]; last.ID != "b" || last.Seq != uint64(tc.first) {
					t.Errorf("last record %+v", last)
				}
			})
		})
	}
}

// During an outage every append is uncertain, and head files do not accumulate.
func TestOutageDoesNotAccumulateHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		w := openWriter(t, s, dir, "BROKER", "")
		must(t, w.Append(t.Context(), beforeRecord("first")))
		head := w.current.head
		for _, m := range []mode{drop, loseAck, late} {
			s.plan = planModes(m)
			for i := range 5 {
				if err := w.Append(t.Context(), beforeRecord(fmt.Sprint(i))); !errors.Is(err, ErrUncertain) {
					t.Fatal(err)
				}
			}
			s.deliverDelayed()
			wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
		}
		s.plan = nil
		must(t, w.Append(t.Context(), afterRecord("first")))
		recs := recordsOf(t, s.msgs, "BROKER")
		opened := recs[len(recs)-2]
		if opened.Phase != subjects.AuditOpen || !slices.Equal(opened.Links, []subjects.AuditHead{head}) {
			t.Errorf("the chain after the outage opens with %+v, want a link to %+v", opened, head)
		}
		must(t, w.Close(t.Context()))
		if h := readHeads(t, dir); len(h) != 2 {
			t.Errorf("%d heads, want the genesis and the last chain: %+v", len(h), h)
		}
		r := verifySource(t, s.source(), readHeads(t, dir))
		wantOK(t, r)
	})
}

// The first chain has nothing to link; when it is uncertain, the next chain links it at record 0.
func TestUncertainFirstChainIsLinkedAtRecordZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		w := openWriter(t, s, dir, "BROKER", "")
		for _, m := range []mode{loseAck, drop, late, loseAck} {
			s.plan = planModes(m)
			if err := w.Append(t.Context(), beforeRecord("a")); !errors.Is(err, ErrUncertain) {
				t.Fatal(err)
			}
		}
		s.plan = nil
		must(t, w.Append(t.Context(), beforeRecord("b")))
		s.deliverDelayed()
		must(t, w.Close(t.Context()))
		wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
	})
}

func TestFullStoreDoesNotStopOpen(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	old := openWriter(t, s, dir, "BROKER", "b1")
	must(t, old.Append(t.Context(), beforeRecord("a")))
	must(t, old.Close(t.Context()))

	s.plan = planModes(full)
	for range 3 {
		w := openWriter(t, s, dir, "BROKER", "")
		if err := w.Append(t.Context(), beforeRecord("b")); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(readHeads(t, dir), func(h subjects.AuditHead) bool {
			return h.Chain == "b1" && h.Seq == 2
		}) {
			t.Fatal("the old head is gone before anything links it")
		}
		must(t, w.Close(t.Context()))
	}
	s.plan = nil
	w := openWriter(t, s, dir, "BROKER", "b2")
	must(t, w.Append(t.Context(), beforeRecord("c")))
	must(t, w.Close(t.Context()))
	if h := readHeads(t, dir); len(h) != 2 {
		t.Fatalf("heads %+v", h)
	}
	wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
}

func TestReopenAfterCrash(t *testing.T) {
	for _, tc := range []struct {
		name  string
		plan  func([]byte) mode // for the append before the crash
		links []subjects.AuditHead
	}{
		{"nothing sent", nil, nil},
		{"acknowledged", planModes(store), []subjects.AuditHead{{Account: "BROKER", Chain: "b1", Seq: 2}}},
		{"refused", planModes(full), []subjects.AuditHead{{Account: "BROKER", Chain: "b1"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := headsDir(t)
			s := newStream(t, dir)
			w := openWriter(t, s, dir, "BROKER", "b1")
			if s.plan = tc.plan; s.plan != nil {
				_ = w.Append(t.Context(), beforeRecord("a"))
			}
			crashWriter(w)
			s.plan = nil
			w = openWriter(t, s, dir, "BROKER", "b2")
			must(t, w.Append(t.Context(), beforeRecord("b")))
			crashWriter(w)
			recs := recordsOf(t, s.msgs, "BROKER")
			links := recs[len(recs)-2].Links
			for i := range links {
				links[i].Hash = ""
			}
			if !slices.Equal(links, tc.links) {
				t.Errorf("links %+v, want %+v", links, tc.links)
			}
			r := verifySource(t, s.source(), readHeads(t, dir))
			wantOK(t, r)
			if _, err := os.Stat(filepath.Join(dir, headFileName("BROKER", "b1"))); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the old head is still there: %v", err)
			}
		})
	}
}

// A crash after the stream has stored a message and before the anchor moved leaves records beyond the linked head.
func TestCrashBeforeAnchorLeavesUnacknowledgedRecords(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	w := openWriter(t, s, dir, "BROKER", "b1")
	must(t, w.Append(t.Context(), beforeRecord("a")))
	head := w.current.head
	must(t, w.Append(t.Context(), beforeRecord("b")))
	_, err := w.current.file.WriteAt(make([]byte, slotSize), 0) // the slot of the second append
	must(t, err)
	if h := readHeads(t, dir); h[1] != head {
		t.Fatalf("heads %+v, want %+v", h, head)
	}
	crashWriter(w)
	w = openWriter(t, s, dir, "BROKER", "b2")
	must(t, w.Append(t.Context(), beforeRecord("c")))
	crashWriter(w)
	r := verifySource(t, s.source(), readHeads(t, dir))
	wantOK(t, r)
	if r.Unfinished != 2 || r.Pending != 1 {
		t.Errorf("unfinished %d, pending %d", r.Unfinished, r.Pending)
	}
}

func TestOpenSkipsHeadOfLiveWriter(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	one := openWriter(t, s, dir, "BROKER", "b1")
	idle := openWriter(t, s, dir, "BROKER", "b2") // its file is still empty
	must(t, one.Append(t.Context(), beforeRecord("a")))
	two := openWriter(t, s, dir, "BROKER", "b3")
	must(t, two.Append(t.Context(), beforeRecord("b")))
	must(t, idle.Append(t.Context(), beforeRecord("c")))
	must(t, one.Append(t.Context(), afterRecord("a")))
	for _, w := range []*Writer{one, two, idle} {
		must(t, w.Close(t.Context()))
	}
	for _, rec := range recordsOf(t, s.msgs, "BROKER") {
		if len(rec.Links) > 0 {
			t.Errorf("%s links a chain that lives: %+v", rec.Chain, rec.Links)
		}
	}
	wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
}

func TestAnchorWriteFailureIsUncertain(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	w := openWriter(t, s, dir, "BROKER", "b1")
	must(t, w.Append(t.Context(), beforeRecord("a")))
	must(t, w.current.file.Close())
	if err := w.Append(t.Context(), beforeRecord("b")); !errors.Is(err, ErrUncertain) {
		t.Fatalf("acknowledged without an anchor: %v", err)
	}
	// Its lock and its last anchor are out of reach now: no new chain may pretend otherwise.
	if err := w.Append(t.Context(), beforeRecord("c")); err == nil {
		t.Fatal("acknowledged although the old end cannot be made durable")
	}
}

func TestPanickingLogIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		w := openWriter(t, s, dir, "BROKER", "")
		s.plan = func([]byte) mode { panic("broken") }
		if err := w.Append(t.Context(), beforeRecord("a")); !errors.Is(err, ErrUncertain) {
			t.Fatal(err)
		}
		s.plan = nil
		must(t, w.Append(t.Context(), beforeRecord("b")))
		must(t, w.Close(t.Context()))
		wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
	})
}

func TestAppendRejectsInvalidRecord(t *testing.T) {
	dir := headsDir(t)
	s := newStream(t, dir)
	w := openWriter(t, s, dir, "BROKER", "")
	long := make([]byte, 16<<10)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	closed := openWriter(t, s, dir, "GATEWAY", "")
	must(t, closed.Close(t.Context()))
	must(t, closed.Close(t.Context()))
	for _, tc := range []struct {
		name string
		w    *Writer
		ctx  context.Context
		rec  subjects.AuditRecord
	}{
		{"zero writer", &Writer{}, t.Context(), beforeRecord("a")},
		{"closed", closed, t.Context(), beforeRecord("a")},
		{"ctx has ended", w, cancelled, beforeRecord("a")},
		{"no phase", w, t.Context(), subjects.AuditRecord{ID: "a", Action: "x"}},
		{"opens a chain itself", w, t.Context(), subjects.AuditRecord{ID: "a", Action: "x", Phase: subjects.AuditOpen}},
		{"no id", w, t.Context(), subjects.AuditRecord{Phase: subjects.AuditBefore, Action: "x"}},
		{"no action", w, t.Context(), subjects.AuditRecord{Phase: subjects.AuditBefore, ID: "x"}},
		{"genesis", w, t.Context(), subjects.AuditRecord{
			ID: "a", Action: "x", Phase: subjects.AuditBefore,
			Genesis: &subjects.AuditGenesis{},
		}},
		{"links", w, t.Context(), subjects.AuditRecord{
			ID: "a", Action: "x", Phase: subjects.AuditBefore,
			Links: make([]subjects.AuditHead, 1),
		}},
		{"too long", w, t.Context(), subjects.AuditRecord{
			ID: "a", Action: "x", Phase: subjects.AuditBefore,
			Reason: string(long),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.w.Append(tc.ctx, tc.rec); err == nil {
				t.Fatal("accepted")
			}
		})
	}
	if len(s.msgs) != 1 {
		t.Errorf("%d messages stored", len(s.msgs)-1)
	}
	must(t, (&Writer{}).Close(t.Context()))
	must(t, w.Close(t.Context()))
}

func TestOpenRejectsInvalidOptions(t *testing.T) {
	log := accountLog{account: "BROKER"}
	shared := headsDir(t)
	must(t, os.Mkdir(shared, 0o700))
	must(t, os.Chmod(shared, 0o770))
	torn := headsDir(t)
	must(t, os.Mkdir(torn, 0o700))
	must(t, os.WriteFile(filepath.Join(torn, "BROKER.b1.head"), []byte("half a he"), 0o600))
	for _, tc := range []struct {
		name string
		opts Options
	}{
		{"no log", Options{Account: "BROKER", Dir: headsDir(t)}},
		{"no folder", Options{Account: "BROKER", Log: log}},
		{"no account", Options{Dir: headsDir(t), Log: log}},
		{"account with a dot", Options{Account: "BRO.KER", Dir: headsDir(t), Log: log}},
		{"account that leaves the folder", Options{Account: "../BROKER", Dir: headsDir(t), Log: log}},
		{"account of the genesis", Options{Account: "AUDIT", Dir: headsDir(t), Log: log}},
		{"retry longer than the stream remembers ids", Options{
			Account: "BROKER", Dir: headsDir(t), Log: log,
			Retry: time.Hour,
		}},
		{"folder that others write", Options{Account: "BROKER", Dir: shared, Log: log}},
		{"old head that cannot be read", Options{Account: "BROKER", Dir: torn, Log: log}},
		{"id that is no token", Options{Account: "BROKER", Dir: headsDir(t), Log: log, NewID: func() string {
			return "a.b"
		}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if w, err := Open(t.Context(), tc.opts); err == nil {
				w.Close(t.Context())
				t.Fatal("opened")
			}
		})
	}
}

func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		s.block = make(chan struct{})
		w := openWriter(t, s, dir, "BROKER", "")
		const callers = 3*maxBatchRecords + 1
		errs := make(chan error, callers)
		go func() { errs <- w.Append(t.Context(), beforeRecord("leader")) }()
		synctest.Wait()
		for i := range callers - 1 {
			go func() { errs <- w.Append(t.Context(), beforeRecord(fmt.Sprint(i))) }()
		}
		synctest.Wait() // all wait for the one message
		close(s.block)
		for range callers {
			must(t, <-errs)
		}
		if got := len(s.msgs) - 1; got != 4 {
			t.Errorf("%d messages for %d callers, want the leader's and three full ones", got, callers)
		}
		must(t, w.Close(t.Context()))
		wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
	})
}

func TestGroupCommitBoundsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		s.block = make(chan struct{})
		w := openWriter(t, s, dir, "BROKER", "")
		errs := make(chan error)
		go func() { errs <- w.Append(t.Context(), beforeRecord("leader")) }()
		synctest.Wait()
		big := beforeRecord("big")
		big.Reason = string(make([]byte, maxRecord-1000))
		const callers = 40
		for range callers {
			go func() { errs <- w.Append(t.Context(), big) }()
		}
		synctest.Wait()
		close(s.block)
		for range callers + 1 {
			must(t, <-errs)
		}
		for _, st := range s.msgs {
			if len(st.Data) > maxBatchBytes {
				t.Errorf("a message of %d bytes", len(st.Data))
			}
		}
		must(t, w.Close(t.Context()))
	})
}

// A caller whose context ends must not disturb the others, at any position of the queue.
func TestCancelledCallersDoNotDisturbOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		block := make(chan struct{})
		s.block = block
		w := openWriter(t, s, dir, "BROKER", "")
		call := func(id string) (context.CancelFunc, chan error) {
			ctx, cancel := context.WithCancel(t.Context())
			answer := make(chan error, 1)
			go func() { answer <- w.Append(ctx, beforeRecord(id)) }()
			synctest.Wait()
			return cancel, answer
		}
		cancelLeader, leader := call("leader")
		cancelNext, next := call("next")
		_, patient := call("patient")

		cancelLeader() // sees its message through all the same
		synctest.Wait()
		select {
		case err := <-leader:
			t.Fatalf("the leader left its message alone: %v", err)
		default:
		}
		cancelNext()
		if err := <-next; !errors.Is(err, context.Canceled) || errors.Is(err, ErrUncertain) {
			t.Fatalf("not sent yet, and cancelled: %v", err)
		}
		s.mu.Lock()
		s.block = make(chan struct{}) // for the next message
		s.mu.Unlock()
		close(block)
		must(t, <-leader)
		synctest.Wait()

		// patient leads the second message now; these two travel in the third.
		_, fourth := call("fourth")
		cancelFifth, fifth := call("fifth")
		s.mu.Lock()
		block, s.block = s.block, make(chan struct{})
		s.mu.Unlock()
		close(block)
		must(t, <-patient)
		synctest.Wait()
		cancelFifth()
		if err := <-fifth; !errors.Is(err, ErrUncertain) || !errors.Is(err, context.Canceled) {
			t.Fatalf("sent, and cancelled: %v", err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := w.Close(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("closed under a message in flight: %v", err)
		}
		close(s.block)
		must(t, <-fourth)
		must(t, w.Close(t.Context()))

		var ids []string
		for _, rec := range recordsOf(t, s.msgs, "BROKER")[1:] {
			ids = append(ids, rec.ID)
		}
		if want := []string{"leader", "patient", "fourth", "fifth"}; !slices.Equal(ids, want) {
			t.Errorf("stored %v, want %v", ids, want)
		}
		wantOK(t, verifySource(t, s.source(), readHeads(t, dir)))
	})
}

func TestConcurrentAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := headsDir(t)
		s := newStream(t, dir)
		rng := rand.New(rand.NewPCG(1, 2))
		down := 0 // messages that nobody answers
		s.plan = func([]byte) mode {
			if down > 0 {
				down--
				return []mode{drop, loseAck, late}[rng.IntN(3)]
			}
			switch rng.IntN(20) {
			case 0:
				return drop
			case 1:
				return loseAck
			case 2:
				return late
			case 3:
				return full
			case 4:
				s.deliverDelayed()
			case 5:
				if rng.IntN(5) == 0 {
					down = 20 // long enough to give up
					return drop
				}
			}
			return store
		}
		w := openWriter(t, s, dir, "BROKER", "")
		var (
			wg     sync.WaitGroup
			mu     sync.Mutex
			acked  = map[string]bool{}
			failed int
		)
		const goroutines, acts = 64, 40
		for g := range goroutines {
			wg.Go(func() {
				for i := range acts {
					id := fmt.Sprintf("%d-%d", g, i)
					for _, rec := range []subjects.AuditRecord{beforeRecord(id), afterRecord(id)} {
						err := w.Append(t.Context(), rec)
						mu.Lock()
						if err == nil {
							acked[rec.Phase+id] = true
						} else {
							failed++
						}
						mu.Unlock()
						if err != nil {
							break
						}
					}
				}
			})
		}
		wg.Wait()
		must(t, w.Close(t.Context()))
		s.deliverDelayed()
		stored := map[string]int{}
		for _, rec := range recordsOf(t, s.msgs, "BROKER") {
			stored[rec.Phase+rec.ID]++
		}
		for key := range acked {
			if stored[key] != 1 {
				t.Errorf("%s was acknowledged and is stored %d times", key, stored[key])
			}
		}
		r := verifySource(t, s.source(), readHeads(t, dir))
		wantOK(t, r)
		if len(acked) == 0 || failed == 0 || r.Chains < 3 {
			t.Errorf("%d acknowledged, %d failed, %d chains: the test has lost its teeth", len(acked), failed, r.Chains)
		}
		t.Logf("%d acknowledged, %d failed, %d chains, %d messages", len(acked), failed, r.Chains, r.Messages)
	})
}

// inBubble hides the deadline of the test, which a synctest bubble must not read.
type inBubble struct{ rapid.TB }

// simulate runs writers through random failures and crashes.
func simulate(t *testing.T, rt *rapid.T) (*stream, []subjects.AuditHead) {
	dir := datatest.Dir(t)
	s := newStream(t, dir)
	writers := map[string]*Writer{}
	started := map[string][]string{} // acts that the running writer has begun
	acked := map[string]bool{}
	n := 0
	account := rapid.SampledFrom(slices.Sorted(maps.Keys(testOptions.Actions)))
	anyMode := rapid.SampledFrom([]mode{store, full, refuse, loseAck, drop, late, dup})
	stop := func(a string, end func(w *Writer)) {
		if w := writers[a]; w != nil {
			end(w)
			delete(writers, a)
			delete(started, a)
		}
	}
	append1 := func(rt *rapid.T) {
		a := account.Draw(rt, "account")
		if writers[a] == nil {
			writers[a] = openWriter(t, s, dir, a, "")
		}
		s.plan = planModes(rapid.SampledFrom([]mode{store, store, drop, loseAck, late}).Draw(rt, "rest"),
			rapid.SliceOfN(anyMode, 0, 3).Draw(rt, "modes")...)
		rec := beforeRecord(fmt.Sprintf("%s-%d", a, n))
		n++
		if ids := started[a]; len(ids) > 0 && rapid.Bool().Draw(rt, "after") {
			rec = afterRecord(ids[0])
			started[a] = ids[1:]
		}
		if err := writers[a].Append(t.Context(), rec); err == nil {
			acked[rec.Phase+rec.ID] = true
			if rec.Phase == subjects.AuditBefore {
				started[a] = append(started[a], rec.ID)
			}
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"append":  append1,
		"append2": append1,
		"deliver": func(*rapid.T) { s.deliverDelayed() },
		"crash":   func(rt *rapid.T) { stop(account.Draw(rt, "account"), crashWriter) },
		"close": func(rt *rapid.T) {
			stop(account.Draw(rt, "account"), func(w *Writer) { must(t, w.Close(t.Context())) })
		},
		"": func(rt *rapid.T) {
			r := verifySource(t, s.source(), readHeads(t, dir))
			if !r.OK {
				rt.Fatalf("%v", r.Problems)
			}
			unheard := 0
			for i, st := range s.msgs {
				if batch, err := DecodeBatch(st.Data); err == nil && !s.acked[i] {
					unheard += len(batch)
				}
			}
			if r.Unacknowledged != unheard {
				rt.Fatalf("%d records unacknowledged, want %d", r.Unacknowledged, unheard)
			}
		},
	})
	for a := range testOptions.Actions {
		stop(a, crashWriter)
		for _, rec := range recordsOf(t, s.msgs, a) {
			delete(acked, rec.Phase+rec.ID)
		}
	}
	if len(acked) > 0 {
		rt.Fatalf("acknowledged but not stored: %v", acked)
	}
	return s, readHeads(t, dir)
}

func TestRandomFailuresVerify(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) { simulate(t, rt) })
	})
}

func TestAnyMutationIsDetected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			s, heads := simulate(t, rt)
			msgs := slices.Clone(s.msgs)
			at := rapid.IntRange(0, len(msgs)-1).Draw(rt, "at")
			renumber := rapid.Bool().Draw(rt, "renumber")
			if renumber && !s.acked[at] {
				at = 0 // nobody can tell that a message is gone which nobody knows to be there
			}
			switch rapid.SampledFrom([]string{"drop", "swap", "flip"}).Draw(rt, "mutation") {
			case "drop":
				msgs = slices.Delete(msgs, at, at+1)
			case "swap":
				to := rapid.IntRange(0, len(msgs)-1).Draw(rt, "with")
				if renumber && msgs[to].Subject != msgs[at].Subject || to == at {
					rt.Skip() // renumbered, the order between chains leaves no trace
				}
				msgs[at], msgs[to] = msgs[to], msgs[at]
			case "flip":
				if !s.acked[at] {
					at = 0
				}
				data := slices.Clone(msgs[at].Data)
				data[rapid.IntRange(0, len(data)-1).Draw(rt, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				msgs[at].Data = data
			}
			src := source(msgs)
			src.Last = uint64(len(s.msgs)) // what the stream said before
			if renumber {
				for i := range msgs {
					msgs[i].Seq = uint64(i + 1)
				}
				src = source(msgs)
			}
			if r := verifySource(t, src, heads); r.OK {
				rt.Fatal("not noticed")
			}
		})
	})
}

type nullLog struct{}

func (nullLog) Append(context.Context, string, string, []byte) (bool, error) { return false, nil }

func BenchmarkAppend(b *testing.B) {
	rec := beforeRecord("0123456789abcdef0123456789")
	rec.AgentID, rec.AgentType, rec.Lineage = "GENERATOR", "assistant", []string{"GENERATOR"}
	rec.Tool, rec.ParamsHash = "web_search", Hash(nil)
	rec.Session, rec.Query = "s-0123456789", "q-0123456789"
	start := func(b *testing.B) *Writer {
		w, err := Open(b.Context(), Options{Account: "BROKER", Dir: headsDir(b), Log: nullLog{}})
		must(b, err)
		must(b, w.Append(b.Context(), rec))
		b.ReportAllocs()
		b.Cleanup(func() { w.Close(context.Background()) })
		return w
	}
	b.Run("alone", func(b *testing.B) {
		w := start(b)
		for b.Loop() {
			must(b, w.Append(b.Context(), rec))
		}
	})
	b.Run("64 callers", func(b *testing.B) {
		w := start(b)
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				must(b, w.Append(b.Context(), rec))
			}
		})
	})
}
