package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// fakeBroker is the broker as far as the user speaks to it, under the broker's own grants: questions that are answered
// once, rules that are revoked once, a policy and what is set for sessions.
type fakeBroker struct {
	t         testing.TB
	out       actor.Out
	decisions chan string // what was answered, as "id true always"

	mu        sync.Mutex
	questions map[string]subjects.Approval
	rules     []subjects.ApprovalRule
	sessions  map[string]subjects.SessionConfig
}

func (*fakeBroker) Name() string { return "broker" }

func (c *fakeBroker) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.ApprovalListService, c.list), actor.Serve(subjects.ApprovalDecisionService, c.answer),
		actor.Serve(subjects.ApprovalRevoke, c.revoke),
		actor.Serve(subjects.PolicyExplain, c.explain), actor.Serve(subjects.SessionConfigService, c.set),
	}
}

// newFakeBroker lets the broker in.
func newFakeBroker(c *fixture) *fakeBroker {
	k := &fakeBroker{
		t: c.t, out: c.broker, decisions: make(chan string, 2*manyPosed), questions: map[string]subjects.Approval{},
		sessions: map[string]subjects.SessionConfig{},
	}
	c.b.RunActor(k, actor.Config{})
	return k
}

// pose puts a question there, and tells of it.
func (c *fakeBroker) pose(q subjects.Approval) {
	c.mu.Lock()
	c.questions[q.ID] = q
	c.mu.Unlock()
	topic, err := subjects.ApprovalRequestEvent.With(q.ID)
	good(c.t, err)
	good(c.t, actor.Emit(c.t.Context(), c.out.WithIDs(q.SessionID, q.QueryID), topic, q.ApprovalRequest))
}

// manyPosed is how many questions [fakeBroker.poseMany] puts there at most.
const manyPosed = 30

func posedID(i int) string { return fmt.Sprintf("%04x%028d", 0xab00+i, i) }

// poseMany poses questions about calls of one question with other addresses, as a model reply with many calls does, and
// returns their ids.
func (c *fakeBroker) poseMany(session, query string, from, to int) (ids []string) {
	for i := from; i < to; i++ {
		q := open(posedID(i))
		q.SessionID, q.QueryID, q.Taint = session, query, nil
		q.Args = json.RawMessage(fmt.Sprintf(`{"url":"https://example.org/%d"}`, i))
		c.pose(q)
		ids = append(ids, q.ID)
	}
	return ids
}

// wantDecisions waits for as many decisions, in their order.
func (c *fakeBroker) wantDecisions(ids []string, approved func(i int) bool) {
	c.t.Helper()
	for i, id := range ids {
		want := id + " denied"
		if approved(i) {
			want = id + " approved"
		}
		if got := next(c.t, c.decisions); got != want {
			c.t.Errorf("decision %d is %s, want %s", i+1, got, want)
		}
	}
}

// taintedAt is when the session read untrusted content, the same for all its requests.
var taintedAt = time.Now().Add(-2 * time.Hour)

// open is a question that waits, with everything that could steer a terminal.
func open(id string) subjects.Approval {
	now := time.Now()
	return subjects.Approval{State: subjects.ApprovalPending, ApprovalRequest: subjects.ApprovalRequest{
		ID: id, SessionID: "s1", QueryID: "q1", Caller: "generator", Type: "assistant", Tool: "web_fetch",
		Args:  json.RawMessage(`{"url":"https://example.org/?q=1","note":"\u001b[2J` + "\u202e\u009b" + `end"}`),
		Layer: "flow", Rule: "egress", Reason: "it would send to a stranger\x1b]0;x\a",
		Sinks: []string{"https://example.org/?q=1"},
		Taint: []subjects.Taint{{
			Tool: "web_search", From: "https://evil.example\x1b[8m", Flags: []string{"override"},
			Time: taintedAt,
		}},
		Asked: now.Add(-90 * time.Second), Expires: now.Add(210 * time.Second),
	}}
}

