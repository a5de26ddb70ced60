package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/subjects"
)

// TestAskTerminal looks at what a user sees: words as they come, talk in dim lines, and all of the answer in the end.
func TestAskTerminal(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	p := c.place(t)
	end := func(a *process) string {
		t.Helper()
		if code, err := a.wait(); code != exitDone || err != nil {
			t.Fatalf("it ended with %d, %v: %s", code, err, a.stdout)
		}
		return strings.ReplaceAll(a.stdout.String(), "\r\n", "\n")
	}
	dimmed := func(s string) string { return "\x1b[2m" + s + "\x1b[0m\n" }

	// The first line is there before the rest was said; what no piece had is added without saying it all again.
	slow := p.onTerminal("ask", "slow")
	p.must(slow.stdout, "^the first line")
	close(c.goOn)
	if got, want := end(slow), "the first line\nand half of the second, and an end that no piece had\uFFFD[2J\n"+dimmed("(test:1b, 3 tokens, 1.2s; --continue goes on from here)"); got != want {
		t.Errorf("slow: %q, want %q", got, want)
	}
	// Pieces were lost, or the answer is another: it is shown as a whole, on a line of its own.
	if got := end(p.onTerminal("ask", "gap")); !strings.HasPrefix(got, "one two three\n") {
		t.Errorf("gap: %q", got)
	}
	if got := end(p.onTerminal("ask", "changed")); !strings.HasPrefix(got, "what was said first\nwhat was meant\n") {
		t.Errorf("changed: %q", got)
	}
	// Tool calls, interim words and notes are dim, each once.
	got := end(p.onTerminal("ask", "tools"))
	for _, want := range []string{
		dimmed(`tool get_datetime {"timezone":"UTC"}`), dimmed("tool get_datetime: done in 12 ms"), dimmed("And once more."),
		dimmed("tool get_datetime: denied by layer manifest, rule not_listed: not for you"), dimmed("note: history did not fit"),
		"\nIt is now.\n", "1 tool call",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("tools: no %q in %q", want, got)
		}
	}
	for _, once := range []string{"Let me look that up.", "the same call was refused", "It is now."} {
		if strings.Count(got, once) != 1 {
			t.Errorf("tools: %q not once in %q", once, got)
		}
	}
	// Thinking only when asked for; no colour where none is wanted; the script says that it is one.
	if got := end(p.onTerminal("ask", "capital")); strings.Contains(got, "let me see") || !strings.HasPrefix(got, "Paris\n") {
		t.Errorf("capital: %q", got)
	}
	if got := end(p.onTerminal("ask", "--thinking", "capital")); !strings.Contains(got, dimmed("let me see")) {
		t.Errorf("with thinking: %q", got)
	}
	bare := *p
	bare.env = append(append([]string{}, p.env...), "NO_COLOR=1")
	if got := end(bare.onTerminal("ask", "--thinking", "tools")); strings.Contains(got, "\x1b") {
		t.Errorf("colours with NO_COLOR: %q", got)
	}
	if got := end(p.onTerminal("ask", "script")); !strings.Contains(got, "the built-in demo model, not a model") || strings.Contains(got, "note:") {
		t.Errorf("script: %q", got)
	}
	// What went wrong is said once, as an error.
	failed := p.onTerminal("ask", "fail", "internal")
	if code, err := failed.wait(); code != exitFailed || err != nil {
		t.Errorf("fail: %d, %v", code, err)
	}
	if got := strings.ReplaceAll(failed.stdout.String(), "\r\n", "\n"); got != "As far as I came.\n\x1b[31mconclave:\x1b[0m the reason\uFFFD[2J (internal): the log of conclave up says more\n" {
		t.Errorf("fail: %q", got)
	}
	// A document on a terminal is indented; lines are not.
	if got := end(p.onTerminal("ask", "--json", "capital")); !strings.Contains(got, "\n  \"answer\": \"Paris\"") {
		t.Errorf("json: %q", got)
	}
}

