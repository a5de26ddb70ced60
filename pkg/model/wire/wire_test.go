package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

func newRequest() model.Request {
	yes, warm, seed := true, 0.7, 42
	return model.Request{
		Model: "gemma4:12b",
		Messages: []model.Message{
			{Role: model.System, Content: "be brief"},
			{Role: model.User, Content: "what <time> is it?"},
			{
				Role: model.Assistant, Thinking: "hm",
				Calls: []model.Call{{ID: "c1", Name: "get_datetime", Arguments: json.RawMessage(`{"z":1,"a":2}`)}},
			},
			{Role: model.ToolRole, Content: "noon", ToolName: "get_datetime", CallID: "c1"},
		},
		Tools: []model.Tool{{
			Name: "get_datetime", Description: "the time",
			Parameters: json.RawMessage(`{"type":"object"}`),
		}},
		Think: &yes,
		Options: model.Options{
			Window: 1, Predict: 2, Temperature: &warm, Seed: &seed, Stop: []string{"x"},
			KeepAlive: "-1",
		},
		Stream: true,
	}
}

func TestRequestRoundTrip(t *testing.T) {
	t.Parallel()
	formatted := model.Request{Messages: newRequest().Messages[:2], Format: json.RawMessage(`{"type":"object"}`)}
	for _, r := range []model.Request{newRequest(), formatted} {
		q, err := wire.EncodeRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.DecodeRequest(q)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%v, got\n%+v, want\n%+v", err, got, r)
		}
	}
	if q, err := wire.EncodeRequest(newRequest()); err != nil ||
		!strings.Contains(string(q.Messages), `{"z":1,"a":2}`) {
		t.Errorf("the key order of arguments: %s, %v", q.Messages, err)
	}
	if _,
		err := wire.EncodeRequest(
		model.Request{
			Messages: []model.Message{{Calls: []model.Call{{Arguments: json.RawMessage(`{`)}}}},
		}); err == nil {
		t.Error("arguments that are not JSON were encoded")
	}
}