func (c *fakeBroker) list(_ context.Context, in actor.Msg[subjects.ApprovalQuery], _ actor.Out) (subjects.ApprovalList,
	error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := subjects.ApprovalList{Approvals: []subjects.Approval{}, Rules: append([]subjects.ApprovalRule{}, c.rules...)}
	ids := []string{
		"0123456789abcdef0123456789abcdef", "0123457777777777", "act0000000000000",
		"expired000000000", "denied0000000000", "late000000000000",
	}
	for i := manyPosed - 1; i >= 0; i-- { // newest first
		ids = append(ids, posedID(i))
	}
	for _, id := range ids {
		if q, ok := c.questions[id]; ok && (in.Body.All || q.State == subjects.ApprovalPending) {
			l.Approvals = append(l.Approvals, q)
		}
	}
	return l, nil
}

func (c *fakeBroker) answer(ctx context.Context, in actor.Msg[subjects.ApprovalDecision],
	out actor.Out,
) (subjects.ApprovalReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := in.Tokens[1]
	q, ok := c.questions[id]
	if !ok {
		return subjects.ApprovalReply{ID: id, State: subjects.ApprovalUnknown}, nil
	}
	if q.State != subjects.ApprovalPending {
		return subjects.ApprovalReply{ID: id, State: q.State, By: q.By}, nil
	}
	q.State, q.By = subjects.ApprovalDenied, in.From
	if in.Body.Approve {
		q.State = subjects.ApprovalApproved
	}
	c.questions[id] = q
	r := subjects.ApprovalReply{ID: id, Accepted: true, State: q.State, By: q.By, Remember: in.Body.Remember}
	if len(q.Sinks) == 0 {
		r.Remember = ""
	}
	c.decisions <- strings.TrimSpace(id + " " + q.State + " " + in.Body.Remember)
	topic, err := subjects.ApprovalDecisionEvent.With(id)
	good(c.t, err)
	return r, actor.Emit(ctx, out.WithIDs(q.SessionID, q.QueryID), topic, r)
}

func (c *fakeBroker) revoke(_ context.Context, in actor.Msg[subjects.Empty], _ actor.Out) (subjects.Done, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range c.rules {
		if r.ID == in.Tokens[1] {
			c.rules = append(c.rules[:i:i], c.rules[i+1:]...)
			return subjects.Done{OK: true}, nil
		}
	}
	return subjects.Done{}, nil
}

func (c *fakeBroker) explain(_ context.Context, in actor.Msg[subjects.ExplainRequest], _ actor.Out) (subjects.Verdict,
	error,
) {
	pass := []subjects.LayerVerdict{{Layer: "manifest", Verdict: "pass"}}
	switch {
	case in.Body.As != "generator" && in.Body.As != "orchestrator.coder-1":
		return subjects.Verdict{}, subjects.Faultf(subjects.CodeMalformed, "there is no %s", in.Body.As)
	case in.Body.Tool == "silent":
		return subjects.Verdict{}, nil // an odd broker: that is no yes
	case in.Body.Tool == "run_shell":
		d := subjects.Denial{
			Layer: "manifest", Rule: "not_in_set", Reason: "not for\x1b[2J you",
			Allowed: []string{"web_fetch"},
		}
		return subjects.Verdict{
			Denial: &d,
			Layers: []subjects.LayerVerdict{{Layer: "manifest", Verdict: "deny", Rule: d.Rule, Reason: d.Reason}},
		}, nil
	case in.Body.SessionID == "tainted", in.Body.SessionID == "tainted-by-strangers":
		d := subjects.Denial{Layer: "flow", Rule: "egress", Reason: "strangers wrote " + string(in.Body.Args)}
		return subjects.Verdict{
				Asks: []subjects.Denial{d},
				Layers: append(pass, subjects.LayerVerdict{
					Layer: "flow", Verdict: "ask", Rule: d.Rule,
					Reason: d.Reason,
				}),
			},
			nil
	}
	return subjects.Verdict{
		Allowed: true, Layers: append(pass, subjects.LayerVerdict{Layer: "flow", Verdict: "pass"}),
		Monitored: []subjects.Denial{{Layer: "limits", Rule: "often", Reason: "too often"}},
	}, nil
}

