package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// TB is what [New] needs of a test.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Server is a model server on a port of its own on the loopback.
type Server struct {
	URL    string // without a slash at the end
	Engine *Engine

	http   *http.Server
	ctx    context.Context // ends when the server closes, so that nothing hangs on
	stop   context.CancelFunc
	served chan struct{}

	slots chan struct{} // nil = no limit
	each  time.Duration
	queue int

	mu       sync.Mutex
	models   []Model
	requests []Seen
	counts   Counts
	waiting  int
	looked   bool // somebody asked for Err
}

// Model is a model as the server describes it.
type Model struct {
	Name       string
	Family     string
	Parameters string // "12B"
	Size       int64
	Window     int // context length
	Tools      bool
	Thinking   bool
	Vision     bool
	Embedding  bool // and no chat
	Loaded     bool
	RemoteHost string
	Dimensions int // of its vectors; 0 = 768
}

// Counts is what the server did.
type Counts struct {
	Started   int // inferences begun
	Finished  int // and sent to the end
	Cancelled int // the client went away, waiting ones too
	Busy      int // refused because the queue was full
	Parallel  int // most at the same time
	Running   int // right now
}

// Option changes a server before it starts.
type Option func(*Server, *http.ServeMux)

// Front is a protocol besides Ollama's, which is always spoken.
type Front func(s *Server, mux *http.ServeMux)

// With adds a protocol.
func With(f Front) Option { return func(s *Server, mux *http.ServeMux) { f(s, mux) } }

// Models adds models, or describes those of the script otherwise. Without it the server has the models of its script,
// all of which take tools and think, and the embedder nomic-embed-text.
func Models(all ...Model) Option {
	return func(s *Server, _ *http.ServeMux) {
		for _, m := range all {
			s.SetModel(m)
		}
	}
}

// Slots lets n chats run at the same time, each for the given time before its answer. Others wait; when more than queue wait, the
// server is busy.
func Slots(n int, each time.Duration, queue int) Option {
	return func(s *Server, _ *http.ServeMux) {
		s.slots, s.each, s.queue = make(chan struct{}, n), each, queue
	}
}

// New starts a server for a test and closes it at its end. What did not fit the script fails the test then, unless the
// test has asked for [Server.Err] itself.
func New(t TB, s Script, opts ...Option) *Server {
	t.Helper()
	server, err := Start(s, opts...)
	if err != nil {
		t.Fatalf("starting the scripted model server: %v", err)
	}
	t.Cleanup(func() {
		server.Close()
		server.mu.Lock()
		looked := server.looked
		server.mu.Unlock()
		if err := server.Engine.Err(); err != nil && !looked {
			t.Errorf("the script was not followed:\n%v", err)
		}
	})
	return server
}

// Start starts a server. Close it.
func Start(script Script, opts ...Option) (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + ln.Addr().String(), Engine: NewEngine(script), served: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.SetModel(Model{Name: "nomic-embed-text", Family: "nomic-bert", Parameters: "137M", Window: 8192, Embedding: true})
	for name := range script {
		if name != AnyModel {
			s.SetModel(Model{Name: name, Family: "scripted", Parameters: "1B", Window: 131072, Tools: true, Thinking: true})
		}
	}
	mux := http.NewServeMux()
	ollama(s, mux)
	for _, o := range opts {
		o(s, mux)
	}
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(ln)
	}()
	return s, nil
}

// Close ends the server and every request in it.
func (s *Server) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.served
}

// Err returns what did not fit the script so far.
func (s *Server) Err() error {
	s.mu.Lock()
	s.looked = true
	s.mu.Unlock()
	return s.Engine.Err()
}

// Unused names the exchanges that no request has met.
func (s *Server) Unused() []string { return s.Engine.Unused() }

// Requests returns the requests for chats and vectors so far, in the order in which they came. The oldest of several
// thousand are forgotten.
func (s *Server) Requests() []Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Counts returns what the server did so far.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Models returns what the server has.
func (s *Server) Models() []Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.models)
}

