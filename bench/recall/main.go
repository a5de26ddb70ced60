// Command recall measures whether memory finds what it was told: it stores conversations through POST /memory of a real
// conclave, asks the questions of the file through GET /memory/search, and prints how much of the evidence is among the
// first 5, 10 and 20 entries. Beside it, over the same texts in the same run: BM25 with stems and stop words, and
// cosine over the same vectors.
//
//	go run ./recall -data recall-dev.jsonl -ollama http://127.0.0.1:11434
//
// The file has one JSON object per line, {kind: turn, conv, id, session, date, speaker, text, caption} or
// {kind: question, conv, category, question, evidence: ids of turns}. All conversations are stored in one memory.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"conclave/bench/internal/instance"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scripted"
)

// Forms in which turns are stored.
const (
	formFields = "fields"
	formText   = "text"
)

// options are the flags.
type options struct {
	data, ollama, conclave, form, embeddings, chat string
	grid                                           []weights
	cv                                             bool
}

// noEmbeddings is the value of -embeddings for the built-in hash embedding.
const noEmbeddings = "none"

func main() {
	var o options
	var grid string
	flag.StringVar(&o.data, "data", "", "`file` with conversations and questions")
	flag.StringVar(&o.ollama, "ollama", "", "`URL` of an Ollama with the embedding model")
	flag.StringVar(&o.conclave, "conclave", "", "the `program` conclave (default: built from ..)")
	flag.StringVar(&o.form, "form", formFields, "how turns are stored. fields: conversation, position, speaker and "+
		"time as fields; text: all of it in one plain text")
	flag.StringVar(&o.embeddings, "embeddings", "all-minilm", "embedding `model`; none for the built-in hash "+
		"embedding, which needs no server")
	flag.StringVar(&o.chat, "chat", "", "`model` that names and describes entries (default: fixed rules do)")
	flag.StringVar(&grid, "weights", "", "weights of the recall in memory.yaml as `name=value,...`; with -cv several "+
		"values each, name=0.5/0.8")
	flag.BoolVar(&o.cv, "cv", false,
		"choose among -weights on all conversations but one and report on that one, for each")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if o.grid, err = parseGrid(grid); err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recall:", err)
		stop()
		os.Exit(1)
	}
}

// check rejects missing flags and those that exclude each other.
func (o options) check() error {
	switch {
	case o.data == "":
		return errors.New("-data is needed")
	case o.form != formFields && o.form != formText:
		return fmt.Errorf("-form %q: give %s or %s", o.form, formFields, formText)
	case o.embeddings == noEmbeddings && o.chat != "":
		return errors.New("-embeddings none runs without a server: leave out -chat")
	case o.embeddings != noEmbeddings && o.ollama == "":
		return errors.New("-ollama is needed, or -embeddings none")
	case len(o.grid) > 1 && !o.cv:
		return errors.New("-weights with several values needs -cv")
	}
	return nil
}

// run stores the conversations once and asks the questions with each combination of weights.
func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	d, err := readDataset(o.data)
	if err != nil {
		return err
	}
	fmt.Printf("%d turns, %d questions (%d without evidence left out), form %s, embeddings %s\n", len(d.turns),
		len(d.questions), d.skipped, o.form, o.embeddings)
	baselines, err := runBaselines(ctx, o, d)
	if err != nil {
		return err
	}
	if o.conclave == "" {
		var remove func()
		if o.conclave, remove, err = instance.Build(ctx); err != nil {
			return err
		}
		defer remove()
	}
	in, err := instance.Create(o.conclave, o.settings())
	if err != nil {
		return err
	}
	defer in.Remove()
	var stored *storage
	var outcomes []*outcome
	for _, w := range o.grid {
		if err := in.Configure("memory.yaml", o.memorySettings(w)); err != nil {
			return err
		}
		got, err := measure(ctx, in, d, o.form, &stored)
		if err != nil {
			return err
		}
		got.name = "Conclave"
		if len(w) > 0 {
			got.name += ", " + w.String()
		}
		outcomes = append(outcomes, got)
	}
	fmt.Println()
	printTable(os.Stdout, append(outcomes, baselines...)...)
	if o.cv {
		printFolds(o, d, outcomes)
	}
	return nil
}