// TestAskStop breaks a question off: the assistant is told, and what it had is printed.
func TestAskStop(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	p := c.place(t)
	screen := p.onTerminal("ask", "--session", "s1", "stop")
	p.must(screen.stdout, "^as far as")
	code, err := screen.end(os.Interrupt)
	text := strings.ReplaceAll(screen.stdout.String(), "\r\n", "\n")
	if code != exitFailed || err != nil || !strings.HasPrefix(text, "as far as\nthis\n") {
		t.Errorf("stopped: %d, %v, %q", code, err, text)
	}
	if !strings.Contains(text, "the answer is not whole: stopped by the user: go on with conclave ask --session s1") {
		t.Errorf("it does not say why: %q", text)
	}

	piped := p.begin("conclave", "ask", "--stream-json", "stop")
	p.must(piped.stdout, `"type":"delta"`)
	if code, err := piped.end(os.Interrupt); code != exitFailed || err != nil || !strings.Contains(piped.stdout.String(), `"type":"response"`) {
		t.Errorf("stopped: %d, %v, %s", code, err, piped.stdout)
	}

	// Nobody works on it: it says so and leaves. The crew tells when it has heard the question.
	for len(c.asked) > 0 {
		<-c.asked
	}
	alone := p.begin("conclave", "ask", "never")
	next(t, c.asked)
	if code, err := alone.end(os.Interrupt); code != exitFailed || err != nil || !strings.Contains(alone.stderr.String(), "nobody had taken the question up, so it stays stored: what comes of it will be in conclave session show ") {
		t.Errorf("stopped alone: %d, %v, %s", code, err, alone.stderr)
	}
	if id := next(t, c.cancels); id == "" {
		t.Error("nobody was told")
	}
}

// gate passes a TCP connection on, until it is shut.
type gate struct {
	t      *testing.T
	to     string
	l      net.Listener
	mu     sync.Mutex
	shut   bool
	inside []net.Conn
}

func newGate(t *testing.T, to string) *gate {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, to: to, l: l}
	t.Cleanup(func() { l.Close(); g.set(true) })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			g.pass(in)
		}
	}()
	return g
}

func (g *gate) pass(in net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	out, err := net.Dial("tcp", g.to)
	if err != nil || g.shut {
		in.Close()
		return
	}
	g.inside = append(g.inside, in, out)
	go func() { _, _ = io.Copy(in, out); in.Close() }()
	go func() { _, _ = io.Copy(out, in); out.Close() }()
}

// set shuts the gate and cuts who is inside, or opens it.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = shut; shut {
		for _, c := range g.inside {
			c.Close()
		}
		g.inside = nil
	}
}

// TestAskMissed cuts the link while the answer is given: it is read from the event log when the link is back.
func TestAskMissed(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	p := c.place(t)
	g := newGate(t, strings.TrimPrefix(c.b.URL, "nats://"))
	a := p.begin("conclave", "ask", "never", "--server", "nats://"+g.l.Addr().String())
	q := next(t, c.asked)
	g.set(true)
	p.must(a.stderr, "the server is gone: waiting for it")
	x := &turn{crew: c, q: q.Query}
	x.answer(x.response("It was said while nobody listened"))
	g.set(false)
	if code, err := a.wait(); code != exitDone || err != nil || a.stdout.String() != "It was said while nobody listened\n" {
		t.Errorf("%d, %v, %q, %s", code, err, a.stdout, a.stderr)
	}
}