// SetModel adds a model or describes it anew.
func (s *Server) SetModel(m Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.models {
		if plain(s.models[i].Name) == plain(m.Name) {
			s.models[i] = m
			return
		}
	}
	s.models = append(s.models, m)
	slices.SortFunc(s.models, func(a, b Model) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
}

// Lookup returns a model by name, with or without :latest. A script for any model has them all.
func (s *Server) Lookup(name string) (Model, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.models {
		if plain(m.Name) == plain(name) {
			return m, true
		}
	}
	if s.Engine.lines[AnyModel] != nil && name != "" {
		return Model{Name: name, Family: "scripted", Parameters: "1B", Window: 131072, Tools: true, Thinking: true}, true
	}
	return Model{}, false
}

// maxKept bounds how many requests are kept. A test looks at fewer; a load test at none.
const maxKept = 4096

// Record keeps a request for [Server.Requests]. Infer does it by itself.
func (s *Server) Record(r Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == maxKept {
		s.requests = slices.Delete(s.requests, 0, maxKept/2)
	}
	s.requests = append(s.requests, r)
}

// maxBody bounds a request.
const maxBody = 64 << 20

// ReadBody reads a request's body whole.
func ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
}

// Form is how a protocol writes what the script says. One value serves one request.
type Form interface {
	// Refuse writes the status and what is wrong.
	Refuse(w http.ResponseWriter, a *Answer)
	// Whole writes an answer that is not streamed, with headers.
	Whole(w http.ResponseWriter, a *Answer)
	// Begin writes the headers of a stream, and what comes before the first piece.
	Begin(w http.ResponseWriter, a *Answer)
	// Piece writes a piece.
	Piece(w io.Writer, a *Answer, p Piece)
	// End writes a.Last, the counts, and that the stream is done.
	End(w io.Writer, a *Answer)
	// Error writes an error in mid-stream.
	Error(w io.Writer, a *Answer, text string)
	// Raw writes bytes as if they were a piece.
	Raw(w io.Writer, b []byte)
}

