package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// fixture answers questions as the system would: on a real server, under the real grants, each with its own role's key.
// What it answers is set by the first word of the question; see scriptedAnswers.
type fixture struct {
	t           testing.TB
	b           *bustest.Bus
	generator   actor.Out
	respondentB actor.Out
	broker      actor.Out
	router      actor.Out
	critic      actor.Out
	reward      actor.Out
	cancels     chan string   // query ids that the generator was told to stop
	goOn        chan struct{} // lets "slow" go on
	asked       chan asked    // every question
	done        chan struct{}
}

type asked struct {
	subjects.Query
	at client.Event
}

// newFixture starts a server and the fixture, and leaves word of the server where the commands look for it.
func newFixture(t testing.TB) *fixture {
	t.Helper()
	b := bustest.Start(t)
	if err := (bus.Home{Data: b.Dir}).WriteRunning(bus.Running{URL: b.URL}); err != nil {
		t.Fatal(err)
	}
	c := &fixture{
		t: t, b: b, cancels: make(chan string, 16), goOn: make(chan struct{}), asked: make(chan asked, 64),
		done: make(chan struct{}),
	}
	c.generator, c.respondentB, c.broker, c.router = c.as("generator"), c.as("respondent_b"), c.as("broker"),
		c.as("router")
	c.critic, c.reward = c.as("critic"), c.as("reward")
	ear := c.b.Connect("generator")
	user, err := client.New(c.b.Connect("user"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ear.Subscribe("query.cancel.*", func(m *nats.Msg) {
		c.cancels <- strings.TrimPrefix(m.Subject, "query.cancel.")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), ear); err != nil {
		t.Fatal(err)
	}
	questions, err := user.Watch(t.Context(), "query.received", 0)
	if err != nil {
		t.Fatal(err)
	}
	go c.work(questions)
	t.Cleanup(func() { <-c.done })
	return c
}

func (c *fixture) as(role string) actor.Out {
	out, err := actor.NewOut(c.b.Connect(role))
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// next waits for something that must come.
func next[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitTimeout):
		t.Fatal("it did not come")
		panic("unreachable")
	}
}

// installation is a home whose data folder is the server's.
func (c *fixture) installation(t *testing.T) *installation {
	t.Helper()
	p := newInstallation(t)
	if err := c.linkData(p.data); err != nil {
		t.Fatal(err)
	}
	return p
}

func (c *fixture) linkData(data string) error {
	if err := os.MkdirAll(filepath.Dir(data), 0o700); err != nil {
		return err
	}
	return os.Symlink(c.b.Dir, data)
}

// work answers questions until the end of the test.
func (c *fixture) work(questions *client.Watch) {
	defer close(c.done)
	for e, err := range questions.Events(c.t.Context()) {
		var q subjects.Query
		if err != nil || !e.Decode(&q) {
			continue
		}
		select {
		case c.asked <- asked{q, e}:
		default: // a script asks a lot and looks at the answers
		}
		word, _, _ := strings.Cut(q.Query, " ")
		if act := scriptedAnswers[word]; act != nil {
			act(&turn{fixture: c, q: q})
		}
	}
}

// turn is one question that is being answered.
type turn struct {
	*fixture
	q subjects.Query
	n int
}

func good(t testing.TB, err error) {
	if err != nil {
		t.Error(err)
	}
}

// with completes a topic with the turn's query.
func with[T any](x *turn, t subjects.Topic[T]) subjects.Topic[T] {
	done, err := t.With(x.q.QueryID)
	good(x.t, err)
	return done
}

// say publishes a message of a turn. It waits until an event is in EVENTS, so that those of several authors stay in
// order.
func say[T any](x *turn, out actor.Out, t subjects.Topic[T], body T) {
	good(x.t, actor.Emit(x.t.Context(), out.WithIDs(x.q.SessionID, x.q.QueryID), t, body))
	if t.Stream == client.EventLog {
		x.b.AwaitEvents()
	}
}

func (x *turn) state(s subjects.AgentState) {
	t, err := subjects.AgentStateEvent.With("generator")
	good(x.t, err)
	s.SessionID, s.QueryID = x.q.SessionID, x.q.QueryID
	say(x, x.generator, t, s)
}

func (x *turn) delta(step int, text string) {
	say(x, x.generator, with(x, subjects.ResponseDelta), subjects.Delta{
		QueryID: x.q.QueryID, RespondentID: "a",
		Step: step, N: x.n, Text: text,
	})
	x.n++
}

func (x *turn) think(text string) {
	say(x, x.generator, with(x, subjects.ResponseThinking), subjects.Delta{
		QueryID: x.q.QueryID, RespondentID: "a",
		Text: text,
	})
}

// response is an answer that says what every answer says.
func (x *turn) response(answer string) subjects.Response {
	return subjects.Response{
		SessionID: x.q.SessionID, QueryID: x.q.QueryID, Query: x.q.Query, Answer: answer, Thinking: "let me see",
		ToolCalls:   []subjects.ToolCall{},
		GeneratorID: "generator", RespondentID: "a", Model: cmp.Or(x.q.Model, "test:1b"),
		Usage: subjects.Usage{PromptTokens: 7, CompletionTokens: 3, Millis: 1200},
	}
}

func (x *turn) answer(r subjects.Response) { say(x, x.generator, subjects.ResponseGeneration, r) }

func (x *turn) tool(id string, fault *subjects.Fault) {
	x.toolCall(id)
	x.toolResult(id, fault)
}

func (x *turn) toolCall(id string) {
	request, err := subjects.ToolRequestEvent.With("get_datetime")
	good(x.t, err)
	say(x, x.broker, request, subjects.ToolRequest{
		CallID: id, QueryID: x.q.QueryID, Tool: "get_datetime",
		Caller: "generator", Args: json.RawMessage(`{"timezone":"UTC"}`),
	})
}

func (x *turn) toolResult(id string, fault *subjects.Fault) {
	result, err := subjects.ToolResultEvent.With("get_datetime")
	good(x.t, err)
	r := subjects.ToolResult{
		CallID: id, QueryID: x.q.QueryID, Tool: "get_datetime", Result: "now", Millis: 12,
		Error: fault,
	}
	if fault != nil {
		r.Result = ""
	}
	say(x, x.broker, result, r)
}

// echo answers with the question and its attachments.
func echo(x *turn) {
	said := x.q.Query
	for _, a := range x.q.Attachments {
		said += "\n" + strings.TrimSpace(a.Source+" "+a.Name) + ": " + a.Text
	}
	x.answer(x.response(said))
}

// scriptedAnswers are the answers, by the first word of the question.
var scriptedAnswers = map[string]func(x *turn){
	"capital": func(x *turn) {
		x.state(subjects.AgentState{From: "IDLE", To: "RECEIVING", Event: "RECEIVE_QUERY"})
		x.think("let me see")
		x.delta(0, "Par")
		x.delta(0, "is")
		x.answer(x.response("Paris"))
	},
	"echo": echo,
	"The":  echo, // a pipe without a question
	"What": echo,
	"tools": func(x *turn) {
		x.delta(0, "Let me look that up.")
		x.state(subjects.AgentState{To: "DISPATCHING_TOOL", Words: "Let me look that up."})
		x.tool("c1", nil)
		x.state(subjects.AgentState{To: "DISPATCHING_TOOL", Step: 1, Words: "And once more."})
		x.tool("c2", &subjects.Fault{Code: subjects.CodeDenied, Denial: &subjects.Denial{
			Layer: "manifest",
			Rule:  "not_listed", Reason: "not for you",
		}})
		x.state(subjects.AgentState{To: "GENERATING", Code: "repetition", Words: "the same call was refused"})
		x.delta(2, "It is now.")
		r := x.response("It is now.")
		r.ToolCalls = []subjects.ToolCall{{
			CallID: "c1", Tool: "get_datetime", Args: json.RawMessage(`{}`),
			Result: "now",
		}}
		r.Notes = []subjects.Note{
			{Code: "repetition", Text: "the same call was refused"},
			{
				Code: "trimmed", Text: "history did not fit into the window of the model, so the three oldest of its " +
					"turns were left out of the prompt",
			},
		}
		x.answer(r)
	},
	"script": func(x *turn) {
		r := x.response("I am a script.")
		r.DemoModel, r.Notes = true, []subjects.Note{{Code: "demo_model", Text: "answered by the built-in demo " +
			"model, which is not a language model"}}
		x.answer(r)
	},
	"fail": func(x *turn) {
		r := x.response("As far as I came.\n\nThe reason\x1b[2J. What to do about it.")
		r.Partial = true
		r.Error = subjects.Faultf(strings.Fields(x.q.Query)[1], "the reason\x1b[2J")
		x.state(subjects.AgentState{To: "PUBLISHING", Code: r.Error.Code, Words: r.Error.Text})
		x.answer(r)
	},
	"partial": func(x *turn) {
		r := x.response("Half of it")
		r.Partial, r.Notes = true, []subjects.Note{{Code: "wall_clock", Text: "the time was up"}}
		x.answer(r)
	},
	"respondent_b": func(x *turn) {
		b := x.response("Respondent B's answer")
		b.RespondentID = "b"
		say(x, x.respondentB, subjects.ResponseGeneration, b)
		other := x.response("The answer to another question")
		other.QueryID = "another"
		x.answer(other)
		x.answer(x.response("The answer"))
	},
	"buried": func(x *turn) {
		who, out, subject := "generator", x.generator, "turn.3.s"
		if strings.Contains(x.q.Query, "router") {
			who, out, subject = "router", x.router, "query.received"
		}
		t, err := subjects.DeadLetterEvent.With(who)
		good(x.t, err)
		// About something else: no reason to give up.
		say(x, out, t, subjects.DeadLetter{
			Actor: who, Subject: "query.cancel.x", Code: "malformed",
			Reason: "nobody cares",
		})
		say(x, out, t, subjects.DeadLetter{
			Actor: who, Subject: subject, Code: "internal",
			Reason: "given up after 5 tries",
		})
		if strings.Contains(x.q.Query, "answered") {
			x.answer(x.response("All the same"))
		}
	},
	"stop": func(x *turn) {
		x.state(subjects.AgentState{To: "GENERATING"})
		x.delta(0, "as far as\n\n")
		select {
		case id := <-x.cancels:
			if id != x.q.QueryID {
				x.t.Errorf("told to stop %s, not %s", id, x.q.QueryID)
			}
		case <-x.t.Context().Done():
			return
		}
		r := x.response("as far as\n\nthis")
		r.Partial, r.Notes = true, []subjects.Note{{Code: "stopped", Text: "stopped by the user"}}
		x.answer(r)
	},
	"phases": func(x *turn) {
		for _, step := range []func(){
			func() { x.state(subjects.AgentState{From: "RECEIVING", To: "GENERATING", Event: "START_GENERATION"}) },
			func() { x.think("let me see") },
			func() { x.toolCall("c1") },
			func() { x.toolResult("c1", nil) },
			func() { x.answer(x.response("It is now.")) },
		} {
			select {
			case <-x.goOn:
			case <-x.t.Context().Done():
				return
			}
			step()
		}
	},
	"egress": func(x *turn) {
		x.toolCall("c1")
		result, err := subjects.ToolResultEvent.With("get_datetime")
		good(x.t, err)
		say(x, x.broker, result, subjects.ToolResult{
			CallID: "c1", QueryID: x.q.QueryID, Tool: "get_datetime",
			Result: "now", Egress: subjects.EgressSent,
		})
		x.answer(x.response("It is now."))
	},
	"slow": func(x *turn) {
		x.delta(0, "\n\nthe first **line**\n\nand half")
		select {
		case <-x.goOn:
		case <-x.t.Context().Done():
			return
		}
		x.delta(0, " of the second")
		x.answer(x.response("the first **line**\n\nand half of the second, and an end that no piece had\x1b[2J"))
	},
	"markdown": func(x *turn) {
		const first = "# A Title\n\nA paragraph with **bold** words, `code` and a [link](https://example.org/page), " +
			"long enough to wrap on a narrow screen, and more.\n\n- one\n- two\n\n```go\nfunc main() " +
			"{\n\tprintln(1)\n}\n```\n\nSecond paragraph that is still growing when the"
		const rest = " terminal changes its size.\n\n| fruit | price |\n|---|---|\n| apple | 1 |\n| pear | 20 " +
			"|\n\nThe end."
		x.state(subjects.AgentState{From: "IDLE", To: "GENERATING", Event: "START_GENERATION"})
		for i := 0; i < len(first); i += 7 {
			x.delta(0, first[i:min(i+7, len(first))])
		}
		select {
		case <-x.goOn:
		case <-x.t.Context().Done():
			return
		}
		x.delta(0, rest)
		x.answer(x.response(first + rest))
	},
	"hostile": func(x *turn) {
		const text = "\x1b[2J\x1b[H\x1b]0;owned\x07\x1b]52;c;aGk=\x07 cleared?\n\n&#27;[31mred &#x1b;]52;c;aGk=&#7; " +
			"&ZeroWidthSpace;entity\n\n" +
			"[a link](https://example.org/\x1b[31m) ![image](http://192.0.2.1/x.png)\n\n```\n\x1b[5A code " +
			"\u202egnp.exe\n&#27;[8m\n```\n\n" +
			"bidi \u202eabc\u2066def \u200bzero \u009b31m C1\r\rreturn \x08\x08back\n\n<script>alert(1)</script> " +
			"<b>html</b>\n"
		for r := range strings.SplitSeq(text, "") {
			x.delta(0, r)
		}
		x.answer(x.response(text))
	},
	"approval": func(x *turn) { // the test poses the question about the call, and says when it was decided
		x.state(subjects.AgentState{From: "IDLE", To: "GENERATING", Event: "START_GENERATION"})
		select {
		case <-x.goOn:
		case <-x.t.Context().Done():
			return
		}
		x.answer(x.response("decided as " + x.q.Query))
	},
	"gap": func(x *turn) {
		x.delta(0, "one ")
		x.n++ // lost on the way
		x.delta(0, "three ")
		x.answer(x.response("one two three"))
	},
	"changed": func(x *turn) {
		x.delta(0, "what was said first")
		x.answer(x.response("what was meant"))
	},
}

// TestAnswers drives the commands that need an assistant or a model, against the fixture. Beside the commands of
// TestScripts there is:
//
//	keep SESSION FILE   store a conversation, as the assistant would
//	models              let a model actor in
//	critic              let somebody in who says that the critic is there; what it says is in scriptedAnswers
//	reward              let somebody in who counts feedback
func TestAnswers(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/answer",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			c := newFixture(t)
			env.Values[fixtureKey{}] = c
			for name, dir := range map[string]string{
				"HOME": "home", "XDG_DATA_HOME": "home/data",
				"XDG_CONFIG_HOME": "home/config",
			} {
				env.Setenv(name, filepath.Join(env.WorkDir, dir))
			}
			env.Setenv("TZ", "UTC")
			setRuntimeEnv(env)
			env.Setenv("DATA", filepath.Join(env.WorkDir, "home/data/conclave"))
			if err := writeSystem(filepath.Join(env.WorkDir, "home/config/conclave")); err != nil {
				return err
			}
			return c.linkData(filepath.Join(env.WorkDir, "home/data/conclave"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "json": cmdJSON, "jsonlines": cmdJSONLines, "keep": cmdKeep, "models": cmdModels,
			"critic": cmdCritic, "reward": cmdReward,
		},
	})
}

