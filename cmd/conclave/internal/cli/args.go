package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/pkg/date"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Args wraps a check of cobra so that its complaint about positional arguments is a usage error that says what the
// command expects and names the help.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, v []string) error {
		if check(cmd, v) == nil {
			return nil
		}
		got := "no argument is given"
		if len(v) > 0 {
			got = "got " + term.Clip(strings.Join(v, " "), 60)
		}
		_, expected, _ := strings.Cut(cmd.Use, " ")
		return Usage("%s expects %s, %s: see %s --help", cmd.CommandPath(), expected, got, cmd.CommandPath())
	}
}

// NoArgs rejects any argument as a usage error. For a command with subcommands the error suggests the one that may have
// been meant.
func NoArgs(cmd *cobra.Command, v []string) error {
	if len(v) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return Usage("%s takes no argument %q: see %s --help", cmd.CommandPath(), v[0], cmd.CommandPath())
	}
	hint := ""
	if s := cmd.SuggestionsFor(v[0]); len(s) > 0 {
		hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(s, " or "))
	}
	return Usage("unknown command %q%s: see %s --help", strings.TrimPrefix(cmd.CommandPath()+" "+v[0], "conclave "),
		hint, cmd.CommandPath())
}

// flagKinds is what the values of flags are, by the types of pflag whose own errors name functions of Go.
var flagKinds = map[string]string{
	"int": "a number", "int64": "a number", "uint": "a number", "uint64": "a number", "float64": "a number",
	"bool": "true or false", "duration": "a duration such as 90s or 10m",
}

// BadFlag makes a usage error of any error in the flags. For an unknown long flag it suggests the closest one of the
// command.
func BadFlag(cmd *cobra.Command, err error) error {
	hint := ""
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if kind := flagKinds[bad.GetFlag().Value.Type()]; kind != "" {
			return Usage("--%s: %s is not %s", bad.GetFlag().Name, bad.GetValue(), kind)
		}
	}
	if _, name, ok := strings.Cut(err.Error(), "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if best := findClosest(name, names); best != "" {
			hint = " (did you mean --" + best + "?)"
		}
	}
	return Usage("%v%s: see %s --help", err, hint, cmd.CommandPath())
}

// Nearest is ", did you mean x?" for the candidate closest to name, "" when none is close.
func Nearest(name string, candidates []string) string {
	if best := findClosest(name, candidates); best != "" {
		return fmt.Sprintf(", did you mean %s?", best)
	}
	return ""
}

// findClosest returns the first candidate with the smallest edit distance to name, "" when none is within 2.
func findClosest(name string, candidates []string) (best string) {
	least := 3
	for _, c := range candidates {
		if d := editDistance(name, c); d < least {
			least, best = d, c
		}
	}
	return best
}

// editDistance is the Levenshtein distance in bytes: insertions, deletions and replacements that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// Group returns a command that only has subcommands. Without one, or with an unknown one, it is a usage error.
func Group(use, short, long, example string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: NoArgs, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var names []string
			for _, c := range cmd.Commands() {
				names = append(names, c.Name())
			}
			return Usage("%s needs a subcommand, one of %s: see %s --help", cmd.CommandPath(),
				strings.Join(names, ", "), cmd.CommandPath())
		},
	}
	cmd.AddCommand(subcommands...)
	return cmd
}

// OneOf rejects the value of a flag that is not empty and not one of the words.
func OneOf(flag, v string, words ...string) error {
	if v == "" || slices.Contains(words, v) {
		return nil
	}
	return Usage("--%s %s%s: use %s", flag, term.Visible(v), Nearest(v, words), strings.Join(words, ", "))
}

// CheckTimeout rejects a timeout that is not positive.
func CheckTimeout(d time.Duration, example string) error {
	if d <= 0 {
		return Usage("--timeout %s: give a positive duration, such as %s", d, example)
	}
	return nil
}

// CheckID rejects an id that is no valid token, as a usage error; thing names it there. An empty id passes: the flag
// was not given. Whether the id exists is not checked.
func CheckID(thing, id string) error {
	if id != "" && subjects.CheckToken(id) != nil {
		return Usage("%q is not a valid %s: use letters, digits, _ and -", term.Clip(id, 40), thing)
	}
	return nil
}

// CheckPrefix rejects what cannot be the id of an approval, a rule or a memory, or a prefix of one: an invalid token,
// also an empty one, and fewer than [client.IDPrefix] characters.
func CheckPrefix(id string) error {
	if subjects.CheckToken(id) != nil || len(id) < client.IDPrefix {
		return Usage("%q is not a valid id: give at least %d characters of it", term.Clip(id, 40), client.IDPrefix)
	}
	return nil
}

// CheckModel rejects a model name that is empty, longer than 200 bytes, or has blanks or unprintable characters.
// Whether the model exists is not checked.
func CheckModel(name string) error {
	invalid := func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }
	if name == "" || len(name) > 200 || strings.ContainsFunc(name, invalid) {
		return Usage("%q is not a valid model name: use one such as gemma4:12b", term.Clip(name, 40))
	}
	return nil
}

// Completion completes an argument or the value of a flag.
type Completion = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// Words completes from a fixed list.
func Words(words ...string) Completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFlags registers completions by flag. A flag that the command does not have is ignored.
func CompleteFlags(cmd *cobra.Command, flags map[string]Completion) {
	for name, complete := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, complete)
	}
}

// FirstArg completes the first argument with complete and offers nothing, also no files, for further ones.
func FirstArg(complete Completion) Completion {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, word)
	}
}

// completionTimeout bounds a completion: the shell waits for it.
const completionTimeout = time.Second

// CompleteFrom completes with the words that list returns from the running system, sorted; a tab separates a word from
// its description. Words that do not begin with what was typed, and those with hidden characters, are left out. A
// completion prints nothing, also no errors: without a system, or after [completionTimeout], it offers nothing. stderr
// is discarded from then on.
func (a *App) CompleteFrom(list func(ctx context.Context, c *client.Client) ([]string, error)) Completion {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		a.Err = io.Discard
		var found []string
		_ = a.WithClient(func(c *client.Client) (err error) {
			found, err = list(ctx, c)
			return err
		}, nats.Timeout(completionTimeout))
		found = slices.DeleteFunc(found, func(s string) bool {
			id, _, _ := strings.Cut(s, "\t")
			return !strings.HasPrefix(s, word) || term.Plain(id) != id
		})
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteSessions completes the ids of stored sessions.
func (a *App) CompleteSessions() Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) ([]string, error) { return c.SessionIDs(ctx) })
}

// ParseSince reads the value of a flag --since: a duration before now, with days such as 30d, or a time.
func ParseSince(v string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(v, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if d, err := strict.ParseDuration(v); err == nil {
		return now.Add(-d), nil
	}
	if at, ok := date.Parse(v, time.Local); ok {
		return at, nil
	}
	return time.Time{}, Usage("--since %q: give a duration like 10m or 30d, or a time like 2006-01-02 or "+
		"2006-01-02T15:04:05Z", v)
}
