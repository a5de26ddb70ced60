package audit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conclave/pkg/datatest"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // tests wait for files more than they compute
	goleak.VerifyTestMain(m)
}

// mode is what the stream does with one message.
type mode int

const (
	store   mode = iota // store and acknowledge
	full                // definite: no room
	refuse              // definite: rejected
	loseAck             // store, but the answer is lost
	drop                // lose the message
	late                // as drop, but the message arrives later
	dup                 // report the id as duplicate, on the first attempt only
)

var errLost = errors.New("no answer")

// stream is an audit stream in memory that knows message ids, as the real one does.
type stream struct {
	mu      sync.Mutex
	msgs    []Stored
	ids     map[string]int // message id to index in msgs
	acked   map[int]bool   // index in msgs: the writer knows that it is stored
	tried   map[string]bool
	delayed []func()
	plan    func(data []byte) mode // nil: store
	block   chan struct{}          // if set, every Append waits for it before it answers
}

func newStream(t testing.TB, dir string) *stream {
	t.Helper()
	s := &stream{ids: map[string]int{}, acked: map[int]bool{}, tried: map[string]bool{}}
	data, head, err := EncodeGenesis(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), subjects.AuditGenesis{})
	if err != nil {
		t.Fatal(err)
	}
	s.storeMessage(GenesisSubject, "genesis", data)
	s.acked[0] = true
	if dir != "" {
		if err := WriteHead(dir, head); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *stream) storeMessage(subject, id string, data []byte) {
	if _, ok := s.ids[id]; ok {
		return
	}
	s.ids[id] = len(s.msgs)
	s.msgs = append(s.msgs, Stored{Seq: uint64(len(s.msgs) + 1), Subject: subject, Data: slices.Clone(data)})
}

// deliverDelayed stores the delayed messages.
func (s *stream) deliverDelayed() {
	for _, f := range s.delayed {
		f()
	}
	s.delayed = nil
}

type accountLog struct {
	s       *stream
	account string
}

func (l accountLog) Append(ctx context.Context, chain, id string, data []byte) (bool, error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if block := s.block; block != nil {
		s.mu.Unlock()
		select {
		case <-block:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	m := store
	if s.plan != nil {
		m = s.plan(data)
	}
	first := !s.tried[id]
	s.tried[id] = true
	subject := "audit." + l.account + "." + chain
	switch m {
	case full:
		return false, fmt.Errorf("code 10077: %w", ErrFull)
	case refuse:
		return false, fmt.Errorf("no permission: %w", ErrRefused)
	case drop:
		return false, errLost
	case late:
		data = slices.Clone(data)
		s.delayed = append(s.delayed, func() { s.storeMessage(subject, id, data) })
		return false, errLost
	case loseAck:
		s.storeMessage(subject, id, data)
		return false, errLost
	case dup:
		if first {
			return true, nil
		}
	}
	at, known := s.ids[id]
	if !known {
		s.storeMessage(subject, id, data)
		at = s.ids[id]
	}
	s.acked[at] = true
	return known, nil
}

func (s *stream) source() Source { return source(s.msgs) }

func source(msgs []Stored) Source {
	var all iter.Seq2[Stored, error] = func(yield func(Stored, error) bool) {
		for _, st := range msgs {
			if !yield(st, nil) {
				return
			}
		}
	}
	last := uint64(0)
	for _, st := range msgs {
		last = max(last, st.Seq)
	}
	return Source{StreamRange: StreamRange{First: 1, Last: last}, Messages: all}
}

// planModes returns the modes of the list in order, then rest.
func planModes(rest mode, list ...mode) func([]byte) mode {
	return func([]byte) mode {
		if len(list) == 0 {
			return rest
		}
		m := list[0]
		list = list[1:]
		return m
	}
}

var testOptions = VerifyOptions{Actions: map[string][]string{
	"GATEWAY": {subjects.ActionToolCall},
	"BROKER":  {subjects.ActionToolCall},
}}

func headsDir(t testing.TB) string { return filepath.Join(datatest.Dir(t), "heads") }

func openWriter(t testing.TB, s *stream, dir, account, chain string) *Writer {
	t.Helper()
	n := 0
	opts := Options{Account: account, Dir: dir, Log: accountLog{s, account}}
	if chain != "" {
		opts.NewID = func() string {
			n++
			if n == 1 {
				return chain
			}
			return fmt.Sprintf("%s-%d", chain, n)
		}
	}
	w, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// crashWriter releases the locks, as the end of the process would, and writes nothing.
func crashWriter(w *Writer) {
	for _, a := range append(w.unlinked, w.current) {
		if a != nil {
			a.file.Close()
		}
	}
}

func beforeRecord(id string) subjects.AuditRecord {
	return subjects.AuditRecord{
		Phase: subjects.AuditBefore, ID: id, Action: "tool.call",
		Status: subjects.StatusAllowed,
	}
}

func afterRecord(id string) subjects.AuditRecord {
	return subjects.AuditRecord{Phase: subjects.AuditAfter, ID: id, Action: "tool.call", Status: subjects.StatusOK}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readHeads(t testing.TB, dir string) []subjects.AuditHead {
	t.Helper()
	h, err := ReadHeads(dir)
	must(t, err)
	return h
}

func verifySource(t testing.TB, src Source, heads []subjects.AuditHead) Report {
	t.Helper()
	r, err := Verify(t.Context(), src, heads, testOptions)
	must(t, err)
	return r
}

func wantOK(t testing.TB, r Report) {
	t.Helper()
	if !r.OK {
		t.Fatalf("not OK: %v", r.Problems)
	}
}

// recordsOf returns all records of one account in stream order.
func recordsOf(t testing.TB, msgs []Stored, account string) []subjects.AuditRecord {
	t.Helper()
	var out []subjects.AuditRecord
	for _, st := range msgs {
		owner, _, err := splitSubject(st.Subject)
		must(t, err)
		batch, err := DecodeBatch(st.Data)
		must(t, err)
		for _, d := range batch {
			if owner == account {
				out = append(out, d.Record)
			}
		}
	}
	return out
}
