package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// What the layers cost: the same broker with the two layers it began with and no session, and with every layer of the
// shipped manifest inside of a session. Its rules are turned from one form to the other between blocks of calls, so
// that both meet the same server, store and machine.

// The forms of the broker, as a turning one is told.
const (
	firstForm = "first" // who may use which tool, and nothing of the session
	fullForm  = "full"  // the chain of the shipped manifest
)

// block is the calls of one form before the other's turn: those of one question. It is less than the shipped limit.
const block = 25

// mostRatio is the aim: p50 with every layer on to p50 of the first form.
const mostRatio = 1.5

// layered is what every layer costs for one call.
type layered struct {
	Where    string  `json:"where"`
	Call     string  `json:"call"`
	FirstP50 float64 `json:"first_form_p50_us"`
	FirstP99 float64 `json:"first_form_p99_us"`
	FullP50  float64 `json:"all_layers_p50_us"`
	FullP99  float64 `json:"all_layers_p99_us"`
	NewP50   float64 `json:"all_layers_new_question_p50_us"` // the first call of each question
	Ratio    float64 `json:"p50_ratio"`
}

// rulesOf are the rules of a form. Both go by the shipped manifest.
func rulesOf(form string, m policy.Manifest, home bus.Home) policy.Rules {
	if form == firstForm {
		return policy.Rules{Manifest: m, Chain: policy.Chain{
			policy.ManifestLayer{Manifest: m},
			policy.LineageLayer{Manifest: m},
		}}
	}
	return policy.Rules{
		Manifest: m,
		Chain:    m.Chain(policy.Env{Home: home.Data, Closed: []string{home.Data, home.Config}}),
	}
}

// startTurning runs a broker like the system's own, whose rules are turned by the one who holds the book.
func startTurning(ctx context.Context, c *config.Instance, cfg config.Config, home bus.Home) (*policy.ActiveRules,
	error,
) {
	book := policy.NewActiveRules(rulesOf(fullForm, cfg.Manifest, home))
	var build []broker.Known
	for _, t := range cfg.Tools() {
		build = append(build, broker.Known{Tool: t.Facts(), Pin: broker.Pin(t.Schema())})
	}
	limits := broker.Config{CallTimeout: time.Minute, AuditTimeout: cfg.System.Actor.AuditTimeout}
	spec := actor.Spec{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
		h, err := audit.LoadHasher(home.HashKey())
		if err != nil {
			return nil, err
		}
		w, err := audit.Open(ctx, audit.Options{Account: "broker", Dir: home.Heads(), Log: bus.NewAuditLog(nc)})
		if err != nil {
			return nil, err
		}
		return broker.New(limits, book, w, h, build), nil
	}}
	return book, c.System.Start(ctx, spec, c.Bus.Dial, cfg.ActorConfig())
}

// turnByWord runs a turning broker in a process of its own until its standard input ends.
func turnByWord(ctx context.Context, c *config.Instance, cfg config.Config, home bus.Home) error {
	book, err := startTurning(ctx, c, cfg, home)
	if err != nil {
		return err
	}
	fmt.Println(c.Bus.URL)
	for words := bufio.NewScanner(os.Stdin); words.Scan(); {
		book.Replace(rulesOf(words.Text(), cfg.Manifest, home))
		fmt.Println(words.Text())
	}
	return nil
}

// town is a system with a turning broker, and those who speak to it.
type town struct {
	where string
	turn  func(form string) error
	agent actor.Out // the generator, whose actor does not run
	user  actor.Out
	turns actor.Out // the router's eyes
	owner actor.Out // the broker's hands, for a session that is long already
	stops []func()
}

func (w *town) stop() {
	for _, f := range slices.Backward(w.stops) {
		f()
	}
}

