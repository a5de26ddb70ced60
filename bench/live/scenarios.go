package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/bench/internal/instance"
	"conclave/bench/internal/meter"
	"conclave/subjects"
)

// scenario is something that a user does with a running system, checked by what comes back. run returns "" when it
// passed, and otherwise what was seen.
type scenario struct {
	name      string
	questions int
	run       func(ctx context.Context, in *instance.Instance, n int) string
}

var scenarios = []scenario{
	{"chat of ten turns", 10, runChat},
	{"committee of three", 1, runCommittee},
	{"task of two subtasks", 1, runTask},
	{"coding task", 1, runCodingTask},
	{"attachment", 1, runAttachment},
	{"vectors", 1, runVectors},
}

// runScenarios runs each scenario o.runs times on one running system, so that memory fills up as in use.
func runScenarios(ctx context.Context, o options, in *instance.Instance, meters []*meter.Meter) ([]*row, error) {
	sys, err := in.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer sys.Stop()
	var rows []*row
	for _, s := range scenarios {
		r := &row{name: s.name, questions: s.questions}
		rows = append(rows, r)
		for n := range o.runs {
			began := time.Now()
			seen := s.run(ctx, in, o.first+n)
			if ctx.Err() != nil {
				return rows, ctx.Err()
			}
			r.runs++
			r.took += time.Since(began)
			r.measure(meters)
			word := "ok"
			if seen == "" {
				r.passed++
			} else {
				word = "FAILED: " + seen
			}
			fmt.Fprintf(os.Stderr, "run %d of %d, %s: %.0f s, %s\n", n+1, o.runs, s.name, time.Since(began).Seconds(),
				word)
		}
	}
	return rows, nil
}

// answerOf runs a command of conclave that prints a response as JSON, and returns its answer. A command that fails
// returns what it printed.
func answerOf(ctx context.Context, in *instance.Instance, args ...string) string {
	out, talk := runCommand(ctx, in, append(args, "--json")...)
	var r struct {
		Answer string `json:"answer"`
	}
	if json.Unmarshal(out, &r) != nil || r.Answer == "" {
		return "(no answer) " + talk
	}
	return r.Answer
}

func runCommand(ctx context.Context, in *instance.Instance, args ...string) (out []byte, talk string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := in.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&stderr, " (%v)", err)
	}
	return stdout.Bytes(), strings.TrimSpace(stderr.String())
}

// runChat asks ten questions: a follow-up and two recalls in sessions of their own must be right, and four
// of the five others that are checked.
func runChat(ctx context.Context, in *instance.Instance, n int) string {
	session := fmt.Sprintf("chat-%d", n)
	var wrong []string
	needed := 0
	for i, t := range []struct {
		text, want string
		needed     bool
		elsewhere  bool // in a session of its own
	}{
		{text: "My name is Nora and I live in Graz."},
		{text: "My dog is called Bruno."},
		{text: "What is the capital of France?", want: "paris"},
		{text: "And of Spain?", want: "madrid", needed: true},
		{text: "How many legs does a spider have?", want: `\b8\b|eight`},
		{text: "Translate 'good morning' to German.", want: "guten morgen"},
		{text: "What is 12 times 12?", want: "144"},
		{text: "Write one sentence about rain.", want: "rain"},
		{text: "Which animal do I have?", want: "dog|bruno", needed: true, elsewhere: true},
		{text: "In which town do I live?", want: "graz", needed: true, elsewhere: true},
	} {
		id := session
		if t.elsewhere {
			id = fmt.Sprintf("%s-%d", session, i)
		}
		got := answerOf(ctx, in, "ask", "--grade-wait", "0", "--session", id, t.text)
		if !regexp.MustCompile("(?i)" + t.want).MatchString(got) {
			wrong = append(wrong, fmt.Sprintf("%q: %.160q", t.text, got))
			if t.needed {
				needed++
			}
		}
	}
	if needed == 0 && len(wrong) <= 1 {
		return ""
	}
	return strings.Join(wrong, "; ")
}

