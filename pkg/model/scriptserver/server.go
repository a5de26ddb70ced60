package scriptserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/callcheck"
	"conclave/pkg/model/internal/embedhash"
)

// Server is a model server on a port of its own on the loopback.
type Server struct {
	URL    string // without a slash at the end
	Engine *Engine

	http *httptest.Server
	ctx  context.Context // cancelled by Close, which ends hanging requests
	stop context.CancelFunc

	slots    chan struct{} // nil = no limit
	slotTime time.Duration
	queue    int
	capacity int             // models that are loaded at a time; 0 = loading is not simulated
	pullHold <-chan struct{} // see [WithPullHold]; nil = pulls are not held

	mu       sync.Mutex
	models   []Model
	loaded   []string // with capacity: names without :latest, the one that was used last at the end
	requests []Request
	stats    Stats
	waiting  int
	errRead  bool // Err was called
}

// Model is a model as the server reports it.
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
	Digest     string
	NoCalls    bool // it answers requests of the self-test of tool calls with text
}

// Stats counts what the server did.
type Stats struct {
	Started   int // inferences begun
	Finished  int // replies sent completely
	Cancelled int // the client disconnected, while waiting too
	Busy      int // rejected because the queue was full
	Parallel  int // highest number at the same time
	Running   int // right now
	Loads     int // models that were loaded, with [WithCapacity]
	Swaps     int // loads for which another model was unloaded
	SelfTests int // requests of the self-test of tool calls
}

// Option changes a server before it starts.
type Option func(*Server, *http.ServeMux)

// Protocol registers the routes of a protocol. Ollama's is always served.
type Protocol func(s *Server, mux *http.ServeMux)

// WithProtocol serves another protocol.
func WithProtocol(f Protocol) Option { return func(s *Server, mux *http.ServeMux) { f(s, mux) } }

// WithModels adds models or replaces the descriptions of models of the script. Without it the server has the models of
// the script, each with tools and thinking, and the embedding model nomic-embed-text.
func WithModels(all ...Model) Option {
	return func(s *Server, _ *http.ServeMux) {
		for _, m := range all {
			s.SetModel(m)
		}
	}
}

// WithSlots limits the server to n chats at a time, each of which takes the given time before its reply. Up to queue
// others wait; further ones get HTTP 503.
func WithSlots(n int, each time.Duration, queue int) Option {
	return func(s *Server, _ *http.ServeMux) {
		s.slots, s.slotTime, s.queue = make(chan struct{}, n), each, queue
	}
}

// WithCapacity makes the server hold n models at a time, as OLLAMA_MAX_LOADED_MODELS does: a request for another model
// loads that one and unloads the one that was used least recently. It counts both in [Stats], and reports the loaded
// models.
func WithCapacity(n int) Option { return func(s *Server, _ *http.ServeMux) { s.capacity = n } }

// WithPullHold stops every pull at the half of its first layer until release is closed.
func WithPullHold(release <-chan struct{}) Option {
	return func(s *Server, _ *http.ServeMux) { s.pullHold = release }
}

// DefaultModel is the description of a model that has a script and no other description.
func DefaultModel(name string) Model {
	return Model{Name: name, Family: "scripted", Parameters: "12B", Window: 131072, Tools: true, Thinking: true}
}

// Embed returns the embedding of a text.
func (m Model) Embed(text string) []float32 {
	return embedhash.Embed(text, cmp.Or(m.Dimensions, embedhash.Dimensions))
}

// Start starts a server for script, with the models of the script, on a free port of the loopback. The caller must
// close it. It panics when it cannot listen.
func Start(script Script, opts ...Option) *Server {
	s := &Server{Engine: NewEngine(script)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.SetModel(Model{Name: "nomic-embed-text", Family: "nomic-bert", Parameters: "137M", Window: 8192, Embedding: true})
	for name := range script {
		if name != AnyModel {
			s.SetModel(DefaultModel(name))
		}
	}
	mux := http.NewServeMux()
	registerOllama(s, mux)
	for _, o := range opts {
		o(s, mux)
	}
	s.http = httptest.NewServer(mux)
	s.URL = s.http.URL
	return s
}

// Close stops the server and cancels its requests.
func (s *Server) Close() {
	s.stop()
	s.http.CloseClientConnections()
	s.http.Close()
}

// UnreadErr returns the mismatches with the script, nil when there are none or a caller has read them with
// [Server.Err].
func (s *Server) UnreadErr() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.errRead {
		return nil
	}
	return s.Engine.Err()
}