func (c *fakeBroker) set(_ context.Context, in actor.Msg[subjects.SessionConfig], _ actor.Out) (subjects.SessionConfig,
	error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in.Body.SessionID == "refused" {
		return subjects.SessionConfig{}, subjects.Faultf(subjects.CodeMalformed, "there is no tool %s",
			strings.Join(in.Body.Disable, " "))
	}
	if !in.Body.Show {
		c.sessions[in.Body.SessionID] = in.Body
	}
	held := c.sessions[in.Body.SessionID]
	held.SessionID = in.Body.SessionID
	switch held.SessionID { // odd brokers, which say something else than was asked for
	case "deaf":
		held.Override = subjects.OverrideNone
	case "halfdeaf":
		held.Disable = held.Disable[:1]
	case "otherwise":
		held.QueryID = "another"
	}
	return held, nil
}

// clerkKey is the key of a script's fakeBroker.
type clerkKey struct{}

// cmdHeld compares what was set for the last question of a session: for that message and no other.
func cmdHeld(ts *testscript.TestScript, _ bool, v []string) {
	v = append(v, "", "", "")
	c, k := ts.Value(fixtureKey{}).(*fixture), ts.Value(clerkKey{}).(**fakeBroker)
	var q asked
	select {
	case q = <-c.asked:
	case <-time.After(waitTimeout):
		ts.Fatalf("nothing was asked")
	}
	(*k).mu.Lock()
	defer (*k).mu.Unlock()
	set, ok := (*k).sessions[v[0]]
	want := subjects.SessionConfig{SessionID: v[0], QueryID: q.QueryID, Once: true, Override: v[1]}
	if v[2] != "" {
		want.Disable = strings.Split(v[2], ",")
	}
	if v[3] != "" {
		want.Grant = strings.Split(v[3], ",")
	}
	switch nothing := v[1]+v[2]+v[3] == ""; {
	case q.SessionID != v[0]:
		ts.Fatalf("asked in %s", q.SessionID)
	case nothing && ok:
		ts.Fatalf("set: %+v", set)
	case !nothing && !reflect.DeepEqual(set, want):
		ts.Fatalf("set: %+v, want %+v", set, want)
	}
}

// cmdUnasked holds that no question came. Whoever asks waits until the server has stored it, so one that was asked
// before is here by the time another's is.
func cmdUnasked(ts *testscript.TestScript, _ bool, _ []string) {
	c := ts.Value(fixtureKey{}).(*fixture)
	marker := actor.NewID()
	user := c.as("user")
	ts.Check(actor.Emit(c.t.Context(), user, subjects.QueryReceived,
		subjects.Query{SessionID: "marker", QueryID: marker, Query: "never"}))
	select {
	case q := <-c.asked:
		if q.QueryID != marker {
			ts.Fatalf("it was asked: %+v", q.Query)
		}
	case <-time.After(waitTimeout):
		ts.Fatalf("the marker did not come")
	}
}

