package setup

import (
	"context"
	"fmt"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/model"
	"conclave/pkg/model/callcheck"
	"conclave/pkg/model/ollama"
)

// testTimeout bounds each request of a test, in which the model may have to be loaded.
const testTimeout = 3 * time.Minute

// Test is what a model did with one question and one tool call.
type Test struct {
	Model     string  `json:"model"`
	Answers   bool    `json:"answers"`              // the question, rightly
	Calls     bool    `json:"calls"`                // the tool, rightly
	PerSecond float64 `json:"per_second,omitempty"` // tokens that it writes; 0 = not measured
	Problem   string  `json:"problem,omitempty"`    // a request that failed
}

// TestModel asks a model of Ollama one question and lets it call one tool, which does not exist.
func TestModel(ctx context.Context, url, name string) Test {
	t := Test{Model: name}
	b, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		t.Problem = err.Error()
		return t
	}
	defer b.Close()
	tokens, took := 0, time.Duration(0)
	for _, s := range callcheck.Steps() {
		passed := &t.Answers
		if len(s.Reply.Calls) > 0 {
			passed = &t.Calls
		}
		if *passed { // one of each is enough
			continue
		}
		r := s.Request()
		r.Model = name
		reply, final, err := collect(ctx, b, r)
		if err != nil {
			t.Problem = err.Error()
			return t
		}
		*passed = s.Passes(reply)
		tokens, took = tokens+final.OutputTokens, took+final.OutputTime
	}
	if took > 0 {
		t.PerSecond = float64(tokens) / took.Seconds()
	}
	return t
}

// collect returns the reply to r, which must come within [testTimeout].
func collect(ctx context.Context, b model.Chat, r model.Request) (model.Message, model.Final, error) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	return model.Collect(b.Chat(ctx, r))
}

// usualAnswer is the length of an answer of some sentences, in tokens.
const usualAnswer = 200

// String says what to expect of the model.
func (t Test) String() string {
	if t.Problem != "" {
		return t.Model + " failed: " + term.Plain(t.Problem)
	}
	said := []string{"answers a question", "calls a tool"}
	if !t.Answers {
		said[0] = "answered a simple question wrongly"
	}
	if !t.Calls {
		said[1] = "makes no right tool call: conclave model test says more"
	}
	s := t.Model + " " + strings.Join(said, ", ")
	if t.PerSecond > 0 {
		s += fmt.Sprintf(", writes %.3g tokens per second: a usual answer takes about %s", t.PerSecond,
			time.Duration(usualAnswer/t.PerSecond*float64(time.Second)).Round(time.Second))
	}
	return s
}
