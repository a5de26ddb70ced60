// Command prompt measures what a user waits for: prompt tokens and the time to the first token for "hi", for a question
// that needs a tool, and for the fifth question of a session. It runs several builds of conclave in turn against the
// same model server, round by round, so that a build can be compared with an older one on one machine.
//
//	go run ./prompt -ollama http://127.0.0.1:11434 -model qwen-coder:1.5b \
//	    before=/tmp/conclave-old after=/tmp/conclave-new
//
// Each build runs as a user has it: everything in one process, a folder of its own, the shipped settings with this one
// model for all roles. Between two questions the program waits for background calls (digest, critic), because they
// decide what is left in the server's prompt cache.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"conclave/bench/internal/instance"
	"conclave/bench/internal/meter"
)

// conversation is what each build is asked, in one session. Rows of the table are the questions with a name.
var conversation = []struct{ row, text string }{
	{"hi", "hi"},
	{"tool question", "What time is it now in Nairobi?"},
	{"", "Who wrote Pride and Prejudice?"},
	{"", "Name two more books by the same author."},
	{"fifth question", "Which of them was published first?"},
}

func main() {
	url := flag.String("ollama", "", "`URL` of an Ollama")
	name := flag.String("model", "qwen-coder:1.5b", "chat model of every role")
	embeddings := flag.String("embeddings", "all-minilm", "embedding model")
	rounds := flag.Int("rounds", 1, "rounds; each build is measured once in each")
	idle := flag.Duration("idle", 15*time.Second, "how long no model call must run before the next question; at most "+
		"ten times as long is waited")
	timeout := flag.Duration("timeout", 10*time.Minute, "for one answer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, server{*url, *name, *embeddings}, *rounds, *idle, *timeout, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "prompt:", err)
		stop()
		os.Exit(1)
	}
}

// server is an Ollama with the models to use.
type server struct{ url, chat, embeddings string }

// build is a conclave program with its measurements by question.
type build struct {
	name, path string
	asked      [][]sample
}

// sample is one question: the model calls until the answer was there, and those after it.
type sample struct {
	foreground, background []meter.Call
	took                   time.Duration // until the answer was complete
	failed                 bool
}

func run(ctx context.Context, s server, rounds int, idle, timeout time.Duration, args []string) error {
	if s.url == "" || len(args) == 0 {
		return errors.New("-ollama and at least one build as name=program are needed")
	}
	var builds []*build
	for _, a := range args {
		n, path, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("%q is not name=program", a)
		}
		builds = append(builds, &build{name: n, path: path, asked: make([][]sample, len(conversation))})
	}
	for range rounds {
		for _, b := range builds {
			if err := b.measure(ctx, s, idle, timeout); err != nil {
				return fmt.Errorf("%s: %w", b.name, err)
			}
		}
	}
	printTable(s.chat, builds)
	return nil
}

// measure starts the build, asks the conversation in one session and stops it.
func (b *build) measure(ctx context.Context, from server, idle, timeout time.Duration) error {
	m, err := meter.Start(from.url)
	if err != nil {
		return err
	}
	defer m.Close()
	// Only settings that older builds know too.
	settings := fmt.Sprintf("roles: {assistant: %q, critic: %q, tools: %q, summaries: %q, embeddings: %q}\nhints: "+
		"{simple: %q}\ndefaults: {window: 8192}\nollama: {url: %q}\n",
		from.chat, from.chat, from.chat, from.chat, from.embeddings, from.chat, m.URL)
	in, err := instance.Create(b.path, map[string]string{"models.yaml": settings})
	if err != nil {
		return err
	}
	defer in.Remove()
	system, err := in.Start(ctx)
	if err != nil {
		return err
	}
	defer system.Stop()
	waitIdle(ctx, m, idle)
	m.Take()
	for i, q := range conversation {
		fmt.Fprintf(os.Stderr, "%s: %q: ", b.name, q.text)
		began := time.Now()
		out, err := in.Command(ctx, "ask", "--session", "measured", "--grade-wait", "0", "--timeout", timeout.String(),
			"--json", q.text).CombinedOutput()
		s := sample{took: time.Since(began), failed: err != nil, foreground: m.Take()}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		waitIdle(ctx, m, idle)
		s.background = m.Take()
		b.asked[i] = append(b.asked[i], s)
		fmt.Fprintf(os.Stderr, "%.1f s, %d calls before and %d after the answer\n", s.took.Seconds(), len(s.foreground),
			len(s.background))
		if err != nil {
			fmt.Fprintf(os.Stderr, "  failed: %s\n", strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// waitIdle waits until no model call was open for the time idle, at most ten times as long.
func waitIdle(ctx context.Context, m *meter.Meter, idle time.Duration) {
	for deadline := time.Now().Add(10 * idle); time.Now().Before(deadline) && ctx.Err() == nil; {
		quiet := m.Quiet()
		if quiet >= idle {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(idle - quiet):
		}
	}
}

func printTable(name string, builds []*build) {
	fmt.Printf("%s; means over the rounds. Prompt tokens as the server counts them; seconds to the first token of "+
		"the answer's last model call, from the question\n\n", name)
	fmt.Println("| question | build | model calls | prompt tokens | reading prompts, s | first token, s | answer " +
		"complete, s | calls after the answer | their prompt tokens |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for i, q := range conversation {
		if q.row == "" {
			continue
		}
		for _, b := range builds {
			var calls, prompt, reading, first, took, after, later float64
			failed := 0
			for _, s := range b.asked[i] {
				f := s.figures()
				calls += float64(len(s.foreground))
				prompt += f.prompt
				reading += f.reading
				first += f.first
				took += s.took.Seconds()
				after += float64(len(s.background))
				later += f.later
				if s.failed {
					failed++
				}
			}
			n, row := float64(max(1, len(b.asked[i]))), q.row
			if failed > 0 {
				row += fmt.Sprintf(" (%d failed)", failed)
			}
			fmt.Printf("| %s | %s | %.1f | %.0f | %.1f | %.1f | %.1f | %.1f | %.0f |\n", row, b.name, calls/n, prompt/n,
				reading/n, first/n, took/n, after/n, later/n)
		}
	}
}

// figures are the sums of a sample; times in seconds.
type figures struct{ prompt, reading, first, later float64 }

// figures adds up the calls. The first token of the answer is that of the last model call before it, counted from the
// first call of the question: what comes before are decisions and tool calls.
func (s sample) figures() (f figures) {
	for i, c := range s.foreground {
		f.prompt += float64(c.Prompt)
		f.reading += c.PromptTime.Seconds()
		if i == len(s.foreground)-1 {
			f.first = c.Began.Add(c.First).Sub(s.foreground[0].Began).Seconds()
		}
	}
	for _, c := range s.background {
		f.later += float64(c.Prompt)
	}
	return f
}