// openTown starts a town: in this process, or over TCP with the server, the tools, the router and the broker in
// processes of their own.
func openTown(ctx context.Context, tcp bool) (_ *town, err error) {
	w := &town{where: "in process"}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "conclave-bench-")
	if err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() { _ = os.RemoveAll(dir) })
	home := bus.Home{Data: dir + "/data", Config: dir + "/config"}
	b := &bus.Bus{Keys: home.Keys()}
	if tcp {
		w.where = "TCP"
		var last *child
		for _, part := range []string{"bus", "tools", "router", "turning"} {
			if last, err = start(part, dir, "10s", b.URL); err != nil {
				return nil, err
			}
			b.URL, w.stops = last.url, append(w.stops, last.stop)
		}
		w.turn = last.tell
	} else {
		cfg, err := load("10s")
		if err != nil {
			return nil, err
		}
		c, err := cfg.Start(ctx, home, nil, "tools", "router")
		if err != nil {
			return nil, err
		}
		b, w.stops = c.Bus, append(w.stops, func() { _ = c.Stop(ctx) })
		book, err := startTurning(ctx, c, cfg, home)
		if err != nil {
			return nil, err
		}
		w.turn = func(form string) error {
			book.Replace(rulesOf(form, cfg.Manifest, home))
			return nil
		}
	}
	for role, out := range map[string]*actor.Out{
		"generator": &w.agent, "user": &w.user, "router": &w.turns,
		"broker": &w.owner,
	} {
		nc, err := b.Dial(role)
		if err != nil {
			return nil, err
		}
		w.stops = append(w.stops, nc.Close)
		if *out, err = actor.NewOut(nc); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// asked is what the user says in each question. The searches below are made of its words, so that the layer of flow
// has to look each one up and finds nothing to ask.
const asked = "Please search the web for the opening hours of the botanical garden in Vienna in spring, and whether " +
	"it has a cafe, parking, guided tours, a shop or a pond."

// request is a call to measure.
type request struct {
	name string
	tool string
	long bool // in a session that holds as much as one may
	args func(i int) string
	sane func(result string) error
}

var requests = []request{
	{name: "get_datetime", tool: "get_datetime", args: timeArgs, sane: holds("week")},
	{name: "web_search", tool: "web_search", args: searchArgs, sane: holds("botanical")},
	{name: "web_search, longest session", tool: "web_search", long: true, args: searchArgs, sane: holds("botanical")},
}

func holds(word string) func(string) error {
	return func(result string) error {
		if !strings.Contains(result, word) {
			return fmt.Errorf("odd result %q", result)
		}
		return nil
	}
}

// The arguments repeat after half a block: of three identical calls in a session the third would be refused.

func timeArgs(i int) string {
	zones := []string{
		"Europe/Berlin", "Europe/Vienna", "Europe/Paris", "Europe/Rome", "Europe/Madrid", "Europe/Oslo",
		"Europe/Prague",
		"Asia/Tokyo", "Asia/Seoul", "Asia/Dubai", "America/Lima", "America/Denver", "UTC",
	}
	return fmt.Sprintf(`{"timezone":%q}`, zones[i%len(zones)])
}

func searchArgs(i int) string {
	words := []string{
		"opening", "hours", "spring", "cafe", "parking", "guided", "tours", "shop", "pond", "search",
		"web", "whether", "please",
	}
	return fmt.Sprintf(`{"query":"botanical garden Vienna %s"}`, words[i%len(words)])
}

// question opens a session with one question of the user, and returns how the agent that answers speaks there. It
// waits until the router has stored it: that is where the broker reads the user's words.
func (w *town) question(ctx context.Context, long bool) (actor.Out, error) {
	session, query := actor.NewID(), actor.NewID()
	if long {
		data, err := longRecord()
		if err != nil {
			return nil, err
		}
		if _, err := w.owner.Store("flow").Put(ctx, session, data, 0); err != nil {
			return nil, err
		}
	}
	if err := actor.Emit(ctx, w.user.WithIDs(session, query), subjects.QueryReceived,
		subjects.Query{SessionID: session, QueryID: query, Query: asked}); err != nil {
		return nil, err
	}
	for {
		m, err := actor.ReadStored(ctx, w.turns, subjects.QuerySession.Stream,
			map[string]any{"last_by_subj": "turn.*." + session})
		if err != nil {
			return nil, err
		}
		if m != nil {
			return w.agent.WithIDs(session, query), nil
		}
	}
}

// longRecord is longFlow as the bucket keeps it, made once.
var longRecord = sync.OnceValues(func() ([]byte, error) { return json.Marshal(longFlow()) })

// longFlow is the record of a session that holds as much as one may: every bound is reached.
func longFlow() *policy.Flow {
	f := &policy.Flow{}
	for i := range 50 {
		f = f.WithQuestion(fmt.Sprintf("q%d", i), strings.Repeat(fmt.Sprintf("word%d ", i), 20), nil)
	}
	search := policy.Tool{
		Name: "web_search", Zone: "tools", Known: true, Act: policy.ActSearch,
		Args: policy.Args{"query": {Role: policy.RoleQuery}}, Effects: policy.Declare(policy.Egress,
			policy.ReadsUntrusted),
	}
	for i := range 80 {
		r := policy.Result{Tool: search, CallID: fmt.Sprintf("c%d", i), Query: "q0", Time: time.Unix(1e9, 0)}
		var text strings.Builder
		for j := range 50 {
			fmt.Fprintf(&text, "term%dx%d ", i, j)
		}
		for j := range 5 {
			r.Links = append(r.Links, fmt.Sprintf("https://host%d.example.org/page/%d", i, j))
		}
		r.Text = text.String()
		f = f.WithResult(r)
	}
	return f
}

// measureLayers measures each request in both forms, in turns.
func measureLayers(ctx context.Context, w *town, n int) ([]layered, error) {
	blocks := max((n+block-1)/block, 4)
	type taken struct{ first, full, fresh []time.Duration }
	took := make([]taken, len(requests))
	for round := range blocks + 2 { // two to warm up
		for i, r := range requests {
			forms := []string{firstForm, fullForm}
			if round%2 == 1 { // neither always comes after the other's writes
				slices.Reverse(forms)
			}
			for _, form := range forms {
				d, err := w.block(ctx, form, r)
				if err != nil {
					return nil, fmt.Errorf("%s, %s form: %w", r.name, form, err)
				}
				switch {
				case round < 2:
				case form == firstForm:
					took[i].first = append(took[i].first, d...)
				default:
					took[i].full, took[i].fresh = append(took[i].full, d...), append(took[i].fresh, d[0])
				}
			}
		}
	}
	var out []layered
	for i, r := range requests {
		t := took[i]
		for _, d := range [][]time.Duration{t.first, t.full, t.fresh} {
			slices.Sort(d)
		}
		l := layered{
			Where: w.where, Call: r.name, FirstP50: micros(t.first, 0.50), FirstP99: micros(t.first, 0.99),
			FullP50: micros(t.full, 0.50), FullP99: micros(t.full, 0.99), NewP50: micros(t.fresh, 0.50),
		}
		l.Ratio = l.FullP50 / l.FirstP50
		out = append(out, l)
	}
	return out, nil
}

// block makes the calls of one question in one form.
func (w *town) block(ctx context.Context, form string, r request) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ask, err := subjects.ToolRequestService.With(r.tool)
	if err != nil {
		return nil, err
	}
	out := w.agent
	if form == fullForm {
		if out, err = w.question(ctx, r.long); err != nil {
			return nil, err
		}
	}
	if err := w.turn(form); err != nil {
		return nil, err
	}
	took := make([]time.Duration, 0, block)
	for i := range block {
		req := subjects.ToolRequest{CallID: actor.NewID(), Args: json.RawMessage(r.args(i))}
		began := time.Now()
		res, err := actor.Ask(ctx, out, ask, req)
		took = append(took, time.Since(began))
		if err == nil && res.Error != nil {
			err = res.Error
		}
		if err = errors.Join(err, r.sane(res.Result)); err != nil {
			return nil, err
		}
	}
	return took, nil
}