// Infer answers one chat in the given form: it records the request, waits for a slot, follows the script and carries out
// the quirks that concern the wire.
func (s *Server) Infer(w http.ResponseWriter, r *http.Request, seen Seen, f Form) {
	s.Record(seen)
	if no := s.cannot(seen); no != nil {
		f.Refuse(w, no)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	release, err := s.enter(ctx)
	switch {
	case errors.Is(err, errBusy):
		f.Refuse(w, &Answer{Model: seen.Model, Refusal: RefusedBusy, Status: http.StatusServiceUnavailable, Text: busyText})
		return
	case err != nil:
		panic(http.ErrAbortHandler) // nobody is there to hear it
	}
	a := s.Engine.Next(seen)
	done := false
	defer func() { release(done) }() // also when the connection is cut by a panic
	if done = s.send(ctx, w, seen, a, f); !done {
		panic(http.ErrAbortHandler) // not even the end of an empty answer
	}
}

// cannot refuses what the model is not there for.
func (s *Server) cannot(seen Seen) *Answer {
	m, ok := s.Lookup(seen.Model)
	a := &Answer{Model: seen.Model, Status: http.StatusBadRequest}
	switch {
	case !ok:
		a.Refusal, a.Status = RefusedMissing, http.StatusNotFound
		a.Text = fmt.Sprintf("model '%s' not found", seen.Model)
	case m.Embedding:
		a.Refusal, a.Text = RefusedStatus, fmt.Sprintf("%q does not support chat", seen.Model)
	case seen.Think != nil && *seen.Think && !m.Thinking:
		a.Refusal, a.Text = RefusedThinking, fmt.Sprintf("%q does not support thinking", seen.Model)
	case len(seen.Tools) > 0 && !m.Tools:
		a.Refusal, a.Text = RefusedTools, fmt.Sprintf("registry.ollama.ai/library/%s does not support tools", seen.Model)
	default:
		return nil
	}
	return a
}

var errBusy = errors.New("busy")

// enter waits for a slot. What it returns must be called at the end.
func (s *Server) enter(ctx context.Context) (release func(done bool), err error) {
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
		default:
			if err := s.wait(ctx); err != nil {
				return nil, err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Started++
	s.counts.Running++
	s.counts.Parallel = max(s.counts.Parallel, s.counts.Running)
	return func(done bool) {
		s.mu.Lock()
		s.counts.Running--
		switch {
		case done:
			s.counts.Finished++
		case ctx.Err() != nil:
			s.counts.Cancelled++
		}
		s.mu.Unlock()
		if s.slots != nil {
			<-s.slots
		}
	}, nil
}

func (s *Server) wait(ctx context.Context) error {
	s.mu.Lock()
	if s.waiting >= s.queue {
		s.counts.Busy++
		s.mu.Unlock()
		return errBusy
	}
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		s.counts.Cancelled++
		s.mu.Unlock()
		return ctx.Err()
	}
}

// pause waits; it reports whether the client is still there.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send writes the answer; it reports whether all of it is out.
func (s *Server) send(ctx context.Context, w http.ResponseWriter, seen Seen, a *Answer, f Form) bool {
	q := a.Quirks
	if !pause(ctx, s.each) || !pause(ctx, q.FirstDelay) {
		return false
	}
	if q.Hang && a.Refusal == "" {
		<-ctx.Done()
		return false
	}
	if a.Refusal == "" && q.ErrorLine != "" && !seen.Stream {
		a.Refusal, a.Status, a.Text = RefusedStatus, http.StatusInternalServerError, q.ErrorLine
	}
	out := &wire{ResponseWriter: w, bad: q.BadUTF8}
	switch {
	case a.Refusal != "":
		f.Refuse(out, a)
		return true
	case seen.Stream:
		return s.stream(ctx, out, a, f)
	case q.Garbage:
		_, _ = out.Write([]byte(garbage))
	case q.CutAfter != 0 || q.NoDone:
		whole := &buffered{header: out.Header()}
		f.Whole(whole, a)
		// The length says more than will come.
		out.Header().Set("Content-Length", fmt.Sprint(whole.Len()))
		_, _ = out.Write(whole.Bytes()[:whole.Len()/2])
		out.Flush()
		panic(http.ErrAbortHandler)
	default:
		f.Whole(out, a)
	}
	return true
}

const garbage = "<html>this is not JSON {"

func (s *Server) stream(ctx context.Context, out *wire, a *Answer, f Form) bool {
	q := a.Quirks
	if q.CutAfter < 0 {
		panic(http.ErrAbortHandler)
	}
	f.Begin(out, a)
	out.Flush()
	if q.Garbage {
		f.Raw(out, []byte(garbage))
		return true
	}
	for i, p := range a.Pieces {
		if i > 0 && !pause(ctx, q.TokenDelay) {
			return false
		}
		f.Piece(out, a, p)
		if q.TokenDelay > 0 || q.CutAfter == i+1 || i == 0 {
			out.Flush() // the rest goes together: a machine that types no slower than it must
		}
		if q.CutAfter == i+1 {
			panic(http.ErrAbortHandler)
		}
		if ctx.Err() != nil {
			return false
		}
	}
	switch {
	case q.ErrorLine != "":
		f.Error(out, a, q.ErrorLine)
	case q.CutAfter > 0:
		out.Flush()
		panic(http.ErrAbortHandler)
	case !q.NoDone:
		if !pause(ctx, q.TokenDelay) {
			return false
		}
		f.End(out, a)
	}
	out.Flush()
	return true // whoever leaves now has heard it all
}

// wire puts bytes that are no UTF-8 where the mark for them stands.
type wire struct {
	http.ResponseWriter
	bad bool
}

func (w *wire) Write(b []byte) (int, error) {
	if w.bad {
		if _, err := w.ResponseWriter.Write(bytes.ReplaceAll(b, []byte(string(badMark)), []byte{0xff, 0xfe})); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

func (w *wire) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// buffered holds a whole answer back.
type buffered struct {
	bytes.Buffer
	header http.Header
}

func (b *buffered) Header() http.Header { return b.header }
func (b *buffered) WriteHeader(int)     {}
