// Package generator answers: it puts a question, what was said before and a few tools before a model, runs the calls
// that the model makes through the broker, and stores the answer.
//
// It listens on query.session.<session>, kept in TURNS, on query.cancel.<query>, and on critique.result and reward.event,
// which say what was thought of its answers. It asks broker.discover, tool.request.<tool>, model.list and model.chat. It
// speaks on response.generation, answer.dialog, agent.state.<name>, response.delta.<query> and response.thinking.<query>.
//
// A turn is written down before it acts: after a crash it goes on from there, in this process or in another, and its
// answer is stored once.
//
// The same code under the name [subjects.RespondentB] answers the same questions for comparison: see respondent_b.go.
package generator

import (
	"context"
	"errors"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Config is the generator's section of the configuration. Its defaults stand in the shipped generator.yaml.
type Config struct {
	System string // replaces the shipped system prompt; "" = as shipped. Whoever loads the section reads it from a file

	Steps       int           `yaml:"steps"`        // model calls of a turn that may ask for tools
	Tokens      int           `yaml:"tokens"`       // of all model calls of a turn; 0 = no budget
	Wall        time.Duration `yaml:"wall"`         // of a turn
	CallTimeout time.Duration `yaml:"call_timeout"` // of one model call
	ToolTimeout time.Duration `yaml:"tool_timeout"` // of one tool call
	Predict     int           `yaml:"predict"`      // tokens to write while tools are offered
	Answer      int           `yaml:"answer"`       // tokens to write for the answer
	Result      strict.Size   `yaml:"result"`       // how much of one tool result the model is shown
	Nudges      int           `yaml:"nudges"`       // 0 = none
	Retries     int           `yaml:"retries"`      // 0 = none
	Repeats     int           `yaml:"repeats"`      // the same call with the same result: this one is refused
	Hedge       Hedge         `yaml:"hedge"`
	MaxTools    int           `yaml:"max_tools"`    // tools offered for a question; 0 = none
	Stream      bool          `yaml:"stream"`       // show the answer as it grows, where the model can
	Thinking    bool          `yaml:"thinking"`     // let the model think aloud, where it can
	Turns       int           `yaml:"turns"`        // turns kept of a session
	HotSessions int           `yaml:"hot_sessions"` // sessions kept in memory
	CompactAt   int           `yaml:"compact_at"`   // percent of the window at which old turns are summarized; 0 = never
	Grades      Grades        `yaml:"grades"`
	RespondentB RespondentB   `yaml:"respondent_b"`
}

// Grades is what becomes of what others thought of the last answer.
type Grades struct {
	Prompt bool `yaml:"prompt"` // tell the model before the next question
	Retry  bool `yaml:"retry"`  // and after a bad one, to offer another try
}

// RespondentB is the second answer to each question, for comparison. Where it says nothing, it is as the first.
type RespondentB struct {
	Enabled     bool           `yaml:"enabled"`
	Model       string         `yaml:"model"`       // "" = the one that gives the first answer
	Temperature strict.Decimal `yaml:"temperature"` // of its model calls
	MaxAge      time.Duration  `yaml:"max_age"`     // questions older than this are left alone
}

// Hedge is what to do about an answer that says it cannot know.
type Hedge struct {
	Search string `yaml:"search"` // when no tool ran: search once with this one; "" = never
	Reask  bool   `yaml:"reask"`  // when results are there: ask once more to use them
}

// Problems is everything wrong with c, by the fields of generator.yaml.
func (c Config) Problems() (out strict.Problems) {
	for _, f := range []struct {
		path        string
		n, min, max int
	}{
		{"steps", c.Steps, 1, 50},
		{"tokens", c.Tokens, 0, 10_000_000},
		{"nudges", c.Nudges, 0, 10},
		{"retries", c.Retries, 0, 10},
		{"repeats", c.Repeats, 2, 10},
		{"predict", c.Predict, 64, 1 << 20},
		{"answer", c.Answer, 64, 1 << 20},
		{"max_tools", c.MaxTools, 0, 8},
		{"hot_sessions", c.HotSessions, 1, 10_000},
		{"turns", c.Turns, 1, 1000},
		{"compact_at", c.CompactAt, 0, 90},
	} {
		if f.n < f.min || f.n > f.max {
			out.Add(f.path, "%d is not between %d and %d", f.n, f.min, f.max)
		}
	}
	if c.Result < minResult || c.Result > maxResult {
		out.Add("result", "%s is not between %s and %s", c.Result, minResult, maxResult)
	}
	for _, f := range []struct {
		path string
		d    time.Duration
	}{{"wall", c.Wall}, {"call_timeout", c.CallTimeout}, {"tool_timeout", c.ToolTimeout}} {
		if f.d < 10*time.Millisecond || f.d > 24*time.Hour {
			out.Add(f.path, "%s is not between 10ms and 24h", strict.Short(f.d))
		}
	}
	if b := c.RespondentB; b.Temperature < 0 || b.Temperature > maxTemperature {
		out.Add("respondent_b.temperature", "%s is not between 0 and %d", b.Temperature, maxTemperature)
	}
	if b := c.RespondentB; b.MaxAge < time.Second || b.MaxAge > 24*time.Hour {
		out.Add("respondent_b.max_age", "%s is not between 1s and 24h", strict.Short(b.MaxAge))
	}
	if m := c.RespondentB.Model; m != text.OneLine(m, maxModel) {
		out.Add("respondent_b.model", "%q is not the name of a model", text.OneLine(m, 40))
	}
	if c.Hedge.Search != "" && subjects.CheckToken(c.Hedge.Search) != nil {
		out.Add("hedge.search", "%q is not the name of a tool", text.Clip(c.Hedge.Search, 40))
	}
	if len(c.System) > maxSystem {
		out.Add("system_prompt", "%d bytes, at most %d", len(c.System), maxSystem)
	}
	return out
}

// Bounds of what the model is shown of one tool result.
const (
	minResult strict.Size = 256
	maxResult strict.Size = 64 << 10
)

const (
	maxSystem      = 64 << 10 // of the system prompt, in bytes
	maxModel       = 200      // of a model's name, in bytes
	maxTemperature = 2
)

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// loopLimits is c as the loop has it: there, zero is the default and a negative number means none.
func (c Config) loopLimits() loop.Limits {
	none := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	return loop.Limits{
		Steps: c.Steps, TokenBudget: none(c.Tokens), TurnTimeout: c.Wall, CallTimeout: c.CallTimeout, Nudges: none(c.Nudges), Retries: none(c.Retries), Repeats: c.Repeats,
		StepTokens: c.Predict, AnswerTokens: c.Answer, ResultBytes: int(c.Result), ReplyBytes: maxReply,
	}
}

// maxReply bounds what is read of one reply, so that a turn can be written down.
const maxReply = 96 << 10

// Generator is the actor. Several may run, in one process or in many: they share the partitions of TURNS.
type Generator struct {
	// Boundary is called before and after each durable step of a turn, with its name: turn.start, turn.step, turn.run,
	// turn.checkOwnership, turn.shrinkRecord, response, dialog, conversation and compact, each with "/before" and "/after". It is where tests of
	// crashes pull the plug.
	Boundary func(step string)

	name          string // the account, and the respondent on everything it says
	isRespondentB bool   // nobody sees what it answers
	cfg           Config
	sessions      *sessionCache
	cancels       cancellations
	pendingGrades gradeBuffer
	roleCache     cached[subjects.RoleModel]
	summing       sync.Map       // sessions that are being summarized
	behind        sync.WaitGroup // goroutines that do so
	life          context.Context
	end           context.CancelFunc
	mu            sync.Mutex
	background    actor.Out // the runtime's own: no message's ids or deadline on it. nil until it is started
}

// New returns a generator that goes by the name of its account: [subjects.Generator], or [subjects.RespondentB] for the one that
// nobody sees. cfg must be valid.
func New(name string, cfg Config) *Generator {
	g := &Generator{name: name, isRespondentB: name == subjects.RespondentB, cfg: cfg}
	if g.isRespondentB {
		g.cfg = cfg.forRespondentB()
	}
	g.sessions = newSessionCache(g.cfg.HotSessions)
	g.life, g.end = context.WithCancel(context.Background())
	return g
}

// Name implements [actor.Actor].
func (g *Generator) Name() string { return g.name }

// bucket holds conversations and the turns that are under way.
func (g *Generator) bucket() string { return subjects.StateBucket(g.name) }

// Routes implements [actor.Actor].
func (g *Generator) Routes() []actor.Route {
	routes := []actor.Route{
		actor.On(subjects.QuerySession, g.onTurn),
		actor.Subscribe(subjects.QueryCancel, g.onCancel),
	}
	if g.isRespondentB { // its answers are no part of a conversation, so there is nothing to write a grade beside
		return routes
	}
	return append(routes, actor.Subscribe(subjects.CritiqueResult, g.onCritique, actor.Workers(1)), actor.Subscribe(subjects.RewardEvent, g.onReward, actor.Workers(1)))
}

// Start implements [actor.Starter].
func (g *Generator) Start(_ context.Context, out actor.Out) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.background = out
	return nil
}

