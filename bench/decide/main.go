// Command decide measures whether a real model makes the right first decision: answer directly, or call which tool with
// what. It asks the same questions in three modes, one mode after the other, so that each finds its own prompt in the
// cache of the server, as in use:
//
//	constrained   pkg/loop with decisions under a JSON schema; as in the generator, memory is searched for every
//	              question before the decision, so that no decision to search it is left to make
//	native        pkg/loop with the model's own tool calls
//	bare          one request with native tools and a short system text, no loop around it
//
// The modes offer the shipped definitions of the usual four tools, constrained without search_memory; the two of the
// loop have the shipped system prompt, and constrained the examples. Temperature 0 and a fixed seed, one question per
// session, nothing in memory.
//
// The questions are in development.jsonl and held.jsonl, one JSON object a line. Both halves were written before the
// prompts, the instructions of the loop and any reply of a model were seen (only the names of the tools and the first
// sentences of three tool descriptions). Misses in the development half may be used to improve prompts and loop; the
// held half is only measured, and -misses does not print it.
//
// Run it from the folder bench, for example against .ci/live --serve:
//
//	go run ./decide -ollama http://127.0.0.1:11434 -model qwen-coder:1.5b
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
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/openai"
)

//go:embed development.jsonl
var developmentHalf []byte

//go:embed held.jsonl
var heldHalf []byte

// Questions about the user's own notes, calendar, files and memory, which are offered with the tools for them.
//
//go:embed everyday_development.jsonl
var everydayDevelopment []byte

//go:embed everyday_held.jsonl
var everydayHeld []byte

// answer is the decision to answer without a tool.
const answer = "answer"

// question is a question with its right first decision.
type question struct {
	ID       string `json:"id"`
	Language string `json:"lang"`
	Text     string `json:"question"`
	Want     string `json:"want"` // answer or the name of a tool; several separated by "|"
	// one of these must be in the arguments, in any case of letters; none = anything
	Argument []string `json:"argument"`
	held     bool
	everyday bool // of the everyday questions
}

// decision is what a mode decided.
type decision struct {
	choice    string // answer, or the name of a tool; "" = it failed
	arguments string // JSON
	recalled  bool   // memory was searched for the question before the decision
	took      time.Duration
	prompt    int // tokens of all model calls up to the decision
	output    int
	err       error
}

// isRight reports whether d is the right decision for q. Where memory was searched before, to answer is right for a
// question that needs memory.
func (q question) isRight(d decision) bool {
	if d.recalled && q.Want == "search_memory" {
		return d.choice == answer
	}
	if !slices.Contains(strings.Split(q.Want, "|"), d.choice) {
		return false
	}
	args := strings.ToLower(d.arguments)
	return len(q.Argument) == 0 || slices.ContainsFunc(q.Argument, func(s string) bool {
		return strings.Contains(args, strings.ToLower(s))
	})
}

func main() {
	var o options
	flag.StringVar(&o.ollama, "ollama", "", "`URL` of an Ollama")
	flag.StringVar(&o.openai, "openai", "", "`URL` of an OpenAI-compatible server, in place of Ollama")
	flag.StringVar(&o.model, "model", "qwen-coder:1.5b", "model")
	flag.StringVar(&o.half, "half", "both", "development, held or both")
	flag.StringVar(&o.modes, "modes", "constrained,native,bare", "modes, separated by commas")
	flag.StringVar(&o.misses, "misses", "", "write the misses of the development half to this `file`")
	flag.Float64Var(&o.need, "need", 0, "exit 1 when constrained decisions are right in less than this share")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	share, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "decide:", err)
		stop()
		os.Exit(1)
	}
	if share < o.need {
		fmt.Fprintf(os.Stderr, "decide: %.0f %% of the constrained decisions are right, less than %.0f %%\n", 100*share,
			100*o.need)
		stop()
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	ollama, openai, model, half, modes, misses string
	need                                       float64
}

// run measures and prints the tables. It returns the share of right constrained decisions, 1 when none were made.
func run(ctx context.Context, o options) (float64, error) {
	chat, err := o.backend()
	if err != nil {
		return 0, err
	}
	questions, err := readQuestions(o.half)
	if err != nil {
		return 0, err
	}
	var all []mode
	for name := range strings.SplitSeq(o.modes, ",") {
		decide := deciders[name]
		if decide == nil {
			return 0, fmt.Errorf("no mode %q", name)
		}
		all = append(all, mode{name: name, decide: decide})
	}
	var missed bytes.Buffer
ask:
	for i := range all { // mode by mode, so that each finds its own prompt in the server's cache, as in use
		for n, q := range questions {
			d := all[i].decide(ctx, chat, o.model, q)
			if ctx.Err() != nil {
				fmt.Fprintln(os.Stderr, "interrupted: the tables have the questions so far")
				break ask
			}
			// no decision of the model
			if errors.Is(d.err, model.ErrUnreachable) || errors.Is(d.err, model.ErrMissing) {
				return 0, d.err
			}
			right := q.isRight(d)
			all[i].results = append(all[i].results, result{q, d, right})
			fmt.Fprintf(os.Stderr, "%s, %3d of %d %s: %s (%.1f s)", all[i].name, n+1, len(questions), q.ID,
				describeRight(right), d.took.Seconds())
			if !right && !q.held {
				fmt.Fprintf(os.Stderr, " %s %s", d.choice, d.arguments)
				fmt.Fprintf(&missed, "%s\t%s\t%q\twant %s %v\tgot %s %s %v\n", all[i].name, q.ID, q.Text, q.Want,
					q.Argument, d.choice, d.arguments, errorText(d.err))
			}
			fmt.Fprintln(os.Stderr)
		}
	}
	printTables(o.model, all)
	if o.misses != "" {
		if err := os.WriteFile(o.misses, missed.Bytes(), 0o644); err != nil {
			return 0, err
		}
	}
	return shareOf(all, "constrained"), nil
}

