// Command plain measures whether the product answers questions that need no tool as well as the same model asked
// directly: right answers of both, wrong answers that only the product gives, tool calls that nobody needed, and the
// time to the first token of the second question of a conversation.
//
// The questions are in development.jsonl and held.jsonl, one JSON object a line: want is a regular expression that a
// right answer matches, not one that it must not match, both in any case of letters. All were written before the
// prompts were changed. Misses of the development half may be used to improve prompts; the held half is only measured,
// and -misses does not print it.
//
// Run it from the folder bench, for example against .ci/live --serve:
//
//	go run ./plain -ollama http://127.0.0.1:11434 -model qwen-coder:1.5b -embeddings all-minilm
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/bench/internal/instance"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
)

//go:embed development.jsonl
var developmentHalf []byte

//go:embed held.jsonl
var heldHalf []byte

// question is a question with the pattern of its right answers.
type question struct {
	ID       string `json:"id"`
	Language string `json:"lang"`
	Text     string `json:"question"`
	Want     string `json:"want"`
	Not      string `json:"not"`
}

// isRight reports whether an answer matches the patterns.
func (q question) isRight(answer string) bool {
	return regexp.MustCompile("(?i)"+q.Want).MatchString(answer) &&
		(q.Not == "" || !regexp.MustCompile("(?i)"+q.Not).MatchString(answer))
}

// options are the flags.
type options struct {
	conclave, ollama, model, embeddings, half string
	misses                                    bool
	pairs                                     int
}

func main() {
	var o options
	flag.StringVar(&o.conclave, "conclave", "", "the `program`; built from the module above when empty")
	flag.StringVar(&o.ollama, "ollama", "", "`URL` of an Ollama")
	flag.StringVar(&o.model, "model", "qwen-coder:1.5b", "chat model")
	flag.StringVar(&o.embeddings, "embeddings", "all-minilm", "embedding model")
	flag.StringVar(&o.half, "half", "held", "development or held")
	flag.BoolVar(&o.misses, "misses", false, "print wrong answers of the development half")
	flag.IntVar(&o.pairs, "pairs", 8, "conversations of two questions for the time to the first token")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "plain:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.ollama == "" {
		return errors.New("-ollama is needed: the URL of a model server, for example of .ci/live --serve")
	}
	questions, err := readQuestions(o.half)
	if err != nil {
		return err
	}
	if o.conclave == "" {
		program, remove, err := instance.Build(ctx)
		if err != nil {
			return err
		}
		defer remove()
		o.conclave = program
	}
	in, err := instance.Create(o.conclave, map[string]string{"models.yaml": fmt.Sprintf(
		"demo_model: never\nroles: {assistant: %q, critic: %q, embeddings: %q}\ndefaults: {window: 8192}\n"+
			"models: {%q: {temperature: 0}}\nollama: {url: %q}\n", o.model, o.model, o.embeddings, o.model, o.ollama)})
	if err != nil {
		return err
	}
	defer in.Remove()
	sys, err := in.Start(ctx)
	if err != nil {
		return err
	}
	defer sys.Stop()
	bare, err := ollama.New(ollama.Config{URL: o.ollama})
	if err != nil {
		return err
	}
	if err := o.compare(ctx, sys, bare, questions); err != nil {
		return err
	}
	return o.compareFirstTokens(ctx, sys, bare, questions)
}

func readQuestions(half string) (out []question, err error) {
	data, ok := map[string][]byte{"development": developmentHalf, "held": heldHalf}[half]
	if !ok {
		return nil, fmt.Errorf("no half %q", half)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var q question
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&q); err != nil {
			return nil, fmt.Errorf("reading %s.jsonl: %w", half, err)
		}
		out = append(out, q)
	}
	return out, lines.Err()
}

// reply is the part of the response to POST /query that is used here.
type reply struct {
	Answer    string `json:"answer"`
	ToolCalls []struct {
		Tool  string `json:"tool"`
		Layer string `json:"layer"`
	} `json:"tool_calls"`
}