// TestAskSent looks at what is said on the bus: a complete question, with its ids in the headers too.
func TestAskSent(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	p := c.place(t)
	p.run(exitDone, "conclave", "ask", "--session", "s1", "--model", "m:1b", "--no-wait", "What", "now?")
	q := next(t, c.asked)
	if q.SessionID != "s1" || q.Model != "m:1b" || q.Query.Query != "What now?" || q.QueryID == "" || q.at.Stream != "QUERIES" {
		t.Errorf("%+v", q)
	}
	if q.at.Session != "s1" || q.at.Query != q.QueryID {
		t.Errorf("headers: %+v", q.at)
	}
	if info, err := os.Stat(p.data + "/last_session"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the last session is in a file for others: %v, %v", info, err)
	}
	if err := os.WriteFile(p.data+"/last_session", []byte("a b.c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(exitFailed, "conclave", "ask", "--continue", "more")
}

// endless is a stdin that nobody closes.
type endless struct{ quit chan struct{} }

func (e endless) Read([]byte) (int, error) {
	<-e.quit
	return 0, io.EOF
}

func TestQuestion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		words []string
		stdin io.Reader
		want  string
		code  int
	}{
		{"words", []string{"a", " b "}, nil, "a  b", exitDone},
		{"stdin", nil, strings.NewReader("\n a\nb\n\n"), " a\nb", exitDone},
		{"a dash", []string{"-"}, strings.NewReader("a"), "a", exitDone},
		{"both", []string{"a"}, strings.NewReader("\nb\n"), "a\n\nb", exitDone},
		{"words and nothing", []string{"a"}, strings.NewReader(" \n"), "a", exitDone},
		{"nothing", nil, strings.NewReader(" \n"), "", exitUsage},
		{"no stdin at all", nil, nil, "", exitUsage},
		{"empty words", []string{"", " "}, nil, "", exitUsage},
		{"bytes that are no text", nil, strings.NewReader("a\xffb"), "a\uFFFDb", exitDone},
		{"too much", []string{"a"}, strings.NewReader(strings.Repeat("b", maxQuestion)), "", exitUsage},
		{"more than is read", nil, strings.NewReader(strings.Repeat("b", 2*maxQuestion)), "", exitUsage},
	} {
		var talk bytes.Buffer
		got, err := newApp(tt.stdin, io.Discard, &talk).question(t.Context(), tt.words)
		if got != tt.want || codeOf(err) != tt.code || talk.Len() > 0 {
			t.Errorf("%s: %q, %v, %s", tt.name, got, err, &talk)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	e := endless{make(chan struct{})}
	defer close(e.quit)
	if _, err := newApp(e, io.Discard, io.Discard).question(ctx, []string{"a"}); codeOf(err) != exitFailed {
		t.Errorf("a stdin that never ends: %v", err)
	}
}

func TestUnanswered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code string
		exit int
		fix  string
	}{
		{subjects.CodeModelUnreachable, exitAbsent, "start Ollama"},
		{subjects.CodeModelMissing, exitAbsent, "conclave model pull"},
		{subjects.CodeModelRemote, exitDenied, "by name"},
		{subjects.CodeModelTooLong, exitFailed, "new session"},
		{subjects.CodeModelKey, exitFailed, "key"},
		{subjects.CodeModelCut, exitFailed, "--model"},
		{subjects.CodeUnavailable, exitAbsent, "doctor"},
		{subjects.CodeTimeout, exitAbsent, "try again"},
		{subjects.CodeStopped, exitFailed, "ask again"},
		{subjects.CodeDenied, exitDenied, "manifest.yaml"},
		{subjects.CodeUnsupported, exitFailed, "model list"},
		{subjects.CodeInternal, exitFailed, "log"},
		{"something new", exitFailed, "log"},
	} {
		err := unanswered(subjects.Faultf(tt.code, "why"))
		if codeOf(err) != tt.exit || !strings.Contains(err.Error(), "why ("+tt.code+")") || !strings.Contains(err.Error(), tt.fix) {
			t.Errorf("%s: %d, %v", tt.code, codeOf(err), err)
		}
	}
}

// TestWritten takes what is about an error out of an answer, and nothing else.
func TestWritten(t *testing.T) {
	t.Parallel()
	fault := subjects.Faultf("x", "the model is gone.")
	for _, tt := range []struct {
		answer string
		fault  *subjects.Fault
		want   string
	}{
		{"The model is gone. Start it.", fault, ""},
		{"Half.\n\nThe model is gone. Start it.", fault, "Half."},
		{"Half.\n\nthe model is gone", fault, "Half."},
		{"Someone said: the model is gone", fault, "Someone said: the model is gone"},
		{"The model is gone. Start it.", nil, "The model is gone. Start it."},
		{"Half.", fault, "Half."},
		{"Half.", &subjects.Fault{Code: "x"}, "Half."},
		{"", fault, ""},
	} {
		if got := written(subjects.Response{Answer: tt.answer, Error: tt.fault}); got != tt.want {
			t.Errorf("%q: %q", tt.answer, got)
		}
	}
}