// runCommittee expects deliberations of three personas and an answer of more than a yes or no.
func runCommittee(ctx context.Context, in *instance.Instance, n int) string {
	questions := []string{
		"Should I learn to play the piano at forty?", "Should I move from the city to a village?",
		"Is it wise to lend a friend money?", "Should I buy a bicycle or a car?", "Should I get a second dog?",
	}
	out, talk := runCommand(ctx, in, "ask", "--committee", "--stream-json", questions[n%len(questions)])
	done, answer := map[string]bool{}, ""
	for line := range bytes.Lines(out) {
		var e struct {
			Type         string `json:"type"`
			Deliberation struct {
				Persona string `json:"persona"`
				Status  string `json:"status"`
			} `json:"deliberation"`
			Response struct {
				Answer string `json:"answer"`
			} `json:"response"`
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if e.Deliberation.Status == "done" {
			done[e.Deliberation.Persona] = true
		}
		answer += e.Response.Answer
	}
	if len(done) < 3 || len(strings.Fields(answer)) < 8 {
		return fmt.Sprintf("%d deliberations, answer %.200q %.200s", len(done), answer, talk)
	}
	return ""
}

func runTask(ctx context.Context, in *instance.Instance, n int) string {
	tasks := []string{
		"Compare trains and buses for a trip of 200 km, and then write a short recommendation.",
		"Explain what a hash table is, and then write a short quiz question about it.",
		"Write a short poem about the sea, and then translate it into Spanish.",
		"Name three healthy breakfasts, and then write a shopping list for one of them.",
		"Describe how tides work in two sentences, and then list two things that fishermen should know about them.",
	}
	return checkTask(ctx, in, tasks[n%len(tasks)])
}

func runCodingTask(ctx context.Context, in *instance.Instance, _ int) string {
	return checkTask(ctx, in, "Write a Python program that prints the first ten prime numbers, and run it.")
}

// checkTask expects an accepted plan and a report.
func checkTask(ctx context.Context, in *instance.Instance, task string) string {
	out, talk := runCommand(ctx, in, "task", "--json", "--timeout", "8m", task)
	var r struct {
		Answer string `json:"answer"`
		Error  *struct {
			Text string `json:"text"`
		} `json:"error"`
		Partial bool `json:"partial"`
	}
	if json.Unmarshal(out, &r) != nil || r.Answer == "" {
		return fmt.Sprintf("no report: %.300s", talk)
	}
	if r.Error != nil || r.Partial {
		return fmt.Sprintf("%.900q %.300s", r.Answer, talk)
	}
	return ""
}

func runAttachment(ctx context.Context, in *instance.Instance, n int) string {
	file := filepath.Join(in.DataDir(), "..", fmt.Sprintf("minutes-%d.txt", n))
	days := []string{"Tuesday", "Wednesday", "Friday", "Monday", "Thursday"}
	day := days[n%len(days)]
	text := "Minutes. The garden group met in the school. The next meeting is on " + day + " at six in the library.\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err.Error()
	}
	got := answerOf(ctx, in, "ask", "--grade-wait", "0", "--attach", file, "On which day is the next meeting?")
	if !strings.Contains(got, day) {
		return fmt.Sprintf("%.200q, want %s", got, day)
	}
	return ""
}

// runVectors stores a sentence and expects that within ten seconds no entry is without a vector, and that no embedding
// was denied because of another model.
func runVectors(ctx context.Context, in *instance.Instance, n int) string {
	facts := []string{"Ada plays chess.", "The bicycle has a flat tyre.", "The cellar key hangs by the door."}
	if _, talk := runCommand(ctx, in, "memory", "add", facts[n%len(facts)]); strings.Contains(talk, "(exit") {
		return talk
	}
	var s struct {
		Unembedded int `json:"unembedded"`
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		out, talk := runCommand(ctx, in, "memory", "status", "--json")
		if err := json.Unmarshal(out, &s); err != nil {
			return fmt.Sprintf("%v %s", err, talk)
		}
		if s.Unembedded == 0 {
			return checkDenied(in)
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("%d entries have no vector", s.Unembedded)
		}
	}
}

// checkDenied returns the first line of the log that says that an embedding was denied.
func checkDenied(in *instance.Instance) string {
	log, err := os.ReadFile(filepath.Join(in.DataDir(), "..", "log"))
	if err != nil {
		return err.Error()
	}
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte(subjects.CodeModelSwap)) {
			return string(line)
		}
	}
	return ""
}

// selectScenarios keeps the scenarios whose name contains one of the words, all without words.
func selectScenarios(words string) {
	if words == "" || words == "all" {
		return
	}
	scenarios = slices.DeleteFunc(scenarios, func(s scenario) bool {
		return !slices.ContainsFunc(strings.Split(words, ","), func(w string) bool {
			return strings.Contains(s.name, w)
		})
	})
}