// Err returns the mismatches with the script so far.
func (s *Server) Err() error {
	s.mu.Lock()
	s.errRead = true
	s.mu.Unlock()
	return s.Engine.Err()
}

// Requests returns the chat and embedding requests so far, in order of arrival. Of more than maxRecorded the oldest are
// dropped.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Models returns the models of the server, by name.
func (s *Server) Models() []Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.models)
}

// SetModel adds a model or replaces the one of the same name, with or without :latest.
func (s *Server) SetModel(m Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = slices.DeleteFunc(s.models, func(had Model) bool { return trimTag(had.Name) == trimTag(m.Name) })
	s.models = append(s.models, m)
	slices.SortFunc(s.models, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
}

// Lookup returns a model by name, with or without :latest; false = the server does not have it. A script for [AnyModel]
// has every model with a name.
func (s *Server) Lookup(name string) (Model, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.models {
		if trimTag(m.Name) == trimTag(name) {
			return m, true
		}
	}
	if s.Engine.scripts[AnyModel] != nil && name != "" {
		return DefaultModel(name), true
	}
	return Model{}, false
}

// load simulates the loading of a model that the server has, see [WithCapacity].
func (s *Server) load(name string) {
	if s.capacity == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name = trimTag(name)
	if i := slices.Index(s.loaded, name); i >= 0 {
		s.loaded = slices.Delete(s.loaded, i, i+1)
	} else if s.stats.Loads++; len(s.loaded) >= s.capacity {
		s.stats.Swaps++
		s.loaded = slices.Delete(s.loaded, 0, 1)
	}
	s.loaded = append(s.loaded, name)
	for i := range s.models {
		s.models[i].Loaded = slices.Contains(s.loaded, trimTag(s.models[i].Name))
	}
}

// maxRecorded is the number of requests that are kept.
const maxRecorded = 4096

// record keeps a request for [Server.Requests]; beyond maxRecorded the older half is dropped.
func (s *Server) record(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == maxRecorded {
		s.requests = slices.Delete(s.requests, 0, maxRecorded/2)
	}
	s.requests = append(s.requests, r)
}

// maxBody is the largest request, in bytes.
const maxBody = 64 << 20

// Encoder writes an answer in a protocol. A value is used for one request.
type Encoder interface {
	// EncodeRefusal writes the HTTP status and the error.
	EncodeRefusal(w http.ResponseWriter, a *Answer)
	// EncodeReply writes a reply that is not streamed, with headers.
	EncodeReply(w http.ResponseWriter, a *Answer)
	// BeginStream writes the headers of a stream and its preamble.
	BeginStream(w http.ResponseWriter, a *Answer)
	// EncodeChunk writes one chunk of a stream.
	EncodeChunk(w io.Writer, a *Answer, p Chunk)
	// EndStream writes a.Last, the token counts and the end of the stream.
	EndStream(w io.Writer, a *Answer)
	// EncodeError writes an error in mid-stream.
	EncodeError(w io.Writer, a *Answer, text string)
	// WriteRaw writes bytes in place of a chunk.
	WriteRaw(w io.Writer, b []byte)
}

// answerSelfTest answers a request of the self-test of tool calls, which scripts need not have, as [Model.NoCalls]
// says; nil for any other request.
func (s *Server) answerSelfTest(seen Request) *Answer {
	step, ok := callcheck.Find(seen.Request)
	if !ok {
		return nil
	}
	m, _ := s.Lookup(seen.Model)
	s.mu.Lock()
	s.stats.SelfTests++
	s.mu.Unlock()
	a := &Answer{
		Model: seen.Model, Reason: "stop", Prompt: 100, Output: 20,
		Last: Chunk{Content: step.Reply.Content, Calls: step.Reply.Calls},
	}
	if m.NoCalls {
		a.Last = Chunk{Content: "I do not know."}
	}
	return a
}

// EmbedTexts records an embedding request with the body raw and returns the embeddings of texts and their tokens, at
// four bytes each. It refuses with f an unknown model, one without embeddings, and, unless truncate is set, a text
// longer than the window: ok is then false.
func (s *Server) EmbedTexts(w http.ResponseWriter, r *http.Request, raw []byte, name string, texts []string,
	truncate bool, f Encoder,
) (vectors [][]float32, tokens int, ok bool) {
	s.record(Request{
		Request: model.Request{Model: name}, Path: r.URL.Path, Header: r.Header, Raw: raw, Texts: texts,
	})
	m, found := s.Lookup(name)
	refusal := &Answer{Model: name, Refusal: RefusedMissing, Status: http.StatusNotFound}
	switch {
	case !found:
		refusal.Text = fmt.Sprintf("model %q not found, try pulling it first", name)
	case !m.Embedding:
		refusal.Refusal, refusal.Status = RefusedStatus, http.StatusNotImplemented
		refusal.Text = "this model does not support embeddings"
	default:
		s.load(m.Name)
		long := false
		for _, text := range texts {
			n := len(text)/4 + 1
			tokens, long = tokens+n, long || m.Window > 0 && n > m.Window
			vectors = append(vectors, m.Embed(text))
		}
		if !long || truncate {
			return vectors, tokens, true
		}
		refusal.Refusal, refusal.Status, refusal.Text = RefusedLength, http.StatusBadRequest, tooLongText
	}
	f.EncodeRefusal(w, refusal)
	return nil, 0, false
}

// ServeDecoded is [Server.ServeChat] for a request that a protocol has read from the body raw. err is why it could not
// decode it: then the request is refused, and does not match the script.
func (s *Server) ServeDecoded(w http.ResponseWriter, r *http.Request, raw []byte, seen Request, err error, f Encoder) {
	seen.Path, seen.Header, seen.Raw = r.URL.Path, r.Header, raw
	if err != nil {
		f.EncodeRefusal(w, s.Engine.Fail(seen, err.Error()))
		return
	}
	s.ServeChat(w, r, seen, f)
}

// ServeChat replies to one chat: it records the request, waits for a slot, takes the answer from the script and applies
// the quirks of the connection. It refuses an unknown or unfit model and a full queue. When the client disconnects or a
// quirk cuts the reply, it panics with [http.ErrAbortHandler], so that net/http cuts the connection.
func (s *Server) ServeChat(w http.ResponseWriter, r *http.Request, seen Request, f Encoder) {
	own := s.answerSelfTest(seen)
	if own == nil {
		s.record(seen)
	}
	if refusal := s.refuseModel(seen); refusal != nil {
		f.EncodeRefusal(w, refusal)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	release, err := s.acquireSlot(ctx)
	switch {
	case errors.Is(err, errBusy):
		f.EncodeRefusal(w, &Answer{
			Model: seen.Model, Refusal: RefusedBusy, Status: http.StatusServiceUnavailable,
			Text: busyText,
		})
		return
	case err != nil:
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	s.load(seen.Model)
	a := own
	if a == nil {
		a = refuseFormat(seen)
	}
	switch {
	case a != nil:
	case len(seen.Messages) == 0: // only loads the model
		a = &Answer{Model: seen.Model, Reason: "load"}
	default:
		a = s.Engine.Next(seen)
	}
	done := false
	defer func() { release(done) }() // also when a panic cuts the connection
	if done = s.sendAnswer(ctx, w, seen, a, f); !done {
		panic(http.ErrAbortHandler) // net/http must not end the reply properly
	}
}

// refuseModel returns the refusal of a request that the model cannot serve, nil when it can: an unknown model, one for
// embeddings, one without the requested thinking or tools.
func (s *Server) refuseModel(seen Request) *Answer {
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
		a.Refusal, a.Text = RefusedTools, fmt.Sprintf("registry.ollama.ai/library/%s does not support tools",
			seen.Model)
	default:
		return nil
	}
	return a
}

// errBusy means that the queue for slots is full.
var errBusy = errors.New("busy")

// acquireSlot waits for a slot, if slots are limited. It fails with errBusy when the queue is full, and with the error
// of ctx. The caller must call release if there is no error; done means that the whole reply was sent.
func (s *Server) acquireSlot(ctx context.Context) (release func(done bool), err error) {
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
		default:
			if err := s.waitForSlot(ctx); err != nil {
				return nil, err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Started++
	s.stats.Running++
	s.stats.Parallel = max(s.stats.Parallel, s.stats.Running)
	return func(done bool) {
		s.mu.Lock()
		s.stats.Running--
		switch {
		case done:
			s.stats.Finished++
		case ctx.Err() != nil:
			s.stats.Cancelled++
		}
		s.mu.Unlock()
		if s.slots != nil {
			<-s.slots
		}
	}, nil
}

// waitForSlot waits in the queue and takes a slot. It returns errBusy at once when the queue is full, and the error of
// ctx when that ends.
func (s *Server) waitForSlot(ctx context.Context) error {
	s.mu.Lock()
	if s.waiting >= s.queue {
		s.stats.Busy++
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
		s.stats.Cancelled++
		s.mu.Unlock()
		return ctx.Err()
	}
}

// sleepContext sleeps for d, not at all when it is 0 or less, and reports true, or false as soon as ctx ends.
func sleepContext(ctx context.Context, d time.Duration) bool {
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

// sendAnswer writes an answer or a refusal, after its delays, and reports whether all of it was sent; false = ctx
// ended. It panics with [http.ErrAbortHandler] where a quirk cuts the reply. For a reply that is not streamed,
// ErrorLine becomes HTTP 500.
func (s *Server) sendAnswer(ctx context.Context, w http.ResponseWriter, seen Request, a *Answer, f Encoder) bool {
	q := a.Quirks
	if !sleepContext(ctx, s.slotTime) || !sleepContext(ctx, q.FirstDelay) {
		return false
	}
	if q.Hang && a.Refusal == "" {
		<-ctx.Done()
		return false
	}
	if a.Refusal == "" && q.ErrorLine != "" && !seen.Stream {
		a.Refusal, a.Status, a.Text = RefusedStatus, http.StatusInternalServerError, q.ErrorLine
	}
	out := &responseWriter{ResponseWriter: w, invalid: q.BadUTF8}
	switch {
	case a.Refusal != "":
		f.EncodeRefusal(out, a)
		return true
	case seen.Stream:
		return s.streamAnswer(ctx, out, a, f)
	case q.Garbage:
		_, _ = out.Write([]byte(garbage))
	case q.CutAfter != 0 || q.NoDone:
		whole := httptest.NewRecorder()
		f.EncodeReply(whole, a)
		// The announced length is more than is sent.
		maps.Copy(out.Header(), whole.Header())
		out.Header().Set("Content-Length", fmt.Sprint(whole.Body.Len()))
		_, _ = out.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
		out.Flush()
		panic(http.ErrAbortHandler)
	default:
		f.EncodeReply(out, a)
	}
	return true
}

const garbage = "<html>this is not JSON {"

// streamAnswer writes an answer chunk by chunk and reports whether all of it was sent; false = ctx ended. It panics
// with [http.ErrAbortHandler] where a quirk cuts the reply.
func (s *Server) streamAnswer(ctx context.Context, out *responseWriter, a *Answer, f Encoder) bool {
	q := a.Quirks
	if q.CutAfter < 0 {
		panic(http.ErrAbortHandler)
	}
	f.BeginStream(out, a)
	out.Flush()
	if q.Garbage {
		f.WriteRaw(out, []byte(garbage))
		return true
	}
	for i, p := range a.Chunks {
		if i > 0 && !sleepContext(ctx, q.TokenDelay) {
			return false
		}
		f.EncodeChunk(out, a, p)
		if q.TokenDelay > 0 || q.CutAfter == i+1 || i == 0 {
			out.Flush() // without a delay the remaining chunks are sent together
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
		f.EncodeError(out, a, q.ErrorLine)
	case q.CutAfter > 0:
		out.Flush()
		panic(http.ErrAbortHandler)
	case !q.NoDone:
		if !sleepContext(ctx, q.TokenDelay) {
			return false
		}
		f.EndStream(out, a)
	}
	out.Flush()
	return true // a client that disconnects now has the whole reply
}

// responseWriter replaces [invalidByteMark] with bytes that are not UTF-8 when invalid is set.
type responseWriter struct {
	http.ResponseWriter
	invalid bool
}

// Write implements [io.Writer]. It reports len(b) also when the replacement changes the length.
func (w *responseWriter) Write(b []byte) (int, error) {
	if !w.invalid {
		return w.ResponseWriter.Write(b)
	}
	_, err := w.ResponseWriter.Write(bytes.ReplaceAll(b, []byte(string(invalidByteMark)), []byte{0xff, 0xfe}))
	return len(b), err
}

func (w *responseWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