func TestDecodeRequestRejectsInvalidParts(t *testing.T) {
	t.Parallel()
	good := json.RawMessage(`[{"role":"user","content":"x"}]`)
	for name, q := range map[string]subjects.ChatRequest{
		"empty":                     {},
		"no messages":               {Messages: json.RawMessage(`[]`)},
		"null":                      {Messages: json.RawMessage(`null`)},
		"not a list":                {Messages: json.RawMessage(`{}`)},
		"not JSON":                  {Messages: json.RawMessage(`[`)},
		"an unknown field":          {Messages: json.RawMessage(`[{"role":"user","name":"x"}]`)},
		"trailing object":           {Messages: json.RawMessage(`[{"role":"user"}] {}`)},
		"trailing bracket":          {Messages: json.RawMessage(`[{"role":"user"}]]`)},
		"an unknown option":         {Messages: good, Options: json.RawMessage(`{"num_gpu":1}`)},
		"an option of another type": {Messages: good, Options: json.RawMessage(`{"window":"big"}`)},
		"tools that are not a list": {Messages: good, Tools: json.RawMessage(`{"name":"x"}`)},
		"a format that is not JSON": {Messages: good, Format: json.RawMessage(`{},"options":{}`)},
	} {
		if _, err := wire.DecodeRequest(q); actortest.Code(err) != subjects.CodeMalformed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestChunkRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []model.Chunk{
		{Content: "hi", Thinking: "hm"},
		{Calls: []model.Call{{ID: "1", Name: "x", Arguments: json.RawMessage(`{"z":1,"a":2}`)}}},
		{Content: "end", Done: true, Final: model.Final{
			Model: "m", Reason: "stop", PromptTokens: 3, OutputTokens: 4, Total: 5 * time.Second, RemoteHost: "far",
		}},
	} {
		p, err := wire.EncodeChunk(c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := wire.DecodeChunk(p); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%v, got\n%+v, want\n%+v", err, got, c)
		}
	}
	for _, calls := range []string{`{}`, `[`, `[]]`, `[{"name":"x","surprise":1}]`} {
		if _, err := wire.DecodeChunk(subjects.ChatChunk{ToolCalls: json.RawMessage(calls)}); !errors.Is(err,
			model.ErrMalformed) {
			t.Errorf("%s: %v", calls, err)
		}
	}
	if _, err := wire.EncodeChunk(model.Chunk{Calls: []model.Call{{Arguments: json.RawMessage(`{`)}}}); err == nil {
		t.Error("arguments that are not JSON were encoded")
	}
}

// Every sentinel error survives the bus, with the text of the backend.
func TestErrorRoundTrip(t *testing.T) {
	t.Parallel()
	all := []error{
		model.ErrUnreachable, model.ErrMissing, model.ErrNoTools, model.ErrNoThinking, model.ErrTooLong, model.ErrBusy,
		model.ErrMalformed, model.ErrCut, model.ErrRemote, model.ErrUnsupported, model.ErrUnauthorized,
	}
	for _, want := range all {
		f := wire.EncodeError(fmt.Errorf("asking: %w: do this", want))
		if f == nil {
			t.Errorf("%v has no code", want)
			continue
		}
		got := wire.DecodeError(actor.ReplyFault(f))
		for _, e := range all {
			if errors.Is(got, e) != (e == want) {
				t.Errorf("%v came back as %v", want, got)
			}
		}
		if !strings.Contains(got.Error(), "do this") || actortest.Code(got) != f.Code {
			t.Errorf("%v", got)
		}
	}
	if f := wire.EncodeError(errors.New("something else")); f != nil {
		t.Errorf("%v", f)
	}
	plain := errors.New("something else")
	if got := wire.DecodeError(plain); got != plain {
		t.Errorf("%v", got)
	}
	// No responder means an unreachable model; an actor that replies "unavailable" does not.
	gone := subjects.Faultf(subjects.CodeUnavailable, "nobody")
	if got := wire.DecodeError(gone); !errors.Is(got, model.ErrUnreachable) ||
		actortest.Code(got) != subjects.CodeModelUnreachable {
		t.Errorf("%v", got)
	}
	if got := wire.DecodeError(actor.ReplyFault(gone)); errors.Is(got, model.ErrUnreachable) ||
		actortest.Code(got) != subjects.CodeUnavailable {
		t.Errorf("%v", got)
	}
	if got := wire.DecodeError(subjects.Faultf(subjects.CodeStopped, "x")); actortest.Code(
		got) != subjects.CodeStopped {
		t.Errorf("%v", got)
	}
}

func TestClientChat(t *testing.T) {
	t.Parallel()
	var asked subjects.ChatRequest
	pieces := actortest.Pieces{
		subjects.ChatChunk{Thinking: "hm"},
		subjects.ChatChunk{Content: "It is "},
		subjects.ChatChunk{
			Content: "noon.", Done: true, Model: "big", Notice: "judge is not there",
			Usage: subjects.Usage{PromptTokens: 5, CompletionTokens: 2},
		},
	}
	rec := &actortest.Recorder{Reply: func(subject string, body []byte) (any, error) {
		if subject != "model.chat" {
			return nil, fmt.Errorf("asked %s", subject)
		}
		return pieces, json.Unmarshal(body, &asked)
	}}
	var last subjects.ChatChunk
	c := wire.Client{Out: rec.Out(), Role: "critic", Hint: "simple", OnDone: func(p subjects.ChatChunk) { last = p }}
	msg, final, err := model.Collect(c.Chat(t.Context(), newRequest()))
	if err != nil || msg.Content != "It is noon." || msg.Thinking != "hm" || final.Model != "big" ||
		final.PromptTokens != 5 || last.Notice != "judge is not there" {
		t.Errorf("%v, %+v, %+v, %+v", err, msg, final, last)
	}
	if asked.Role != "critic" || asked.Hint != "simple" || asked.Model != "gemma4:12b" || !asked.Stream {
		t.Errorf("asked %+v", asked)
	}
	// OnDone is not called when the caller stops iterating before the last chunk.
	last = subjects.ChatChunk{}
	for range c.Chat(t.Context(), newRequest()) {
		break
	}
	if last.Done {
		t.Error("OnDone was called for a reply that was not read to its end")
	}
	for name, tt := range map[string]struct {
		pieces actortest.Pieces
		want   error
	}{
		"no last chunk": {pieces[:2], model.ErrCut},
		"a fault": {actortest.Pieces{
			pieces[0],
			actor.ReplyFault(subjects.Faultf(subjects.CodeModelMissing, "not there")),
		}, model.ErrMissing},
		"invalid calls": {actortest.Pieces{subjects.ChatChunk{ToolCalls: json.RawMessage(`{}`)}}, model.ErrMalformed},
	} {
		rec := &actortest.Recorder{Reply: func(string, []byte) (any, error) { return tt.pieces, nil }}
		if _, _, err := model.Collect(wire.Client{Out: rec.Out()}.Chat(t.Context(), newRequest())); !errors.Is(err,
			tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := model.Collect(wire.Client{Out: (&actortest.Recorder{}).Out()}.Chat(t.Context(),
		newRequest())); !errors.Is(err, model.ErrUnreachable) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestClientEmbed(t *testing.T) {
	t.Parallel()
	var sizes []int
	answer := func(_ string, body []byte) (any, error) {
		var q subjects.EmbedRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		sizes = append(sizes, len(q.Texts))
		a := subjects.EmbedReply{Model: "nomic"}
		for _, text := range q.Texts {
			a.Vectors = append(a.Vectors, []float32{float32(len(text))})
		}
		return a, nil
	}
	ask := func(answer func(string, []byte) (any, error), texts ...string) (model.Vectors, error) {
		return wire.Client{Out: (&actortest.Recorder{Reply: answer}).Out()}.Embed(t.Context(), "", texts)
	}
	var many []string
	for i := range 70 {
		many = append(many, strings.Repeat("x", i))
	}
	v, err := ask(answer, many...)
	if err != nil || v.Model != "nomic" || len(v.Values) != 70 || !slices.Equal(sizes, []int{32, 32, 6}) {
		t.Fatalf("%v, %d vectors in %v", err, len(v.Values), sizes)
	}
	for i, x := range v.Values {
		if x[0] != float32(i) {
			t.Fatalf("vector %d is that of text %v", i, x)
		}
	}
	sizes = nil
	long := strings.Repeat("x", 300<<10)
	if _, err := ask(answer, long, long, "short", long); err != nil || !slices.Equal(sizes, []int{1, 2, 1}) {
		t.Errorf("long texts: %v, %v", err, sizes)
	}
	sizes = nil
	if v, err := ask(answer); err != nil || len(v.Values) != 0 || sizes != nil {
		t.Errorf("nothing: %v, %v", v, err)
	}
	n := 0
	for name, wrong := range map[string]func(string, []byte) (any, error){
		"too few": func(string, []byte) (any, error) { return subjects.EmbedReply{Vectors: [][]float32{{1}}}, nil },
		"of two models": func(s string, body []byte) (any, error) {
			a, err := answer(s, body)
			e := a.(subjects.EmbedReply)
			n++
			e.Model = fmt.Sprint("model", n)
			return e, err
		},
	} {
		if _, err := ask(wrong, many...); !errors.Is(err, model.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	missing := func(string, []byte) (any, error) { return nil, subjects.Faultf(subjects.CodeModelMissing, "x") }
	if _, err := ask(missing, "x"); !errors.Is(err, model.ErrMissing) {
		t.Errorf("%v", err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`[{"role":"user","content":"x"}]`), []byte(`[]`), []byte(`{}`), []byte(`{"type":"object"}`))
	f.Add([]byte(`[`), []byte(`null`), []byte(`{"stop":[]}`), []byte(`"json"`))
	f.Fuzz(func(t *testing.T, messages, tools, options, format []byte) {
		r, err := wire.DecodeRequest(subjects.ChatRequest{
			Messages: messages, Tools: tools, Options: options,
			Format: format,
		})
		if err != nil {
			if actortest.Code(err) != subjects.CodeMalformed {
				t.Fatalf("%v", err)
			}
			return
		}
		q, err := wire.EncodeRequest(r)
		if err != nil {
			t.Fatalf("a decoded request cannot be encoded: %v", err)
		}
		if _, err := wire.DecodeRequest(q); err != nil {
			t.Fatalf("an encoded request cannot be decoded: %v", err)
		}
	})
}