// compare asks each question both ways and prints the table.
func (o options) compare(ctx context.Context, sys *instance.System, bare model.Chat, questions []question) error {
	var right, bareRight, onlyOurs, called int
	var took, bareTook time.Duration
	for n, q := range questions {
		began := time.Now()
		direct, _, err := o.askBare(ctx, bare, []model.Message{{Role: model.User, Content: q.Text}})
		if err != nil {
			return err
		}
		bareTook += time.Since(began)
		began = time.Now()
		var r reply
		if err := sys.Request(ctx, http.MethodPost, "/query", map[string]string{
			"query": q.Text, "session_id": fmt.Sprintf("plain-%d", n),
		}, &r); err != nil {
			return err
		}
		took += time.Since(began)
		ours, theirs := q.isRight(r.Answer), q.isRight(direct)
		var tools []string
		for _, c := range r.ToolCalls {
			if c.Layer != "recall" {
				tools = append(tools, c.Tool)
			}
		}
		right, bareRight = right+count(ours), bareRight+count(theirs)
		onlyOurs, called = onlyOurs+count(!ours && theirs), called+count(len(tools) > 0)
		if o.misses && o.half == "development" && (!ours || len(tools) > 0) {
			fmt.Fprintf(os.Stderr, "%s %q calls %v\n  product: %.200q\n  bare: %.200q\n", q.ID, q.Text, tools,
				r.Answer, direct)
		}
	}
	n := len(questions)
	fmt.Printf("%d questions of the %s half, %s\n\n", n, o.half, o.model)
	fmt.Println("| | product | same model, asked directly |")
	fmt.Println("|---|---|---|")
	fmt.Printf("| right | %d | %d |\n", right, bareRight)
	fmt.Printf("| wrong where the other is right | %d | %d |\n", onlyOurs, right-bareRight+onlyOurs)
	fmt.Printf("| questions with a tool call | %d | |\n", called)
	fmt.Printf("| seconds per question | %.2f | %.2f |\n", took.Seconds()/float64(n), bareTook.Seconds()/float64(n))
	return nil
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// askBare asks the model directly and returns its answer and the time to the first token.
func (o options) askBare(ctx context.Context, chat model.Chat, messages []model.Message) (string, time.Duration,
	error,
) {
	temperature := 0.0
	var answer strings.Builder
	var first time.Duration
	began := time.Now()
	for c, err := range chat.Chat(ctx, model.Request{
		Model: o.model, Messages: messages, Stream: true,
		Options: model.Options{Window: 8192, Predict: 4096, Temperature: &temperature, KeepAlive: "-1"},
	}) {
		if err != nil {
			return "", 0, err
		}
		if c.Content != "" && first == 0 {
			first = time.Since(began)
		}
		answer.WriteString(c.Content)
	}
	return strings.TrimSpace(answer.String()), first, nil
}

// compareFirstTokens asks conversations of two questions both ways and prints the medians of the second question's
// first token.
func (o options) compareFirstTokens(ctx context.Context, sys *instance.System, bare model.Chat, qs []question) error {
	var ours, direct []time.Duration
	for i := 0; i+1 < len(qs) && len(ours) < o.pairs; i += 2 {
		first, second := qs[i], qs[i+1]
		messages := []model.Message{{Role: model.User, Content: first.Text}}
		answer, _, err := o.askBare(ctx, bare, messages)
		if err != nil {
			return err
		}
		messages = append(messages, model.Message{Role: model.Assistant, Content: answer},
			model.Message{Role: model.User, Content: second.Text})
		_, took, err := o.askBare(ctx, bare, messages)
		if err != nil {
			return err
		}
		direct = append(direct, took)
		session := fmt.Sprintf("first-token-%d", i)
		var r reply
		if err := sys.Request(ctx, http.MethodPost, "/query", map[string]string{
			"query": first.Text, "session_id": session,
		}, &r); err != nil {
			return err
		}
		if took, err = firstToken(ctx, sys, session, second.Text); err != nil {
			return err
		}
		ours = append(ours, took)
	}
	if len(ours) == 0 {
		return nil
	}
	slices.Sort(ours)
	slices.Sort(direct)
	a, b := ours[len(ours)/2], direct[len(direct)/2]
	fmt.Printf("| first token of the second question, median of %d, ms | %d | %d |\n", len(ours), a.Milliseconds(),
		b.Milliseconds())
	fmt.Printf("\nratio of the first tokens: %.2f\n", float64(a)/float64(b))
	return nil
}

// firstToken asks a question and returns the time until its first delta is on the event stream of its session.
func firstToken(ctx context.Context, sys *instance.System, session, text string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, sys.API+"/events?deltas=1&session="+session, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+sys.Token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("GET /events: %s", res.Status)
	}
	began := time.Now()
	answered := make(chan error, 1)
	go func() {
		answered <- sys.Request(ctx, http.MethodPost, "/query", map[string]string{
			"query": text, "session_id": session,
		}, &reply{})
	}()
	took := time.Duration(0)
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 4<<20)
	for took == 0 && lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "event: delta" {
			took = time.Since(began)
		}
	}
	if err := <-answered; err != nil {
		return 0, err
	}
	if took == 0 {
		return 0, fmt.Errorf("no delta of the answer came: %w", lines.Err())
	}
	return took, nil
}
