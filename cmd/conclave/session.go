package main

import (
	"cmp"
	"context"
	"encoding/json"
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

// sessionCommand shows what the assistant keeps of the user's sessions.
func (a *app) sessionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List and show conversations, and set what holds in one",
		Long: `Shows what the assistant keeps of each session: the messages that go before the next question, as they are sent to the
model. Thinking is never part of it. To go on with a session, use conclave ask --session. What the broker lets pass in a
session is set with override.`,
		Example: `  conclave session list
  conclave session show 3f9c01d2
  conclave session override 3f9c01d2 RELAX`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage("say what to do with sessions: list, show or override: see %s --help", cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.sessionListCommand(), a.sessionShowCommand(), a.sessionOverrideCommand())
	return cmd
}

// conversations is the bucket that the assistant keeps them in.
var conversations = subjects.StateBucket(subjects.Generator)

// reading is how long a look at the stored sessions may take.
const reading = 30 * time.Second

// keeper opens the assistant's bucket for reading.
func (a *app) keeper(opts ...nats.Option) (actor.Store, func(), error) {
	out, done, err := a.asUser(opts...)
	if err != nil {
		return nil, nil, err
	}
	return out.Store(conversations), done, nil
}

// sessionRow is one session in the list.
type sessionRow struct {
	ID       string    `json:"session_id"`
	Turns    int       `json:"turns"`
	Question string    `json:"first_question"`
	Updated  time.Time `json:"updated"`
}

// rowOf is a conversation in one line. Turns that were summarized or let go count too.
func rowOf(c subjects.Conversation) sessionRow {
	r := sessionRow{ID: c.SessionID, Turns: len(c.Turns) + c.Summarized + c.Dropped, Updated: c.Updated}
	if len(c.Turns) > 0 {
		r.Question = c.Turns[0].Query
	}
	return r
}

func (a *app) sessionListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the sessions, last used first",
		Long: `Lists the sessions that the assistant keeps: id, number of turns, when it was last used, and its first question. With
--json it is one array, with the questions in full.`,
		Example: `  conclave session list
  conclave session list --json | jq -r '.[0].session_id'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), reading)
			defer cancel()
			store, done, err := a.keeper()
			if err != nil {
				return err
			}
			defer done()
			rows, err := a.sessions(ctx, store)
			if err != nil {
				return quietly(cmd.Context(), err)
			}
			if a.json {
				return a.document(rows)
			}
			return a.printSessions(rows)
		},
	}
}

// sessions reads every session, last used first. One that cannot be read is told and passed over.
func (a *app) sessions(ctx context.Context, store actor.Store) ([]sessionRow, error) {
	keys, err := store.Keys(ctx, subjects.ConversationPrefix)
	if err != nil {
		return nil, fmt.Errorf("listing the sessions: %w", err)
	}
	rows := []sessionRow{}
	for _, key := range keys {
		id, ok := subjects.SessionOf(key)
		if !ok {
			continue
		}
		c, err := conversation(ctx, store, id)
		switch {
		case errors.Is(err, actor.ErrNotFound): // deleted in between
			continue
		case errors.Is(err, errUnreadable):
			a.say("%s", oneLine(err.Error()))
			continue
		case err != nil:
			return nil, err
		}
		rows = append(rows, rowOf(c))
	}
	slices.SortFunc(rows, func(x, y sessionRow) int { return cmp.Or(y.Updated.Compare(x.Updated), cmp.Compare(x.ID, y.ID)) })
	return rows, nil
}

// errUnreadable means that what is stored is no conversation.
var errUnreadable = errors.New("what is stored of it cannot be read")

// conversation reads one session. The key is the authority on whose it is.
func conversation(ctx context.Context, store actor.Store, id string) (subjects.Conversation, error) {
	var c subjects.Conversation
	if err := subjects.CheckToken(id); err != nil {
		return c, fmt.Errorf("session %q: %w", clip(id, 40), errUnreadable)
	}
	data, _, err := store.Get(ctx, subjects.ConversationKey(id))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("session %s: %w: %w", id, errUnreadable, err)
	}
	c.SessionID = id
	return c, nil
}

func (a *app) printSessions(rows []sessionRow) error {
	if len(rows) == 0 {
		a.say("no sessions yet: %s ask makes the first", a.program())
		return nil
	}
	columns, _, ok := terminal(a.stdout)
	widest := 0
	for _, r := range rows {
		widest = max(widest, len(r.ID))
	}
	room := 60
	if ok {
		room = max(20, columns-widest-len("  TURNS  2006-01-02 15:04  "))
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tTURNS\tLAST USED\tFIRST QUESTION")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", r.ID, r.Turns, stamp(r.Updated), plain(clip(r.Question, room)))
	}
	return w.Flush()
}

// stamp is a time for people.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04")
}

func (a *app) sessionShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show <id>",
		Short: "Print the messages of a session",
		Long: `Prints the messages of a session as they are sent to the model before the next question: the summary of turns that were
