package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/chat"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// modelTestCommand asks a model for an answer, a tool call and a memory, through the running system. A check that fails
// is exit code 1. It rejects an invalid name and a timeout that is not positive, and refuses the demo model.
func modelTestCommand(a *cli.App) *cobra.Command {
	x := &modelExamination{App: a}
	cmd := &cobra.Command{
		Use:   "test [name]",
		Short: "Test a model: a question, a tool call and a memory",
		Long: `Tests the assistant's model, or the named one, through the running system: it must answer a plain
question, call a tool for the time in Tokyo, and answer in a new session from a fact that is stored
in memory. It prints a line for each, ok or fail, with the time, and the measured speed of the model
in tokens per second.

The sessions and memories of the test are deleted at the end, except an entry that replaced one of
yours; the event log and the audit log keep their records. The exit code is 1 if a check failed.`,
		Example: `  conclave model test
  conclave model test qwen3:8b
  conclave model test --json | jq '.checks[] | select(.level == "fail")'`,
		Args:              cli.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cli.FirstArg(completeModels(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if len(v) > 0 {
				x.model = v[0]
				if err := cli.CheckModel(x.model); err != nil {
					return err
				}
			}
			if err := cli.CheckTimeout(x.timeout, "5m"); err != nil {
				return err
			}
			return a.WithClient(func(c *client.Client) error { return x.run(cmd.Context(), c) })
		},
	}
	cmd.Flags().DurationVar(&x.timeout, "timeout", 5*time.Minute, "how long to wait for each answer")
	return cmd
}

// modelExamination is a test of a model.
type modelExamination struct {
	*cli.App
	model   string // "" = the assistant's
	timeout time.Duration

	checks   []doctor.Check
	sessions []string // of the questions
	kept     []string // ids of the questions whose answers memory keeps
}

// testFact is what memory must recall in the test.
const testFact = "The mascot of the model test is a heron called Marabou."

// tidyTimeout bounds the end of a test: memory stores an answer after it was delivered.
const tidyTimeout = 30 * time.Second

// run makes the checks, deletes what they stored and prints the result.
func (x *modelExamination) run(ctx context.Context, c *client.Client) error {
	list, err := c.Models(ctx)
	if err != nil {
		return cli.ModelError(err)
	}
	name := chat.StateOf(list, x.model).Name
	if name == "" {
		return cli.Fail(cli.ExitAbsent, "there is only the built-in demo model, which is no language model",
			"run ollama serve, then "+x.Program()+" model pull")
	}
	isNamed := func(m subjects.ModelInfo) bool { return isSameModel(m.Name, x.model) }
	if x.model != "" && !slices.ContainsFunc(list.Models, isNamed) {
		return cli.Fail(cli.ExitFailed, "there is no model "+x.model, "choose one from "+x.Program()+" model list")
	}
	stored, err := c.Watch(ctx, subjects.MemoryStored.Name, 0)
	if err != nil {
		return err
	}
	defer stored.Close()
	fact, _, noMemory := c.AddMemory(ctx, subjects.MemoryEntry{Corpus: testFact}, false)
	x.ask(ctx, c, "question", "What is the capital of France?", "Paris", "")
	x.ask(ctx, c, "tool call", "What time is it in Tokyo?", "", "get_datetime")
	if noMemory == nil {
		x.ask(ctx, c, "recall", "What is the mascot of the model test called?", "Marabou", "")
		x.forget(ctx, c, stored, fact.ID)
	} else {
		x.add("recall", doctor.LevelWarn, "not tested: "+x.MemoryError(noMemory).Error())
	}
	x.deleteSessions(ctx, c)
	list, err = c.Models(ctx)
	if err == nil {
		for _, m := range list.Models {
			if isSameModel(m.Name, name) {
				x.add("speed", doctor.LevelOK, name+": "+term.Speeds(m.PromptSpeed, m.OutputSpeed)+" tokens/s")
			}
		}
	}
	failed := doctor.CountFailed(x.checks)
	err = x.Print(struct {
		OK     bool           `json:"ok"`
		Model  string         `json:"model"`
		Checks []doctor.Check `json:"checks"`
	}{failed == 0, name, x.checks}, nil, func() {})
	if failed > 0 {
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("%s failed", term.Count(failed, "check")), "choose another model "+
			"from "+x.Program()+" model list")
	}
	return err
}

