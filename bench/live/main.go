// Command live runs stories on real models and prints, for each, how many runs passed, the time, and the model calls
// and tokens of a question. The script .ci/live brings the servers and starts it.
//
//	live -ollama http://127.0.0.1:11434 -chat qwen-coder:1.5b -embeddings all-minilm stories/s1_capital.yaml
//
// With -openai the chat model is asked at that server; embeddings stay with Ollama. The exit code is 1 when a story
// passed in less than the share -need of its runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"conclave/bench/internal/instance"
	"conclave/bench/internal/meter"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/pkg/story"
	"conclave/stories/harness"
)

// options are the flags.
type options struct {
	conclave   string
	ollama     string
	openai     string
	chat       string
	embeddings string
	runs       int
	need       float64
	scenarios  string
	calls      string
	first      int
	transcript string
}

func main() {
	var o options
	flag.StringVar(&o.conclave, "conclave", "", "the `program` conclave, for the scenarios")
	flag.StringVar(&o.ollama, "ollama", "", "`URL` of an Ollama")
	flag.StringVar(&o.openai, "openai", "", "`URL` of an OpenAI-compatible server for the chat model")
	flag.StringVar(&o.chat, "chat", "", "chat `model`")
	flag.StringVar(&o.embeddings, "embeddings", "", "embedding `model`")
	flag.IntVar(&o.runs, "runs", 1, "runs of each story")
	flag.Float64Var(&o.need, "need", 0.8, "share of its runs in which a story must pass")
	flag.StringVar(&o.scenarios, "scenarios", "", "`words` of the names of scenarios to run behind the stories; all "+
		"for all")
	flag.StringVar(&o.calls, "calls", "", "how the chat model calls tools: native, constrained or text; \"\" = as "+
		"shipped")
	flag.IntVar(&o.first, "first", 0, "`number` of the first run of the scenarios, which choose their questions by it")
	flag.StringVar(&o.transcript, "transcript", "", "`file` that gets every chat request and response")
	flag.Parse()
	selectScenarios(o.scenarios)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, o, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "live:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// run runs every story o.runs times, round by round, and prints the table. It reports whether enough runs passed.
func run(ctx context.Context, o options, files []string) (bool, error) {
	if o.ollama == "" || o.chat == "" || len(files) == 0 && o.scenarios == "" || o.runs < 1 {
		return false, errors.New("-ollama, -chat and stories are needed")
	}
	if o.scenarios != "" && o.conclave == "" {
		return false, errors.New("-scenarios needs -conclave")
	}
	bareURL := o.ollama // not metered: those calls belong to no row
	meters, err := startMeters(&o)
	if err != nil {
		return false, err
	}
	defer func() {
		for _, m := range meters {
			m.Close()
		}
	}()
	in, err := instance.Create(o.conclave, map[string]string{"models.yaml": modelSettings(o)})
	if err != nil {
		return false, err
	}
	defer in.Remove()
	rows, err := readStories(files)
	if err != nil {
		return false, err
	}
	for n := range o.runs {
		for _, row := range rows {
			if row.skipped != "" {
				continue
			}
			fmt.Fprintf(os.Stderr, "run %d of %d, %s: ", n+1, o.runs, row.name)
			if err := row.play(ctx, in, meters); err != nil {
				fmt.Fprintln(os.Stderr)
				return false, err
			}
		}
	}
	for _, row := range rows {
		if row.skipped != "" || o.openai != "" {
			continue
		}
		if err := row.askBare(ctx, bareURL, o.chat); err != nil {
			return false, err
		}
	}
	if o.scenarios != "" {
		more, err := runScenarios(ctx, o, in, meters)
		rows = append(rows, more...)
		if err != nil {
			return false, err
		}
	}
	printTable(o, rows)
	return !slices.ContainsFunc(rows, func(r *row) bool {
		return r.runs > 0 && float64(r.passed) < o.need*float64(r.runs)
	}), nil
}

// startMeters puts a meter in front of each server and its address into o.
func startMeters(o *options) ([]*meter.Meter, error) {
	var all []*meter.Meter
	for _, url := range []*string{&o.ollama, &o.openai} {
		if *url == "" {
			continue
		}
		m, err := meter.Start(*url)
		if err != nil {
			return all, err
		}
		*url = m.URL
		if o.transcript != "" {
			f, err := os.OpenFile(o.transcript, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return all, fmt.Errorf("opening the transcript: %w", err)
			}
			m.Transcript = f // until the process ends
		}
		all = append(all, m)
	}
	return all, nil
}

// modelSettings are the settings of a machine with this one chat model and embedder.
func modelSettings(o options) string {
	chat, openai := o.chat, ""
	if o.openai != "" {
		chat, openai = "openai/"+o.chat, fmt.Sprintf("openai: {url: %q}\n", o.openai)
	}
	calls := ""
	if o.calls != "" {
		calls = ", calls: " + o.calls
	}
	return fmt.Sprintf("demo_model: never\nroles: {assistant: %q, critic: %q, embeddings: %q}\ndefaults: {window: "+
		"8192}\nmodels: {%q: {temperature: 0%s}}\nollama: {url: %q}\n%s",
		chat, chat, o.embeddings, chat, calls, o.ollama, openai)
}

// row is a story and the sum over its runs.
type row struct {
	name, file     string
	skipped        string // why it does not run
	questions      int    // of one run
	runs, passed   int
	took           time.Duration
	calls          int // chat calls; those of embeddings are not counted
	prompt, output int // tokens
	cut            int // calls that were cut off, whose tokens are unknown
	texts          []string
	bare           bareFigures
}

// bareFigures are those of the same model, asked the questions of a story directly, in one conversation.
type bareFigures struct {
	took           time.Duration
	prompt, output int // tokens
}

func readStories(files []string) ([]*row, error) {
	var rows []*row
	for _, file := range files {
		s, err := story.Load(file)
		if err != nil {
			return nil, err
		}
		r := &row{name: s.ID, file: file}
		if s.ScriptedOnly {
			r.skipped = "needs a scripted model"
		}
		for _, t := range s.Turns {
			if t.Query != "" {
				r.questions++
				r.texts = append(r.texts, t.Query)
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// play runs the story once and adds the figures. A failed story is no error.
func (r *row) play(ctx context.Context, in *instance.Instance, meters []*meter.Meter) error {
	s, err := story.Load(r.file)
	if err != nil {
		return err
	}
	res := harness.RunStory(ctx, s, harness.Options{Live: true, Config: in.ConfigDir()}, story.Options{})
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	r.measure(meters)
	if res.Skipped != "" {
		r.skipped = res.Skipped
		fmt.Fprintln(os.Stderr, "skipped:", res.Skipped)
		return nil
	}
	r.runs++
	r.took += res.Took
	word := "FAILED"
	if res.OK() {
		r.passed++
		word = "ok"
	}
	fmt.Fprintf(os.Stderr, "%s, %.0f s\n", word, res.Took.Seconds())
	for _, f := range res.Failures {
		fmt.Fprintf(os.Stderr, "  %s:%d: %s\n", r.file, f.Line, strings.ReplaceAll(f.Text, "\n", "\n    "))
	}
	return nil
}

func (r *row) measure(meters []*meter.Meter) {
	for _, m := range meters {
		for _, c := range m.Take() {
			if strings.Contains(c.Path, "embed") {
				continue
			}
			r.calls++
			r.prompt += c.Prompt
			r.output += c.Output
			if c.Cut {
				r.cut++
			}
		}
	}
}

// askBare asks the model with this name, at an Ollama, the questions of the story without the product.
func (r *row) askBare(ctx context.Context, url, name string) error {
	chat, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		return err
	}
	temperature := 0.0
	var messages []model.Message
	began := time.Now()
	for _, text := range r.texts {
		messages = append(messages, model.Message{Role: model.User, Content: text})
		var answer strings.Builder
		for c, err := range chat.Chat(ctx, model.Request{
			Model: name, Messages: messages, Stream: true,
			Options: model.Options{Window: 8192, Predict: 4096, Temperature: &temperature, KeepAlive: "-1"},
		}) {
			if err != nil {
				return err
			}
			answer.WriteString(c.Content)
			if c.Done {
				r.bare.prompt += c.Final.PromptTokens
				r.bare.output += c.Final.OutputTokens
			}
		}
		messages = append(messages, model.Message{Role: model.Assistant, Content: answer.String()})
	}
	r.bare.took = time.Since(began)
	return nil
}

func printTable(o options, rows []*row) {
	backend := "Ollama"
	if o.openai != "" {
		backend = "OpenAI-compatible server"
	}
	fmt.Printf("%s on %s; calls and tokens per question, background calls included\n\n", o.chat, backend)
	fmt.Println("| story | passed | seconds | model calls | prompt tokens | completion tokens | " +
		"bare: seconds | prompt tokens | completion tokens |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	cut := 0
	for _, r := range rows {
		if r.runs == 0 {
			fmt.Printf("| %s | skipped: %s | | | | | | | |\n", r.name, r.skipped)
			continue
		}
		asked := float64(max(1, r.questions*r.runs))
		fmt.Printf("| %s | %d of %d | %.0f | %.1f | %.0f | %.0f |", r.name, r.passed, r.runs,
			r.took.Seconds()/float64(r.runs),
			float64(r.calls)/asked, float64(r.prompt)/asked, float64(r.output)/asked)
		if n := len(r.texts); n > 0 && r.bare.took > 0 {
			fmt.Printf(" %.1f | %d | %d |\n", r.bare.took.Seconds(), r.bare.prompt/n, r.bare.output/n)
		} else {
			fmt.Println(" | | |")
		}
		cut += r.cut
	}
	if cut > 0 {
		fmt.Printf("\n%d calls were cut off; their tokens are not counted.\n", cut)
	}
}