func describeRight(right bool) string {
	if right {
		return "right"
	}
	return "WRONG"
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return "error: " + err.Error()
}

func (o options) backend() (model.Chat, error) {
	switch {
	case o.openai != "":
		return openai.New(openai.Config{URL: o.openai})
	case o.ollama != "":
		return ollama.New(ollama.Config{URL: o.ollama})
	}
	return nil, errors.New("-ollama or -openai is needed: the URL of a model server, for example of .ci/live --serve")
}

// readQuestions returns the questions of a half or of both, sorted so that languages and halves alternate.
func readQuestions(half string) ([]question, error) {
	var all []question
	for _, f := range []struct {
		half     string
		text     []byte
		everyday bool
	}{
		{"development", developmentHalf, false},
		{"held", heldHalf, false},
		{"development", everydayDevelopment, true},
		{"held", everydayHeld, true},
	} {
		if half != "both" && half != f.half {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(f.text))
		for lines.Scan() {
			q := question{held: f.half == "held", everyday: f.everyday}
			d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
			d.DisallowUnknownFields()
			if err := d.Decode(&q); err != nil {
				return nil, fmt.Errorf("reading the %s half: %w", f.half, err)
			}
			all = append(all, q)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no half %q", half)
	}
	slices.SortFunc(all, func(a, b question) int { // by number, then by language and half
		return strings.Compare(a.ID[4:]+a.ID, b.ID[4:]+b.ID)
	})
	return all, nil
}

// mode is a way to decide with its results.
type mode struct {
	name    string
	decide  decider
	results []result
}

type result struct {
	question
	decision
	right bool
}

// count returns the right decisions and all of those that pick selects.
func (m mode) count(pick func(question) bool) (right, all int) {
	for _, r := range m.results {
		if pick(r.question) {
			all++
			if r.right {
				right++
			}
		}
	}
	return right, all
}

func shareOf(all []mode, name string) float64 {
	for _, m := range all {
		if m.name == name && len(m.results) > 0 {
			right, n := m.count(func(question) bool { return true })
			return float64(right) / float64(n)
		}
	}
	return 1
}

// wilson returns the bounds of the 95 % Wilson interval of a share.
func wilson(right, all int) (low, high float64) {
	if all == 0 {
		return 0, 1
	}
	const z = 1.959964
	n, p := float64(all), float64(right)/float64(all)
	center, spread := p+z*z/(2*n), z*math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(0, (center-spread)/(1+z*z/n)), min(1, (center+spread)/(1+z*z/n))
}

func printTables(name string, all []mode) {
	fmt.Printf("Right first decisions of %s; in brackets the 95 %% Wilson interval\n\n", name)
	groups := []struct {
		name string
		pick func(question) bool
	}{
		{"all", func(question) bool { return true }},
		{"English", func(q question) bool { return q.Language == "en" }},
		{"German", func(q question) bool { return q.Language == "de" }},
		{"Spanish", func(q question) bool { return q.Language == "es" }},
		{"everyday: notes, calendar, files, memory", func(q question) bool { return q.everyday }},
		{"development half", func(q question) bool { return !q.held }},
		{"held half", func(q question) bool { return q.held }},
	}
	for _, want := range []string{answer, "get_datetime", "web_search", "web_fetch", "search_memory"} {
		groups = append(groups, struct {
			name string
			pick func(question) bool
		}{"right is " + want, func(q question) bool { return q.Want == want }})
	}
	head, line := "| questions |", "|---|"
	for _, m := range all {
		head, line = head+" "+m.name+" |", line+"---|"
	}
	fmt.Println(head)
	fmt.Println(line)
	for _, g := range groups {
		row := "| " + g.name + " |"
		for _, m := range all {
			right, n := m.count(g.pick)
			low, high := wilson(right, n)
			row += fmt.Sprintf(" %d of %d (%.0f-%.0f %%) |", right, n, 100*low, 100*high)
		}
		fmt.Println(row)
	}
	for _, f := range []struct {
		name   string
		figure func(decision) float64
	}{
		{"seconds per question", func(d decision) float64 { return d.took.Seconds() }},
		{"prompt tokens per question", func(d decision) float64 { return float64(d.prompt) }},
		{"completion tokens per question", func(d decision) float64 { return float64(d.output) }},
	} {
		row := "| " + f.name + " |"
		for _, m := range all {
			sum := 0.0
			for _, r := range m.results {
				sum += f.figure(r.decision)
			}
			row += fmt.Sprintf(" %.1f |", sum/float64(max(1, len(m.results))))
		}
		fmt.Println(row)
	}
}
