package loop

import (
	"context"
	"encoding/json"
	"iter"
	"testing"

	"conclave/pkg/model"
)

// instantModel answers at once: with a call for left replies, then with text.
type instantModel struct{ left int }

func (m *instantModel) Chat(_ context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		if m.left--; m.left < 0 || len(r.Tools) == 0 {
			yield(model.Chunk{Content: "done", Done: true, Final: model.Final{PromptTokens: 9, OutputTokens: 1}}, nil)
			return
		}
		yield(model.Chunk{Calls: oneCall, Done: true, Final: model.Final{PromptTokens: 9, OutputTokens: 1}}, nil)
	}
}

var oneCall = []model.Call{
	{Name: "web_search", Arguments: json.RawMessage(`{"query":"the weather in Bern","limit":3}`)},
}

// BenchmarkIteration is one tool iteration: model call, reading, checking, running, result. The cost of the turn itself
// is spread over many.
func BenchmarkIteration(b *testing.B) {
	const rounds = 50
	n := 0
	ids := make([]string, 4096)
	for i := range ids {
		ids[i] = "id" + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
	}
	a := Agent{
		Tools: testTools, Limits: Limits{Steps: -1, Repeats: -1, WholeRounds: 1 << 20, TurnTimeout: -1},
		RunTool: func(context.Context, model.Call) Result { return Result{Text: "sunny, 21 degrees"} },
		NewID:   func() string { n++; return ids[n%len(ids)] },
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += rounds {
		a.Chat = &instantModel{left: rounds}
		if s, err := RunTurn(context.Background(), a, question("what is the weather?"), Hooks{}); err != nil ||
			len(s.Finished) != rounds {
			b.Fatal(len(s.Finished), err)
		}
	}
}

// BenchmarkTurnWithCalls is a turn of four calls and an answer.
func BenchmarkTurnWithCalls(b *testing.B) {
	a := Agent{
		Tools: testTools, System: "You help.", Options: model.Options{Window: 32768}, Limits: Limits{Repeats: -1},
		RunTool: func(context.Context, model.Call) Result { return Result{Text: "sunny, 21 degrees"} },
	}
	ids, n := [4]string{"a", "b", "c", "d"}, 0
	a.NewID = func() string { n++; return ids[n%4] }
	b.ReportAllocs()
	for b.Loop() {
		a.Chat = &instantModel{left: 4}
		if s, err := RunTurn(context.Background(), a, question("what is the weather?"), Hooks{}); err != nil ||
			len(s.Finished) != 4 {
			b.Fatal(len(s.Finished), err)
		}
	}
}

// BenchmarkTurn is a turn of an answer alone.
func BenchmarkTurn(b *testing.B) {
	a := Agent{Tools: testTools}
	b.ReportAllocs()
	for b.Loop() {
		a.Chat = &instantModel{}
		if _, err := RunTurn(context.Background(), a, question("what is the weather?"), Hooks{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScan reads an answer of 4 KB in pieces of a word.
func BenchmarkScan(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s := newReplyScanner(offeredNames, nil)
		for range 800 {
			s.feed("word ")
			s.shown = s.textEnd
		}
		s.finish(false)
	}
	b.SetBytes(4000)
}

// One iteration has a bounded number of allocations.
func TestIterationAllocations(t *testing.T) {
	run := func(rounds int) float64 {
		a := Agent{
			Tools: testTools, Limits: Limits{Steps: -1, Repeats: -1, WholeRounds: 1 << 20, TurnTimeout: -1},
			RunTool: func(context.Context, model.Call) Result { return Result{Text: "sunny"} },
		}
		n := 0
		a.NewID = func() string {
			n++
			return string(rune('a'+n%26)) + string(rune('a'+n/26%26)) + string(rune('a'+n/676%26))
		}
		return testing.AllocsPerRun(20, func() {
			a.Chat, n = &instantModel{left: rounds}, 0
			if _, err := RunTurn(context.Background(), a, question("q"), Hooks{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	const most = 32
	if each := (run(60) - run(20)) / 40; each > most {
		t.Errorf("%.1f allocations in one iteration, want at most %d", each, most)
	} else {
		t.Logf("%.1f allocations in one iteration", each)
	}
}

// A turn of four calls has a bounded number of allocations.
func TestTurnAllocations(t *testing.T) {
	a := Agent{
		Tools: testTools, System: "You help.", Limits: Limits{Repeats: -1},
		RunTool: func(context.Context, model.Call) Result { return Result{Text: "sunny"} },
	}
	n := 0
	a.NewID = func() string { n++; return "abcd"[n-1 : n] }
	most := 190.0
	if isRaceBuild() {
		most *= 1.2 // the detector allocates too
	}
	if all := testing.AllocsPerRun(20, func() {
		a.Chat, n = &instantModel{left: 4}, 0
		if s, err := RunTurn(context.Background(), a, question("q"), Hooks{}); err != nil || len(s.Finished) != 4 {
			t.Fatal(len(s.Finished), err)
		}
	}); all > most {
		t.Errorf("%.1f allocations in a turn, want at most %.0f", all, most)
	} else {
		t.Logf("%.1f allocations in a turn", all)
	}
}
