package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/pkg/bus"
)

// tap watches the bus as the user.
type tap struct {
	*app
	pattern        string
	session, query string
	since          uint64
	count          int

	shown int
}

// tapCommand shows what is said on the bus.
func (a *app) tapCommand() *cobra.Command {
	t := &tap{app: a, pattern: ">"}
	cmd := &cobra.Command{
		Use:   "tap [subject]",
		Short: "Watch the bus, decoded",
		Long: `Shows what is said on the bus, one message per line: time, subject, author, session, query and body. The subject may
hold * for one word and a last > for the rest; all of it is shown when left out.

With --since it first replays the events from a sequence on, and then goes on live without a gap or a double. Questions
(query.*) are kept elsewhere and are shown live only. With --json each line is a JSON object with time, stream, seq,
subject, from, session, query and body.

Ends with Ctrl-C, after --count messages, or when nobody reads its output any more.`,
		Example: `  conclave tap
  conclave tap 'tool.>' --since 1
  conclave tap --query 3f9c01d2 --json | jq .body`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if len(v) > 0 {
				t.pattern = v[0]
			}
			if err := checkPattern(t.pattern); err != nil {
				return err
			}
			if t.count < 0 {
				return usage("--count %d: name how many messages to show, or leave it out for all", t.count)
			}
			return t.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.session, "session", "", "only what belongs to this session `id`")
	f.StringVar(&t.query, "query", "", "only what belongs to this query `id`")
	f.Uint64Var(&t.since, "since", 0, "replay events from this `sequence` on (1 is the first)")
	f.IntVar(&t.count, "count", 0, "stop after this many messages")
	return cmd
}

// checkPattern refuses what the server would.
func checkPattern(p string) error {
	words := strings.Split(p, ".")
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\r\n") || w != "*" && w != ">" && strings.ContainsAny(w, "*>") || w == ">" && i < len(words)-1 {
			return usage("%q is not a subject: write words joined by dots, * for one word, > for the rest", p)
		}
	}
	return nil
}

func (t *tap) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nc, err := t.dial("user",
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // not our own goodbye
				t.say("the server is gone: waiting for it")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			t.say("the server is back: events of the meantime are shown with --since")
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrSlowConsumer) {
				t.say("the reader is too slow: some messages are not shown; events can be seen again with --since")
				return
			}
			t.say("%s", oneLine(err.Error()))
		}))
	if err != nil {
		return err
	}
	defer nc.Close()
	// Listen before the replay's end is taken, so that nothing falls between the two.
	sub, err := nc.SubscribeSync(t.pattern)
	if err != nil {
		return fmt.Errorf("listening to %s: %w", t.pattern, err)
	}
	if err := sub.SetPendingLimits(1<<16, 64<<20); err != nil {
		return fmt.Errorf("listening to %s: %w", t.pattern, err)
	}
	if err := bus.Ready(ctx, nc); err != nil {
		return fmt.Errorf("listening to %s: %w", t.pattern, err)
	}
	t.say("listening to %s on %s", t.pattern, nc.ConnectedUrlRedacted())

	// The writing may block in a pipe that nobody empties; the user's Ctrl-C must end it all the same.
	done := make(chan error, 1)
	go func() { done <- t.watch(ctx, nc, sub) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(time.Second):
		return nil
	}
}

// errEnough ends a tap that has shown its count.
var errEnough = errors.New("enough")

// watch replays, then goes on live.
func (t *tap) watch(ctx context.Context, nc *nats.Conn, sub *nats.Subscription) error {
	replayed, err := t.replay(ctx, nc)
	for err == nil {
		var m *nats.Msg
		if m, err = sub.NextMsgWithContext(ctx); errors.Is(err, nats.ErrSlowConsumer) {
			err = nil // said by the handler; the rest goes on
			continue
		}
		if err != nil {
			break
		}
		s, ok := heard(m)
		if !ok || s.Stream == events && s.Seq <= replayed {
			continue
		}
		err = t.show(s)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return quietly(ctx, err)
}

// show prints one message if it passes the filters.
func (t *tap) show(s said) error {
	if !s.about(t.session, t.query) {
		return nil
	}
	var err error
	if t.json {
		err = t.line(s)
	} else {
		err = t.print(s)
	}
	if err != nil {
		return err
	}
	if t.shown++; t.shown == t.count {
		return errEnough
	}
	return nil
}

// families of subjects and their colours.
var families = map[string]string{
	"query": cyan, "response": green, "answer": green, "tool": yellow, "approval": magenta, "agent": blue, "dead": red,
	"critique": magenta, "pairwise": magenta, "user": cyan, "reward": magenta, "memory": blue, "committee": blue, "task": blue,
}

func (t *tap) print(s said) error {
	family, _, _ := strings.Cut(s.Subject, ".")
	_, err := fmt.Fprintf(t.stdout, "%s  %s  %s  %s  %s\n",
		s.Time.Local().Format("15:04:05.000"),
		t.paint(t.stdout, families[family], fmt.Sprintf("%-28s", plain(s.Subject))),
		fmt.Sprintf("%-10s", plain(or(s.From, "-"))),
		t.paint(t.stdout, dim, fmt.Sprintf("%-8s %-8s", plain(or(short(s.Session), "-")), plain(or(short(s.Query), "-")))),
		plain(s.text()))
	return err
}