// Close implements [actor.Closer]: it ends what goes on in the background. A summary that is not finished is made after a
// later turn.
func (g *Generator) Close(ctx context.Context) error {
	g.end()
	ended := make(chan struct{})
	go func() {
		g.behind.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errors.New("a summary did not end")
	}
}

// onTurn answers one question. It returns nil when the answer is stored, also when it was stored before.
func (g *Generator) onTurn(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	if len(in.Tokens) != 2 || subjects.CheckToken(in.Tokens[1]) != nil || subjects.CheckToken(in.Body.QueryID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a turn needs a session and a query id; only the router may say one")
	}
	if g.isTooOld(in, out) {
		return nil
	}
	t := g.newTurn(in, out)
	err := t.run(ctx)
	switch {
	case errors.Is(err, errNotOwner):
		return t.awaitOtherOwner(ctx)
	case err != nil && t.isLastAttempt:
		t.emitFailure(ctx, err)
	}
	return err
}

// onCancel stops a query, now or when its turn comes.
func (g *Generator) onCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 && subjects.CheckToken(in.Tokens[0]) == nil {
		g.cancels.cancel(in.Tokens[0])
	}
	return nil
}

// at marks a durable step.
func (g *Generator) at(step string) {
	if g.Boundary != nil {
		g.Boundary(step)
	}
}

// systemPrompt is the prompt that a turn with these tools begins with. A person's own is taken as it is.
func (g *Generator) systemPrompt(offered []model.Tool) string {
	if g.cfg.System != "" {
		return g.cfg.System
	}
	return buildPrompt(assistantPrompt, offered)
}