// fixtureKey is the key of a script's fixture.
type fixtureKey struct{}

func cmdKeep(ts *testscript.TestScript, _ bool, v []string) {
	c := ts.Value(fixtureKey{}).(*fixture)
	body := []byte(ts.ReadFile(v[1]))
	_, err := c.generator.Store("state_generator").Put(c.t.Context(), "conv."+v[0], body, 0)
	ts.Check(err)
}

func cmdModels(ts *testscript.TestScript, _ bool, _ []string) {
	c := ts.Value(fixtureKey{}).(*fixture)
	ts.Check(c.models(ts.Defer))
}

// modelActor is the model actor as the commands know it: a list, and pulls that go as their name says.
type modelActor struct{}

func (modelActor) Name() string { return "model" }

func (m modelActor) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.ModelListService, m.list), actor.ServeStream(subjects.ModelPull, m.pull)}
}

func (modelActor) list(context.Context, actor.Msg[subjects.Empty], actor.Out) (subjects.ModelList, error) {
	return subjects.ModelList{
		Models: []subjects.ModelInfo{
			{
				Name: "gemma4:12b", Backend: "ollama", Size: 8 << 30, Parameters: "12B", Tools: true, Thinking: true,
				Loaded: true,
			},
			{Name: "nomic-embed-text", Backend: "ollama", Size: 274 << 20, Embedding: true},
			{Name: "big:cloud", Backend: "ollama", Remote: "ollama.com", Refused: "it would leave this machine"},
		},
		Roles: []subjects.RoleModel{
			{Role: "assistant", Model: "gemma4:12b", Window: 32000},
			{Role: "embeddings", Model: "nomic-embed-text"},
			{Role: "critic", Model: "gemma4:12b", Wanted: "prometheus:7b", Improves: "grades are better"},
			{Role: "coder", Model: "gemma4:12b", Wanted: "qwen:14b", Notice: "qwen:14b does not fit; gemma4:12b " +
				"answers instead"},
			{Role: "orchestrator", Model: "script", DemoModel: true},
			{Role: "researcher", Model: "gemma4:12b", Wanted: "qwen:14b", Notice: "qwen:14b does not fit; gemma4:12b " +
				"answers instead"},
			{Role: "summaries", Model: "gone:1b", Notice: "gone:1b cannot be reached"},
		},
	}, nil
}