// TestApproveScripts drives approve, policy explain and session override against the fakeBroker. Beside the commands of
// TestScripts there is:
//
//	keep SESSION FILE                     store a conversation, as the assistant would
//	broker                                let the fakeBroker in, with questions and rules
//	held SESSION [LEVEL DISABLED GRANTED]  what was set for the next question that was asked, and nothing else
//	unasked                               no question came
func TestApproveScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/approve",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			c := newFixture(t)
			env.Values[fixtureKey{}], env.Values[clerkKey{}] = c, new(*fakeBroker)
			for name, dir := range map[string]string{
				"HOME": "home", "XDG_DATA_HOME": "home/data",
				"XDG_CONFIG_HOME": "home/config",
			} {
				env.Setenv(name, filepath.Join(env.WorkDir, dir))
			}
			env.Setenv("TZ", "UTC")
			setRuntimeEnv(env)
			return c.linkData(filepath.Join(env.WorkDir, "home/data/conclave"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "json": cmdJSON, "jsonlines": cmdJSONLines, "keep": cmdKeep, "held": cmdHeld,
			"unasked": cmdUnasked,
			"broker": func(ts *testscript.TestScript, _ bool, _ []string) {
				k := newFakeBroker(ts.Value(fixtureKey{}).(*fixture))
				*ts.Value(clerkKey{}).(**fakeBroker) = k
				k.mu.Lock()
				defer k.mu.Unlock()
				for _, id := range []string{
					"0123456789abcdef0123456789abcdef", "0123457777777777", "act0000000000000",
					"expired000000000", "denied0000000000",
				} {
					q := open(id)
					switch id[0] {
					case 'a':
						q.Sinks = nil
					case 'e':
						q.State = subjects.ApprovalExpired
					case 'd':
						q.State, q.By = subjects.ApprovalDenied, "user over HTTP"
					}
					k.questions[id] = q
				}
				k.rules = []subjects.ApprovalRule{
					{
						ID: "aaaaaa1111111111", Type: "assistant", Tool: "web_fetch", Rule: "flow: egress",
						Sinks: []string{"https://example.org\x1b[2J"}, By: "user", Made: time.Date(2026, 1, 2, 3, 4, 5,
							0, time.UTC),
					},
					{
						ID: "aaaaaa2222222222", Session: "s1", Type: "coder", Tool: "fs_write", Rule: "flow: mutate",
						Sinks: []string{"/tmp/a", "/tmp/b"}, By: "gateway", Made: time.Date(2026, 1, 3, 3, 4, 5, 0,
							time.UTC),
					},
				}
			},
		},
	})
}

// onKeyboard starts the program on a terminal with a keyboard.
func (p *installation) onKeyboard(v ...string) (*process, *os.File) {
	p.t.Helper()
	master, slave := termtest.Open(p.t)
	c := &process{
		cmd: exec.Command("conclave", v...), stdout: newOutput(), stderr: newOutput(),
		done: make(chan struct{}),
	}
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = p.env, slave, slave, slave
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	slave.Close()
	go func() {
		r := bufio.NewReader(master)
		for {
			l, err := r.ReadString('\n')
			_, _ = c.stdout.Write([]byte(l))
			if err != nil {
				break
			}
		}
		c.reap()
	}()
	p.t.Cleanup(c.kill)
	return c, master
}

// types types a line until it was taken: what comes before anybody can have read the question is not.
func types(t *testing.T, keyboard *os.File, line string, taken <-chan string) string {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); time.Now().Before(deadline); {
		if _, err := keyboard.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
		select {
		case d := <-taken:
			return d
		case <-time.After(2 * term.TooFast):
		}
	}
	t.Fatal("nobody took the answer")
	return ""
}