// measure starts the system, stores the turns when stored is nil, and asks every question.
func measure(ctx context.Context, in *instance.Instance, d *dataset, form string, stored **storage) (*outcome, error) {
	s, err := in.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	if *stored == nil {
		if *stored, err = storeTurns(ctx, s, d, form); err != nil {
			return nil, err
		}
		took := (*stored).took
		fmt.Printf("stored in %.1f s (%.0f per second): %s\n", took.Seconds(), float64(len(d.turns))/took.Seconds(),
			formatActions((*stored).actions))
	}
	if err := waitEmbedded(ctx, s); err != nil {
		return nil, err
	}
	var times []time.Duration
	o, err := d.evaluate("", func(_ int, q question) (map[int]int, error) {
		began := time.Now()
		found, err := search(ctx, s, *stored, q.text)
		times = append(times, time.Since(began))
		return found, err
	})
	if err != nil {
		return nil, err
	}
	o.times = times
	return o, nil
}

func formatActions(actions map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(actions)) {
		parts = append(parts, fmt.Sprintf("%d %s", actions[name], name))
	}
	return strings.Join(parts, ", ")
}

// settings are the settings that do not change during the measurement, by file. Thousands of searches in a day exceed
// the quota of events of memory.
func (o options) settings() map[string]string {
	const system = "event_max: 20GB\n"
	if o.embeddings == noEmbeddings {
		return map[string]string{"system.yaml": system, "models.yaml": "demo_model: always\n"}
	}
	chat := cmp.Or(o.chat, "none") // no chat model is called
	return map[string]string{"system.yaml": system, "models.yaml": fmt.Sprintf("demo_model: never\nroles: "+
		"{assistant: %q, embeddings: %q}\nmodels: {%q: {small: true}}\nollama: {url: %q}\n", chat, o.embeddings,
		o.embeddings, o.ollama)}
}

func (o options) memorySettings(w weights) string {
	return fmt.Sprintf("model: %t\n", o.chat != "") + w.settings()
}

// runBaselines ranks the turns as plain texts by BM25 and by cosine.
func runBaselines(ctx context.Context, o options, d *dataset) ([]*outcome, error) {
	var e model.Embedder = scripted.Backend{}
	name := scripted.Name
	if o.embeddings != noEmbeddings {
		server, err := ollama.New(ollama.Config{URL: o.ollama})
		if err != nil {
			return nil, err
		}
		e, name = server, o.embeddings
	}
	texts, questions := make([]string, len(d.turns)), make([]string, len(d.questions))
	for i, t := range d.turns {
		texts[i] = t.plain()
	}
	for i, q := range d.questions {
		questions[i] = q.text
	}
	vectors, err := embedAll(ctx, e, name, texts)
	if err != nil {
		return nil, err
	}
	asked, err := embedAll(ctx, e, name, questions)
	if err != nil {
		return nil, err
	}
	index := newBM25(texts)
	words, err := d.evaluate("BM25, stems, stop words", func(_ int, q question) (map[int]int, error) {
		return positions(index.rank(q.text, depth)), nil
	})
	if err != nil {
		return nil, err
	}
	cosine, err := d.evaluate("cosine, same vectors", func(i int, _ question) (map[int]int, error) {
		return positions(rankCosine(vectors, asked[i], depth)), nil
	})
	return []*outcome{words, cosine}, err
}

func printFolds(o options, d *dataset, outcomes []*outcome) {
	folds, mean := crossValidate(d.conversations, outcomes)
	fmt.Printf("\n| left out | weights chosen on the others | R@5 | R@10 | R@20 | MRR |\n|---|---|---|---|---|---|\n")
	for _, f := range folds {
		if got := outcomes[f.best].byConversation[f.conversation]; got != nil {
			fmt.Printf("| %s | %s | %.1f | %.1f | %.1f | %.1f |\n", f.conversation, o.grid[f.best], got.recall(0),
				got.recall(1), got.recall(2), got.mrr())
		}
	}
	fmt.Printf("| mean | | %.1f | %.1f | %.1f | %.1f |\n", mean[0], mean[1], mean[2], mean[3])
}
