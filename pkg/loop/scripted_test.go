package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/model"
)

// scriptedModel gives scripted replies, one per call. Beyond the last entry it fails the test.
type scriptedModel struct {
	t       testing.TB
	mu      sync.Mutex
	replies []scriptedReply
	asked   []model.Request
	repeat  bool // the last entry for ever
}

// scriptedReply is one reply: its chunks, then an error or the end.
type scriptedReply struct {
	chunks []model.Chunk
	each   time.Duration // before each chunk but a reading
	err    error
	wait   bool // after the chunks, until the context ends
}

func (p *scriptedModel) Chat(ctx context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		p.mu.Lock()
		n := len(p.asked)
		p.asked = append(p.asked, r)
		if n >= len(p.replies) {
			if !p.repeat {
				p.mu.Unlock()
				p.t.Errorf("call %d of the model was not expected: %s", n+1, lastText(r))
				yield(model.Chunk{}, errors.New("nothing left to play"))
				return
			}
			n = len(p.replies) - 1
		}
		b := p.replies[n]
		p.mu.Unlock()
		for _, c := range b.chunks {
			if b.each > 0 && c.Reading == nil && !Sleep(ctx, b.each) {
				yield(model.Chunk{}, ctx.Err())
				return
			}
			if !yield(c, nil) {
				return
			}
		}
		if b.wait {
			<-ctx.Done()
			yield(model.Chunk{}, ctx.Err())
			return
		}
		if b.err != nil {
			yield(model.Chunk{}, b.err)
		}
	}
}

func lastText(r model.Request) string {
	if len(r.Messages) == 0 {
		return ""
	}
	return r.Messages[len(r.Messages)-1].Content
}

// textReply is a text in one chunk.
func textReply(content string) scriptedReply {
	return scriptedReply{
		chunks: []model.Chunk{{Content: content, Done: true, Final: model.Final{Model: "m", Reason: "stop"}}},
	}
}

// callReply is a reply with native calls: name, arguments, name, arguments, ...
func callReply(pairs ...string) scriptedReply {
	var cs []model.Call
	for i := 0; i < len(pairs); i += 2 {
		cs = append(cs, model.Call{Name: pairs[i], Arguments: json.RawMessage(pairs[i+1])})
	}
	return scriptedReply{
		chunks: []model.Chunk{{Calls: cs, Done: true, Final: model.Final{Model: "m", OutputTokens: 9}}},
	}
}

func errorReply(err error) scriptedReply { return scriptedReply{err: err} }

// cutReply is a reply that hit the limit of tokens.
func cutReply(content string) scriptedReply {
	return scriptedReply{
		chunks: []model.Chunk{{
			Content: content, Done: true,
			Final: model.Final{Reason: "length", OutputTokens: 1 << 20},
		}},
	}
}

var testTools = []model.Tool{
	{
		Name: "web_search", Description: "search",
		Parameters: json.RawMessage(
			`{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},` +
				`"required":["query"]}`),
	},
	{
		Name: "get_time", Description: "time",
		Parameters: json.RawMessage(`{"type":"object","properties":{"zone":{"type":"string"}}}`),
	},
}

// newAgent puts an agent together whose tools echo their arguments.
func newAgent(t testing.TB, replies ...scriptedReply) (Agent, *scriptedModel) {
	p := &scriptedModel{t: t, replies: replies}
	n := 0
	return Agent{
		Chat: p, Tools: testTools, System: "You help.", Stream: true,
		RunTool: func(_ context.Context, c model.Call) Result {
			return Result{Text: c.Name + " of " + string(c.Arguments)}
		},
		NewID: func() string { n++; return fmt.Sprintf("id%d", n) },
	}, p
}

func question(question string) Input {
	return Input{State: State{Messages: []model.Message{{Role: model.User, Content: question}}}}
}

// hookRecorder records the calls of hooks, one line each.
type hookRecorder struct {
	lines  []string
	tokens strings.Builder
	states []State
}

func (r *hookRecorder) hooks() Hooks {
	add := func(format string, a ...any) { r.lines = append(r.lines, fmt.Sprintf(format, a...)) }
	return Hooks{
		Generating: func(step int) { add("generating %d", step) },
		Thinking:   func(step int, s string) { add("thinking %d %s", step, s) },
		Token:      func(_ int, s string) { r.tokens.WriteString(s) },
		Interim:    func(step int, s string) { add("interim %d %s", step, s) },
		Started:    func(step int, c model.Call, layer string) { add("started %d %s %s", step, c.Name, layer) },
		Finished:   func(step int, d FinishedCall) { add("finished %d %s %s", step, d.Call.Name, d.Result.Fault) },
		Note:       func(n Note) { add("note %s", n.Code) },
		Checkpoint: func(_ context.Context, s *State) error {
			add("checkpoint %d messages", len(s.Messages))
			r.states = append(r.states, cloneState(s))
			return nil
		},
	}
}

// cloneState is a state stored and read back.
func cloneState(s *State) State {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	var out State
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

func noteCodes(s State) []string {
	var out []string
	for _, n := range s.Notes {
		out = append(out, n.Code)
	}
	return out
}

func wantNotes(t *testing.T, s State, want ...string) {
	t.Helper()
	if got := noteCodes(s); !slices.Equal(got, want) {
		t.Errorf("notes %q, want %q: %v", got, want, s.Notes)
	}
}

func wantAnswer(t *testing.T, s State, err error, want string, partial bool) {
	t.Helper()
	if err != nil || !s.Final || s.Answer != want || s.Partial != partial {
		t.Errorf("answer %q, final %v, partial %v, error %v; want %q, partial %v", s.Answer, s.Final, s.Partial, err,
			want, partial)
	}
}