func (modelActor) pull(ctx context.Context, in actor.Msg[subjects.PullRequest], say func(subjects.PullProgress) error,
	_ actor.Out,
) error {
	switch in.Body.Model {
	case "nowhere":
		return subjects.Faultf(subjects.CodeModelMissing, "nowhere is not in the registry")
	case "endless":
		if err := say(subjects.PullProgress{Status: "pulling manifest"}); err != nil {
			return err
		}
		<-ctx.Done()
		return subjects.Faultf(subjects.CodeTimeout, "the time is up")
	}
	if err := say(subjects.PullProgress{Status: "pulling manifest"}); err != nil {
		return err
	}
	for _, layer := range []string{"aaaa", "bbbb"} {
		for i := range int64(5) {
			if err := say(subjects.PullProgress{
				Status: "pulling " + layer, Digest: "sha256:" + layer, Total: 4 << 20,
				Completed: i << 20,
			}); err != nil {
				return err
			}
		}
	}
	return say(subjects.PullProgress{Status: "success"})
}

// models lets the model actor in.
func (c *fixture) models(atEnd func(func())) error {
	spec := actor.Spec{Name: "model", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
		return modelActor{}, nil
	}}
	s, err := actor.Supervise(c.t.Context(), spec, c.b.Dial, actor.Config{})
	if err != nil {
		return err
	}
	atEnd(func() { _ = s.Stop() })
	return nil
}