shortened, then each question, tool call, result and answer, with what was thought of it below. The beginning of an id is
enough from eight letters on.

With --json it is one document: the stored session, and the list under messages.`,
		Example: `  conclave session show 3f9c01d2
  conclave session show notes --json | jq '.messages[-1].content'`,
		Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: func(cmd *cobra.Command, v []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeSessions(cmd, v, word)
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			if subjects.CheckToken(v[0]) != nil {
				return usage("%q cannot be a session: use letters, digits, _ and -", v[0])
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), reading)
			defer cancel()
			store, done, err := a.keeper()
			if err != nil {
				return err
			}
			defer done()
			c, err := a.find(ctx, store, v[0])
			if err != nil {
				return quietly(cmd.Context(), err)
			}
			if a.json {
				return a.document(shownSession{c, append([]subjects.Message{}, c.Messages()...)})
			}
			return a.printSession(c)
		},
	}
}

// shownSession is a session as a document.
type shownSession struct {
	subjects.Conversation
	Messages []subjects.Message `json:"messages"`
}

// find reads the session of an id or of the beginning of one.
func (a *app) find(ctx context.Context, store actor.Store, id string) (subjects.Conversation, error) {
	c, err := conversation(ctx, store, id)
	if !errors.Is(err, actor.ErrNotFound) {
		return c, err
	}
	full, known, err := wholeSession(ctx, store, id)
	switch {
	case err != nil:
		return c, err
	case !known:
		return c, fail(exitFailed, "there is no session "+id, a.program()+" session list shows what there is; a question that is not answered yet is in none")
	}
	return conversation(ctx, store, full)
}

// enough is how much of a session's id stands for the whole.
const enough = 8

// wholeSession is the id of the one session that is called id or begins with it. Where there is none, it is id itself, and
// not known. What is stored of the session is not read: what cannot be read has a name all the same.
func wholeSession(ctx context.Context, store actor.Store, id string) (full string, known bool, err error) {
	keys, err := store.Keys(ctx, subjects.ConversationPrefix)
	if err != nil {
		return "", false, fmt.Errorf("listing the sessions: %w", err)
	}
	var found []string
	for _, key := range keys {
		switch full, ok := subjects.SessionOf(key); {
		case ok && full == id:
			return id, true, nil
		case ok && len(id) >= enough && strings.HasPrefix(full, id):
			found = append(found, full)
		}
	}
	switch len(found) {
	case 0:
		return id, false, nil
	case 1:
		return found[0], true, nil
	}
	return "", false, fail(exitFailed, fmt.Sprintf("%d sessions begin with %s", len(found), id), "give more of the id")
}

// Colours of the roles in a conversation.
var roleColours = map[string]string{"user": cyan, "assistant": green, "tool": yellow}

// printSession prints a conversation for reading.
func (a *app) printSession(c subjects.Conversation) error {
	if c.Dropped > 0 {
		a.say("%s were let go: too many, or too large", count(c.Dropped, "turn"))
	}
	if c.Summary != "" {
		a.message("summary", fmt.Sprintf("of %s", count(c.Summarized, "turn")), c.Summary)
	}
	for _, t := range c.Turns {
		a.message("user", stamp(t.Time), t.Query)
		for _, m := range t.Messages {
			a.message(m.Role, m.ToolName, m.Content)
			for _, call := range m.Calls {
				fmt.Fprintf(a.stdout, "  calls %s %s\n", plain(call.Name), plain(string(call.Arguments)))
			}
		}
		about := t.Model
		if t.Partial {
			about = strings.TrimSpace(about + " not whole")
		}
		if t.Error != "" {
			about = strings.TrimSpace(about + " " + t.Error)
		}
		a.message("assistant", about, t.Answer)
		a.printGradesOf(t.Grades)
	}
	return a.stdout.err
}

// message prints one message: who, something about it, and the text below.
func (a *app) message(role, about, text string) {
	head := a.paint(a.stdout, roleColours[role], plain(role))
	if about != "" {
		head += " " + a.paint(a.stdout, dim, plain(about))
	}
	fmt.Fprintln(a.stdout, head)
	for l := range strings.Lines(strings.TrimRight(plainText(text), "\n")) {
		fmt.Fprintln(a.stdout, "  "+strings.TrimRight(l, "\n"))
	}
}

// hurry bounds a completion: a shell waits for it.
const hurry = time.Second

// completeSessions offers the ids of the stored sessions.
func (a *app) completeSessions(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), hurry)
	defer cancel()
	a.stderr = io.Discard // a completion has nobody to talk to
	store, done, err := a.keeper(nats.Timeout(hurry))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	keys, err := store.Keys(ctx, subjects.ConversationPrefix)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, key := range keys {
		if id, ok := subjects.SessionOf(key); ok && strings.HasPrefix(id, word) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, cobra.ShellCompDirectiveNoFileComp
}