// TestScreenSteps follows the words of a turn that a crash has interrupted, on a real terminal.
func TestScreenSteps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		pieces []subjects.Delta
		answer string
		want   string
	}{
		{"nothing was streamed", nil, "all at once", "all at once\n"},
		{"nothing came at all", nil, "", ""},
		{"white space around", []subjects.Delta{{Text: "\n "}, {N: 1, Text: "a"}, {N: 2, Text: "\n"}}, "a", "a\n"},
		{"a step begins anew", []subjects.Delta{{Text: "a b"}, {N: 1, Text: "c"}, {Text: "a "}, {N: 1, Text: "d"}}, "a d", "a bc\na d\n"},
		{"counted through", []subjects.Delta{{Text: "I look"}, {Step: 1, N: 1, Text: "a"}, {Step: 1, N: 2, Text: "b"}}, "ab", "I look\nab\n"},
		{"counted anew", []subjects.Delta{{Text: "I look"}, {Step: 1, Text: "a"}, {Step: 1, N: 1, Text: "b"}}, "ab", "I look\nab\n"},
		{"came late", []subjects.Delta{{N: 5, Text: "b"}, {N: 6, Text: "c"}}, "abc", "abc\n"},
		{"a piece lost in the middle", []subjects.Delta{{Text: "a"}, {N: 2, Text: "c"}}, "abc", "abc\n"},
		{"the first of a step lost", []subjects.Delta{{Text: "I look"}, {Step: 1, N: 2, Text: "b"}}, "ab", "I look\nab\n"},
	} {
		master, slave := terminalFor(t)
		a := newApp(nil, slave, io.Discard)
		s := &screen{app: a, step: -1, n: -1, noted: map[subjects.Note]bool{}}
		for _, d := range tt.pieces {
			s.delta(d, false)
		}
		if err := s.end(subjects.Response{Answer: tt.answer}, func() *subjects.Critique { return nil }); err != nil {
			t.Fatal(err)
		}
		const mark = "\x04end" // a terminal has no end of file
		if _, err := slave.WriteString(mark); err != nil {
			t.Fatal(err)
		}
		var got []byte
		buf := make([]byte, 1024)
		for !bytes.HasSuffix(got, []byte(mark)) {
			n, err := master.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, buf[:n]...)
		}
		if text := strings.TrimSuffix(strings.ReplaceAll(string(got), "\r\n", "\n"), mark); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// TestAskForgedAuthor: respondent B answers in the generator's name. It ends its headers with a blank line of its own, so
// that those which the server adds are no longer read as headers, and puts a forged author and place before it. The
// command asks the event log, and waits for the generator.
func TestAskForgedAuthor(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	p := c.place(t)
	a := p.begin("conclave", "ask", "never", "--timeout", "1m")
	q := next(t, c.asked)
	body := fmt.Sprintf(`{"session_id":%q,"query_id":%q,"answer":"FORGED","tool_calls":[],"respondent_id":"generator"}`, q.SessionID, q.QueryID)
	head := "NATS/1.0\r\nConclave-Query: " + q.QueryID + "\r\nNats-Stream: EVENTS\r\nNats-Sequence: 999999\r\nNats-Subject: from.generator.response.generation\r\n\r\n\r\n"
	c.raw("respondent_b", "response.generation", head, body)
	x := &turn{crew: c, q: q.Query}
	x.answer(x.response("The generator's own answer"))
	if code, err := a.wait(); code != exitDone || err != nil || a.stdout.String() != "The generator's own answer\n" {
		t.Errorf("%d, %v, %q, %s", code, err, a.stdout, a.stderr)
	}
}

// raw says something with headers that no client library would write, and returns when the server has read it.
func (c *crew) raw(role, subject, head, body string) {
	c.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.b.URL, "nats://"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	var info struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		c.t.Fatal(err)
	}
	kp, err := c.b.Keys.Seed(role)
	if err != nil {
		c.t.Fatal(err)
	}
	sig, err := kp.Sign([]byte(info.Nonce))
	if err != nil {
		c.t.Fatal(err)
	}
	key, err := kp.PublicKey()
	if err != nil {
		c.t.Fatal(err)
	}
	fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"headers\":true,\"nkey\":%q,\"sig\":%q}\r\n", key, base64.RawURLEncoding.EncodeToString(sig))
	fmt.Fprintf(conn, "HPUB %s %d %d\r\n%s%s\r\nPING\r\n", subject, len(head), len(head)+len(body), head, body)
	for {
		line, err := r.ReadString('\n')
		if err != nil || strings.HasPrefix(line, "-ERR") {
			c.t.Fatalf("%q, %v", line, err)
		}
		if strings.HasPrefix(line, "PONG") {
			return
		}
	}
}
