package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// modelCommand shows and fetches models.
func (a *app) modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "List and fetch models",
		Long:  `Shows the models at hand and which role each has, and fetches models. Which role has which model is set in models.yaml.`,
		Example: `  conclave model list
  conclave model pull gemma4:12b`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage("say what to do with models: list or pull: see %s --help", cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.modelListCommand(), a.modelPullCommand())
	return cmd
}

// asUser is how the user speaks to the system.
func (a *app) asUser(opts ...nats.Option) (actor.Out, func(), error) {
	nc, err := a.dial("user", opts...)
	if err != nil {
		return nil, nil, err
	}
	out, err := actor.NewOut(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return out, nc.Close, nil
}

func (a *app) modelListCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models at hand and their roles",
		Long: `Lists the models at hand: name, size, parameters, the roles it has, what it can, and its state: loaded, on another
machine, or refused and why. Below, on stderr: roles whose own model is not there, who stands in, and how to mend it.
With --json it is one document with models and roles.`,
		Example: `  conclave model list
  conclave model list --json | jq -r '.roles[] | select(.notice) | .wanted'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usage("--timeout %s: give it some time, such as 10s", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			list, err := a.models(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.document(list)
			}
			return a.printModels(list)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the answer")
	return cmd
}

// models asks who is at hand.
func (a *app) models(ctx context.Context, opts ...nats.Option) (subjects.ModelList, error) {
	out, done, err := a.asUser(opts...)
	if err != nil {
		return subjects.ModelList{}, err
	}
	defer done()
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if list.Models == nil { // an empty list in JSON, not null
		list.Models = []subjects.ModelInfo{}
	}
	if list.Roles == nil {
		list.Roles = []subjects.RoleModel{}
	}
	return list, modelFault(err)
}

// modelFault explains a fault of the model actor.
func modelFault(err error) error {
	var f *subjects.Fault
	switch {
	case !errors.As(err, &f):
		return err
	case f.Code == subjects.CodeUnavailable && !actor.IsReplyFault(err):
		return fail(exitAbsent, "no model actor answers", "conclave doctor says who runs; conclave actor model starts one")
	}
	return unanswered(f)
}

func (a *app) printModels(list subjects.ModelList) error {
	roles := map[string][]string{}
	for _, r := range list.Roles {
		name := strings.TrimSuffix(r.Model, ":latest")
		roles[name] = append(roles[name], plain(r.Role))
	}
	if len(list.Models) == 0 {
		a.say("no model is at hand")
	} else {
		w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NAME\tSIZE\tPARAMETERS\tROLES\tCAN\tSTATE")
		for _, m := range list.Models {
			bytes := "-"
			if m.Size > 0 {
				bytes = size(m.Size)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", plain(m.Name), bytes, plain(or(m.Parameters, "-")),
				or(strings.Join(roles[strings.TrimSuffix(m.Name, ":latest")], ", "), "-"), or(strings.Join(can(m), ", "), "-"), or(strings.Join(stateOf(m), ", "), "-"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, n := range a.roleNotices(list.Roles) {
		a.say("%s", n)
	}
	return nil
}

// can is what a model is able to do.
func can(m subjects.ModelInfo) (out []string) {
	for _, c := range []struct {
		yes  bool
		word string
	}{{m.Tools, "tools"}, {m.Thinking, "thinking"}, {m.Vision, "vision"}, {m.Embedding, "embedding"}} {
		if c.yes {
			out = append(out, c.word)
		}
	}
	return out
}

// stateOf is how a model stands.
func stateOf(m subjects.ModelInfo) (out []string) {
	if m.Loaded {
		out = append(out, "loaded")
	}
	if m.Remote != "" {
		out = append(out, "on "+plain(m.Remote))
	}
	if m.Refused != "" {
		out = append(out, "refused: "+plain(m.Refused))
	}
	return out
}

// roleNotices tells of roles that are not played by their own model, in words with a fix. Roles of which the same is
// said share a line.
func (a *app) roleNotices(roles []subjects.RoleModel) []string {
	var texts []string
	whose := map[string][]string{}
	for _, r := range roles {
		text := plain(r.Notice)
		switch {
		case text != "":
		case r.DemoModel:
			text = "the built-in demo model answers, not a model; start Ollama"
		case r.Wanted != "" && r.Wanted != r.Model:
			text = fmt.Sprintf("%s is not there; %s answers instead; fetch it: %s model pull %s",
				plain(r.Wanted), plain(r.Model), a.program(), shellQuote(plain(r.Wanted)))
		default:
			continue
		}
		if whose[text] == nil {
			texts = append(texts, text)
		}
		whose[text] = append(whose[text], plain(r.Role))
	}
	for i, text := range texts {
		texts[i] = strings.Join(whose[text], ", ") + ": " + text
	}
	return texts
}

func (a *app) modelPullCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "pull <name>",
		Short: "Fetch a model",
		Long: `Fetches a model through the model actor, which asks its server (Ollama) for it. How far it is stands on stderr: one line
that is drawn over on a terminal, a line now and then elsewhere. With --json stdout has a JSON line for each piece of
progress: status, digest, total, completed.

Ctrl-C breaks it off with exit code 1. What was fetched is kept; pull again to go on.`,
		Example: `  conclave model pull gemma4:12b
  conclave model pull prometheus:7b --json | jq -r .status`,
		Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: func(cmd *cobra.Command, v []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeMissing(cmd, v, word)
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := checkModel(v[0]); err != nil {
				return err
			}
			if timeout <= 0 {
				return usage("--timeout %s: give it some time, such as 2h", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			err := a.pull(ctx, v[0])
			if err != nil && cmd.Context().Err() != nil {
				return fail(exitFailed, v[0]+" was not fetched: stopped", "what is there is kept; pull again to go on")
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 12*time.Hour, "how long it may take")
	return cmd
}

func (a *app) pull(ctx context.Context, name string) error {
	out, done, err := a.asUser()
	if err != nil {
		return err
	}
	defer done()
	bar := &progress{app: a, name: name, layers: map[string]subjects.PullProgress{}, now: time.Now}
	defer bar.clear()
	for p, err := range actor.AskStream(ctx, out, subjects.ModelPull, subjects.PullRequest{Model: name}) {
		if err != nil {
			bar.clear()
			var f *subjects.Fault
			if errors.As(err, &f) && f.Code == subjects.CodeModelMissing {
				return fail(exitAbsent, fmt.Sprintf("%s (%s)", f.Text, f.Code), "look at how the name is spelled")
			}
			return modelFault(err)
		}
		if !a.json {
			bar.show(p)
			continue
		}
		if err := a.line(p); err != nil {
			return err
		}
	}
	if a.json {
		return nil
	}
	bar.clear()
	_, err = fmt.Fprintf(a.stdout, "%s is here\n", plain(name))
	return err
}

// progress shows how far a pull is. A model comes in layers, each with its own count; the user sees their sum.
type progress struct {
	*app
	name   string
	now    func() time.Time
	layers map[string]subjects.PullProgress // by digest
	status string                           // the last one shown in a line
	total  int64                            // with how much there was to fetch
	tenth  int64                            // and how many tenths of it were there
	drawn  time.Time
	began  time.Time
	start  int64 // bytes that were there when it began
	onLine bool
}

// sum adds the layers up. Figures that make no sense are left out: they came over the wire.
func (b *progress) sum() (completed, total int64) {
	for _, l := range b.layers {
		if l.Total > 0 && l.Completed >= 0 {
			completed, total = completed+min(l.Completed, l.Total), total+l.Total
		}
	}
	return completed, total
}

// maxLayers bounds what is remembered of a pull.
const maxLayers = 1000

func (b *progress) show(p subjects.PullProgress) {
	if p.Digest != "" && (len(b.layers) < maxLayers || b.layers[p.Digest].Digest != "") {
		b.layers[p.Digest] = p
	}
	completed, total := b.sum()
	if b.began.IsZero() && total > 0 {
		b.began, b.start = b.now(), completed
	}
	if isTerminal(b.stderr) {
		b.draw(p, completed, total)
		return
	}
	// Elsewhere a line for each new status, and for each layer and each tenth.
	status := statusOf(p)
	tenth := int64(0)
	if total > 0 {
		tenth = 10 * completed / total
	}
	if status == b.status && total == b.total && tenth == b.tenth {
		return
	}
	b.status, b.total, b.tenth = status, total, tenth
	b.say("%s: %s", plain(b.name), plain(b.text(status, completed, total)))
}

// statusOf is the status without the layer it is about: of those there are many.
func statusOf(p subjects.PullProgress) string {
	if p.Digest != "" && p.Total > 0 {
		return "pulling"
	}
	return p.Status
}

func (b *progress) text(status string, completed, total int64) string {
	if total == 0 || status != "pulling" {
		return status
	}
	return fmt.Sprintf("%s %3d %%  %s of %s", status, 100*completed/total, size(completed), size(total))
}

// draw draws over the line, at most ten times a second.
func (b *progress) draw(p subjects.PullProgress, completed, total int64) {
	now := b.now()
	status := statusOf(p)
	if status == b.status && now.Sub(b.drawn) < 100*time.Millisecond {
		return
	}
	b.status, b.drawn = status, now
	text := plain(b.name) + ": " + b.text(status, completed, total)
	if status == "pulling" && total > 0 {
		const width = 20
		full := int(width * completed / total)
		text += "  [" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]"
		if took := now.Sub(b.began); took > time.Second && completed > b.start {
			text += "  " + size(int64(float64(completed-b.start)/took.Seconds())) + "/s"
		}
	}
	columns, _, _ := terminal(b.stderr)
	fmt.Fprint(b.stderr, "\r\x1b[K"+fit(plain(text), columns-1, 0)[0])
	b.onLine = true
}

// clear takes the drawn line away.
func (b *progress) clear() {
	if b.onLine {
		fmt.Fprint(b.stderr, "\r\x1b[K")
		b.onLine = false
	}
}

// completeModels offers the names of the models at hand.
func (a *app) completeModels(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.modelNames(cmd.Context(), word, func(l subjects.ModelList) (out []string) {
		for _, m := range l.Models {
			if m.Refused == "" {
				out = append(out, m.Name)
			}
		}
		return out
	}), cobra.ShellCompDirectiveNoFileComp
}

// completeMissing offers the names of the models that a role wants and that are not there.
func (a *app) completeMissing(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.modelNames(cmd.Context(), word, func(l subjects.ModelList) (out []string) {
		for _, r := range l.Roles {
			here := slices.ContainsFunc(l.Models, func(m subjects.ModelInfo) bool { return m.Name == r.Model })
			switch {
			case r.Wanted != "":
				out = append(out, r.Wanted)
			case !here && !r.DemoModel: // and nobody in its place
				out = append(out, r.Model)
			}
		}
		return out
	}), cobra.ShellCompDirectiveNoFileComp
}

// modelNames asks for the models and chooses names from them, for a completion.
func (a *app) modelNames(ctx context.Context, word string, choose func(subjects.ModelList) []string) []string {
	ctx, cancel := context.WithTimeout(ctx, hurry)
	defer cancel()
	a.stderr = io.Discard
	list, err := a.models(ctx, nats.Timeout(hurry))
	if err != nil {
		return nil
	}
	names := slices.DeleteFunc(choose(list), func(n string) bool { return !strings.HasPrefix(n, word) || plain(n) != n })
	slices.Sort(names)
	return slices.Compact(names)
}