// TestApproveShowsBeforeItAsks: on a terminal, approve with an id shows the exact arguments and asks; without a yes
// nothing is decided.
func TestApproveShowsBeforeItAsks(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	k, p := newFakeBroker(c), c.installation(t)
	k.pose(open("0123456789abcdef0123456789abcdef"))
	w, keyboard := p.onKeyboard("approve", "01234567")
	p.must(w.stdout, `"url": "https://example.org/\?q=1"`)
	p.must(w.stdout, "untrusted +web_search https://evil.example") // the last line before the question
	select {
	case got := <-k.decisions:
		t.Fatalf("decided before the answer: %s", got)
	default:
	}
	// A yes that could be pasted is asked again.
	for !strings.Contains(w.stdout.String(), "this could be pasted text: to approve, type 0123") {
		select {
		case got := <-k.decisions:
			t.Fatalf("a y decided: %s", got)
		case <-w.done:
			t.Fatalf("ended: %s", w.stdout)
		case <-time.After(2 * term.TooFast):
		}
		if _, err := keyboard.WriteString("y\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got := types(t, keyboard, "0123", k.decisions); got != "0123456789abcdef0123456789abcdef approved" {
		t.Errorf("%q", got)
	}
	p.must(w.stdout, "approved for this call only")

	// The prompt says what Enter and no do.
	k.pose(open("act0000000000000"))
	w, keyboard = p.onKeyboard("approve", "act00000")
	p.must(w.stdout, "untrusted +web_search https://evil.example")
	if got := types(t, keyboard, "no", k.decisions); got != "act0000000000000 denied" {
		t.Errorf("%q", got)
	}
	p.must(w.stdout, "allow web_fetch\\? type act0 to allow, act0 s for this session, act0 a for always, no to deny, "+
		"Enter to decide later: .*")
}

// TestApproveWatch answers questions as they come, on a terminal.
func TestApproveWatch(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	k, p := newFakeBroker(c), c.installation(t)
	w, keyboard := p.onKeyboard("approve", "--watch")
	p.must(w.stdout, "watching for requests")
	for _, tt := range []struct{ id, line, want string }{
		{"0123456789abcdef0123456789abcdef", "0123", "0123456789abcdef0123456789abcdef approved"},
		{"0123457777777777", "", "0123457777777777 denied"},
		{"act0000000000000", "act0 a", "act0000000000000 approved always"},
		{"expired000000000", "yess", "expired000000000 denied"},
		{"denied0000000000", "0123 y", "denied0000000000 denied"}, // the word of another request
	} {
		k.pose(open(tt.id))
		p.must(w.stdout, tt.id+".* generator requests ")
		p.must(w.stdout, "untrusted +web_search https://evil.example")
		if got := types(t, keyboard, tt.line, k.decisions); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	// Answered elsewhere: what is typed then is nobody's answer.
	k.pose(open("late000000000000"))
	p.must(w.stdout, "late000000000000.* generator requests")
	p.run(cli.ExitOK, "conclave", "approve", "--deny", "late000000000000")
	p.must(w.stdout, "late0000 was decided elsewhere, or has expired")
	<-k.decisions
	if code, err := w.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	text := w.stdout.String()
	for _, steers := range []string{"\x1b[2J", "\x1b]0", "\x1b[8m", "\u202e", "\u009b", "\a"} {
		if strings.Contains(text, steers) {
			t.Errorf("the terminal was sent %q", steers)
		}
	}
	if !strings.Contains(text, `\u001b[2J\u202e\u009bend`) ||
		!strings.Contains(text, "type 0123 to allow, 0123 s for this session, 0123 a for always, Enter to deny: ") {
		t.Errorf("shown:\n%s", text)
	}

	// Without a keyboard it only shows; as JSON it is lines.
	k.pose(open("0123456789abcdef0123456789abcdef"))
	plain := p.begin("conclave", "approve", "--watch")
	p.must(plain.stderr, "decide with: conclave approve 01234567, or --deny 01234567\n")
	lines := p.begin("conclave", "approve", "--watch", "--json")
	p.must(lines.stdout, `^\{"id":"0123456789abcdef0123456789abcdef".*"state":"pending"\}\n`)
	for _, w := range []*process{plain, lines} {
		if code, err := w.end(os.Interrupt); code != cli.ExitOK || err != nil {
			t.Errorf("%d, %v", code, err)
		}
	}
	if len(k.decisions) != 0 {
		t.Errorf("answered without being asked: %s", <-k.decisions)
	}
}

// TestAskApproval asks the user in the middle of an answer.
func TestAskApproval(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef"
	c := newFixture(t)
	k, p := newFakeBroker(c), c.installation(t)
	begin := func(a *process) (*turn, subjects.Approval) {
		t.Helper()
		q := next(t, c.asked)
		question := open(id)
		question.SessionID, question.QueryID = q.SessionID, q.QueryID
		k.pose(question)
		return &turn{fixture: c, q: q.Query}, question
	}
	end := func(a *process, x *turn) {
		t.Helper()
		x.answer(x.response("Done."))
		if code, err := a.wait(); code != cli.ExitOK || err != nil {
			t.Errorf("%d, %v: %s%s", code, err, a.stdout, a.stderr)
		}
	}
	for _, tt := range []struct{ line, want string }{
		{"0123", id + " approved"},
		{"", id + " denied"},
		{"0123 a", id + " approved"},
		{"hello", id + " denied"},
	} {
		a, keyboard := p.onKeyboard("ask", "never")
		x, _ := begin(a)
		p.must(a.stdout, "generator requests ")
		p.must(a.stdout, "untrusted ")
		if got := types(t, keyboard, tt.line, k.decisions); got != tt.want {
			t.Errorf("%q: %q", tt.line, got)
		}
		p.must(a.stdout, "web_fetch: (approved|denied) by user")
		end(a, x)
		if text := a.stdout.String(); strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\u202e") {
			t.Errorf("the terminal was steered: %q", text)
		}
	}
	// What was pasted before the question, and a y behind it, approves nothing.
	a, keyboard := p.onKeyboard("ask", "never")
	if _, err := keyboard.WriteString("Dear all\ny\nyes\n"); err != nil {
		t.Fatal(err)
	}
	x, _ := begin(a)
	p.must(a.stdout, "untrusted ")
	for !strings.Contains(a.stdout.String(), "this could be pasted text: to approve, type 0123") {
		select {
		case got := <-k.decisions:
			t.Fatalf("pasted text decided: %s", got)
		case <-a.done:
			t.Fatalf("ended: %s", a.stdout)
		case <-time.After(2 * term.TooFast):
		}
		if _, err := keyboard.WriteString("y\nyes\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got := types(t, keyboard, "0123", k.decisions); got != id+" approved" {
		t.Errorf("%q", got)
	}
	end(a, x)
	// In a pipe it is told how to answer elsewhere; the answer alone is data.
	piped := p.begin("conclave", "ask", "never")
	x, _ = begin(piped)
	p.must(piped.stderr,
		`^waiting for you: web_fetch .*; decide with: conclave approve 01234567, or --deny 01234567\n`)
	end(piped, x)
	if got := piped.stdout.String(); got != "Done.\n" || len(k.decisions) != 0 {
		t.Errorf("%q, %d decisions", got, len(k.decisions))
	}
	lines := p.begin("conclave", "ask", "--stream-json", "never")
	x, _ = begin(lines)
	p.must(lines.stdout, `"type":"approval",.*"phase":"request","request":\{"id":"`+id)
	end(lines, x)

	// Somebody else's event of that name is not shown.
	quiet := p.begin("conclave", "ask", "never")
	q := next(t, c.asked)
	other := open("feedfeedfeedfeed")
	other.QueryID = "another"
	k.pose(other)
	end(quiet, &turn{fixture: c, q: q.Query})
	if strings.Contains(quiet.stderr.String(), "waiting for you") {
		t.Errorf("%s", quiet.stderr)
	}
}

// TestApproveWatchTogether: calls of one question are asked about together, and one that comes after they were shown is
// asked about by itself.
func TestApproveWatchTogether(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	k, p := newFakeBroker(c), c.installation(t)
	w, keyboard := p.onKeyboard("approve", "--watch")
	p.must(w.stdout, "watching for requests")
	ids := k.poseMany("s1", "q1", 0, 20)
	p.must(w.stdout, "generator requests 20 calls of ")
	p.must(w.stdout, "^ 20  .*"+ids[19])
	late := k.poseMany("s1", "q1", 20, 21)
	if got := types(t, keyboard, "ab00 1,3-5", k.decisions); got != ids[0]+" approved" {
		t.Errorf("%s", got)
	}
	k.wantDecisions(ids[1:], func(i int) bool { return i >= 1 && i <= 3 })
	p.must(w.stdout, late[0]+".* generator requests ")
	if got := types(t, keyboard, "ab14", k.decisions); got != late[0]+" approved" {
		t.Errorf("%s", got)
	}
	if code, err := w.end(os.Interrupt); code != cli.ExitOK || err != nil || len(k.decisions) != 0 {
		t.Errorf("%d, %v", code, err)
	}
	if !strings.Contains(w.stdout.String(), "run these 20 calls of web_fetch? type ab00 for all, ab00 1,3-5 for some, "+
		"Enter to deny all: ") {
		t.Errorf("shown:\n%s", w.stdout)
	}

	// The list shows them together too, with each id and address.
	k.poseMany("s1", "q1", 21, 24)
	list := p.run(cli.ExitOK, "conclave", "approve")
	for _, want := range []string{
		"generator requests 3 calls of web_fetch", posedID(21), "https://example.org/22", posedID(23),
	} {
		if !strings.Contains(list, want) {
			t.Errorf("%q is not listed:\n%s", want, list)
		}
	}
}

// TestAskApprovesTogether: an answer on the terminal decides the calls that are shown, and no other.
func TestAskApprovesTogether(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	k, p := newFakeBroker(c), c.installation(t)
	a, keyboard := p.onKeyboard("ask", "never")
	q := next(t, c.asked)
	ids := k.poseMany(q.SessionID, q.QueryID, 0, 22)
	p.must(a.stdout, "2 calls not shown: asked about afterwards")
	late := k.poseMany(q.SessionID, q.QueryID, 22, 23)
	if got := types(t, keyboard, "ab00", k.decisions); got != ids[0]+" approved" {
		t.Errorf("%s", got)
	}
	k.wantDecisions(ids[1:20], func(int) bool { return true })
	p.must(a.stdout, "^  3  .*"+late[0])
	rest := append(ids[20:], late...)
	if got := types(t, keyboard, "", k.decisions); got != rest[0]+" denied" {
		t.Errorf("%s", got)
	}
	k.wantDecisions(rest[1:], func(int) bool { return false })
	x := &turn{fixture: c, q: q.Query}
	x.answer(x.response("Done."))
	if code, err := a.wait(); code != cli.ExitOK || err != nil {
		t.Errorf("%d, %v: %s%s", code, err, a.stdout, a.stderr)
	}
}

func TestParseDecision(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]subjects.ApprovalDecision{
		"y": {Approve: true}, " Y ": {Approve: true}, "yes": {Approve: true}, "s": {Approve: true, Remember: "session"},
		"a": {Approve: true, Remember: "always"},
		"":  {}, "n": {}, "no": {}, "yy": {}, "y n": {}, "ok": {}, "ｙ": {}, "y\x00": {}, "true": {}, "1": {},
	} {
		if got := view.ParseDecision(line); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// againView counts how often the user is asked again.
type againView struct {
	view.AnswerView
	warned, again int
}

func (v *againView) Warn(string, string) { v.warned++ }
func (v *againView) AskAgain()           { v.again++ }

// TestAskAgainAfterError: without a broker no decision can be sent, and the user is asked again.
func TestAskAgainAfterError(t *testing.T) {
	t.Parallel()
	user, err := client.New(newFixture(t).b.Connect("user"))
	good(t, err)
	var v againView
	sendDecisions(t.Context(), cli.New(nil, io.Discard, io.Discard), user, &v, []view.Decision{{ID: "a"}, {ID: "b"}})
	if v.warned != 1 || v.again != 1 {
		t.Errorf("%d warnings, asked %d times", v.warned, v.again)
	}
}