func isSameModel(a, b string) bool {
	return strings.TrimSuffix(a, ":latest") == strings.TrimSuffix(b, ":latest")
}

// add adds a check and, without --json, prints it.
func (x *modelExamination) add(name, level, text string) {
	check := doctor.Check{Name: name, Level: level, Text: text}
	x.checks = append(x.checks, check)
	if !x.JSON {
		doctor.Print(x.Out, []doctor.Check{check})
	}
}

// ask asks a question in a session of its own and adds a check of the answer: it must contain the word, and have called
// the tool, unless either is "".
func (x *modelExamination) ask(ctx context.Context, c *client.Client, name, question, word, tool string) {
	session, began := actor.NewID(), time.Now()
	q, err := c.Ask(ctx, client.Question{Session: session, Text: question, Model: x.model, Timeout: x.timeout})
	if err != nil {
		x.add(name, doctor.LevelFail, "not asked: "+err.Error())
		return
	}
	defer q.Close()
	x.sessions = append(x.sessions, session)
	r, err := q.Wait()
	took := fmt.Sprintf("%.1f s", time.Since(began).Seconds())
	called := slices.ContainsFunc(r.ToolCalls, func(t subjects.ToolCall) bool {
		return t.Tool == tool && t.Error == nil
	})
	if err == nil && r.Error != nil {
		err = r.Error
	}
	switch {
	case err != nil:
		x.add(name, doctor.LevelFail, took+", no answer: "+err.Error())
		return
	case tool != "" && !called:
		x.add(name, doctor.LevelFail, took+", "+tool+" was not called: "+term.Clip(r.Answer, 200))
	case r.Partial || !strings.Contains(r.Answer, word):
		x.add(name, doctor.LevelFail, took+", a wrong answer: "+term.Clip(r.Answer, 200))
	default:
		x.add(name, doctor.LevelOK, took+", "+term.Clip(r.Answer, 60))
	}
	if !r.Partial && !called { // what a tool says of this moment is not remembered
		x.kept = append(x.kept, q.ID)
	}
}

// forget deletes a fact and the answers that memory has stored or stores within [tidyTimeout]. An entry that superseded
// one of the user's stays, because the other would be forgotten with it. What stays is said.
func (x *modelExamination) forget(ctx context.Context, c *client.Client, stored *client.Watch, fact string) {
	ctx = context.WithoutCancel(ctx)
	waiting, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	ids := []string{fact}
	for e := range stored.Events(waiting) {
		event, _, ok := client.DecodeAs(e, subjects.MemoryStored)
		at := slices.Index(x.kept, event.QueryID)
		if ok && at >= 0 && len(event.IDs) > 0 {
			x.kept = slices.Delete(x.kept, at, at+1)
			ids = append(ids, event.IDs[0]) // the others are older ones that it was compared with
		}
		if len(x.kept) == 0 {
			break
		}
	}
	isForeign := func(id string) bool { return !slices.Contains(ids, id) }
	var own []string
	for _, id := range ids {
		entry, err := c.ShowMemory(ctx, id)
		if err == nil && !slices.ContainsFunc(entry.Supersedes, isForeign) {
			own = append(own, id)
		}
	}
	_, _, err := c.ForgetMemories(ctx, own)
	if err != nil || len(x.kept) > 0 || len(own) < len(ids) {
		x.Say("memory may keep something of the test: see %s memory list", x.Program())
	}
}

// deleteSessions deletes the sessions of the questions. A failure is only said.
func (x *modelExamination) deleteSessions(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	for _, id := range x.sessions {
		if _, err := c.ChangeSession(ctx, id, subjects.SessionDelete); err != nil {
			x.Say("session %s was not deleted: %s", id, term.OneLine(err.Error()))
		}
	}
}
