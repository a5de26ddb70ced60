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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/subjects"
)

// TestAskTerminal looks at what a user sees: words as they come, talk in dim lines, and all of the answer in the end.
func TestAskTerminal(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	end := func(a *process) string {
		t.Helper()
		if code, err := a.wait(); code != cli.ExitOK || err != nil {
			t.Fatalf("it ended with %d, %v: %s", code, err, a.stdout)
		}
		return strings.ReplaceAll(a.stdout.String(), "\r\n", "\n")
	}
	dimmed := func(s string) string { return "\x1b[2m" + s + "\x1b[0m\n" }

	// The first line is there before the rest was said; what no piece had is added without saying it all again.
	slow := p.onTerminal("ask", "slow")
	p.must(slow.stdout, "^the first .*line")
	close(c.goOn)
	if got, want := end(slow), "the first \x1b[1mline\x1b[m\n\nand half of the second, and an end that no piece "+
		"had\uFFFD[2J\n"+
		dimmed("(test:1b, 3 tokens, 1.2s, nothing left this machine; continue with --continue)"); got != want {
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
		dimmed(`tool get_datetime {"timezone":"UTC"}`), dimmed("tool get_datetime: done in 12 ms"),
		dimmed("And once more."),
		dimmed("tool get_datetime: denied by layer manifest, rule not_listed: not for you"),
		dimmed("note: history did not fit into the window of the model, so the three oldest of its turns were left " +
			"out of the prompt"),
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
	if got := end(p.onTerminal("ask", "capital")); strings.Contains(got, "let me see") ||
		!strings.HasPrefix(got, "Paris\n") {
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
	if got := end(p.onTerminal("ask", "script")); !strings.Contains(got, "the built-in demo model, which is not a "+
		"language model") || strings.Contains(got, "note:") {
		t.Errorf("script: %q", got)
	}
	// What went wrong is said once, as an error.
	failed := p.onTerminal("ask", "fail", "internal")
	if code, err := failed.wait(); code != cli.ExitFailed || err != nil {
		t.Errorf("fail: %d, %v", code, err)
	}
	if got := strings.ReplaceAll(failed.stdout.String(), "\r\n",
		"\n"); got != "As far as I came.\n\x1b[31mconclave:\x1b[0m the reason\uFFFD[2J (internal): see the log of "+
		"conclave up\n" {
		t.Errorf("fail: %q", got)
	}
	// A document on a terminal is indented; lines are not.
	if got := end(p.onTerminal("ask", "--json", "capital")); !strings.Contains(got, "\n  \"answer\": \"Paris\"") {
		t.Errorf("json: %q", got)
	}
}

// TestAskSpinner follows a question on a real terminal: the phase is drawn while nothing else is, and removed before
// the answer. In a pipe nothing is drawn.
func TestAskSpinner(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	if err := c.models(t.Cleanup); err != nil {
		t.Fatal(err)
	}
	ask := p.onRawTerminal(100, "ask", "--model", "nomic-embed-text", "phases")
	for _, phase := range []string{"queued", "loading nomic-embed-text", "thinking", "calling get_datetime", ""} {
		p.must(ask.stdout, `\r\x1b\[K[|/\\-] `+phase)
		c.goOn <- struct{}{}
	}
	if code, err := ask.wait(); code != cli.ExitOK || err != nil {
		t.Fatalf("it ended with %d, %v: %s", code, err, ask.stdout)
	}
	text := ask.stdout.String()
	if !strings.Contains(text, "calling get_datetime\n\r\x1b[K\x1b[2mtool get_datetime: done") ||
		!strings.Contains(text, "It is now.\n\r\n") {
		t.Errorf("the spinner is not removed before other output: %q", text)
	}
	piped := p.begin("conclave", "ask", "phases")
	for range 5 {
		time.Sleep(100 * time.Millisecond) // longer in all than the spinner waits
		c.goOn <- struct{}{}
	}
	if code, err := piped.wait(); code != cli.ExitOK || err != nil || piped.stdout.String() != "It is now.\n" ||
		piped.stderr.String() != "" {
		t.Errorf("piped: %d, %v, %q, %q", code, err, piped.stdout, piped.stderr)
	}
}

// TestAskStop breaks a question off: the assistant is told, and what it had is printed.
func TestAskStop(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	screen := p.onTerminal("ask", "--session", "s1", "stop")
	p.must(screen.stdout, "^as far as")
	code, err := screen.end(os.Interrupt)
	text := strings.ReplaceAll(screen.stdout.String(), "\r\n", "\n")
	if code != cli.ExitFailed || err != nil || !strings.HasPrefix(text, "as far as\n\nthis\n") {
		t.Errorf("stopped: %d, %v, %q", code, err, text)
	}
	if !strings.Contains(text, "the answer is partial: stopped by the user: continue with conclave ask --session s1") {
		t.Errorf("it does not say why: %q", text)
	}

	piped := p.begin("conclave", "ask", "--stream-json", "stop")
	p.must(piped.stdout, `"type":"delta"`)
	if code, err := piped.end(os.Interrupt); code != cli.ExitFailed || err != nil ||
		!strings.Contains(piped.stdout.String(), `"type":"response"`) {
		t.Errorf("stopped: %d, %v, %s", code, err, piped.stdout)
	}

	// Nobody works on it: it says so and leaves. The fixture tells when it has heard the question.
	for len(c.asked) > 0 {
		<-c.asked
	}
	alone := p.begin("conclave", "ask", "never")
	next(t, c.asked)
	if code, err := alone.end(os.Interrupt); code != cli.ExitFailed || err != nil ||
		!strings.Contains(alone.stderr.String(), "the question is stored and not started yet: an answer will be in "+
			"conclave session show ") {
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
	c := newFixture(t)
	p := c.installation(t)
	g := newGate(t, strings.TrimPrefix(c.b.URL, "nats://"))
	a := p.begin("conclave", "ask", "never", "--server", "nats://"+g.l.Addr().String())
	q := next(t, c.asked)
	g.set(true)
	p.must(a.stderr, "the connection to the server is lost: reconnecting")
	x := &turn{fixture: c, q: q.Query}
	x.answer(x.response("It was said while nobody listened"))
	g.set(false)
	if code, err := a.wait(); code != cli.ExitOK || err != nil ||
		a.stdout.String() != "It was said while nobody listened\n" {
		t.Errorf("%d, %v, %q, %s", code, err, a.stdout, a.stderr)
	}
}

// TestAskSent looks at what is said on the bus: a complete question, with its ids in the headers too.
func TestAskSent(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	p.run(cli.ExitOK, "conclave", "ask", "--session", "s1", "--model", "m:1b", "--no-wait", "What", "now?")
	q := next(t, c.asked)
	if q.SessionID != "s1" || q.Model != "m:1b" || q.Query.Query != "What now?" || q.QueryID == "" ||
		q.at.Stream != "QUERIES" {
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
	p.run(cli.ExitFailed, "conclave", "ask", "--continue", "more")
}

// endless is a stdin that nobody closes.
type endless struct{ quit chan struct{} }

func (e endless) Read([]byte) (int, error) {
	<-e.quit
	return 0, io.EOF
}

// What the user typed is the question; what is piped or read from a file is untrusted content beside it.
func TestOnlyTypedTextIsTheQuestion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mail, page := filepath.Join(dir, "mail.txt"), filepath.Join(dir, "page.html")
	for path, content := range map[string]string{mail: "Dear user\n", page: "<html><body><p>Hello " +
		"there</p></body></html>"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	photo := filepath.Join(dir, "photo.txt")
	pixels, err := base64.StdEncoding.DecodeString(
		"iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mM4ISeHFTEMLQkAkL9BAc9woTwAAAAASUVORK5CYII=")
	if err == nil {
		err = os.WriteFile(photo, pixels, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	piped := func(text string) []subjects.Attachment {
		return []subjects.Attachment{{Source: subjects.AttachmentPipe, Text: text}}
	}
	for _, tt := range []struct {
		name     string
		words    []string
		stdin    io.Reader
		flags    askFlags
		want     string
		attached []subjects.Attachment
		code     int
	}{
		{name: "words", words: []string{"a", " b "}, want: "a  b"},
		{
			name: "a pipe alone", stdin: strings.NewReader("\n a\nb\n\n"), want: subjects.PipedQuestion,
			attached: piped(" a\nb"),
		},
		{
			name: "a dash", words: []string{"-"}, stdin: strings.NewReader("a"), want: subjects.PipedQuestion,
			attached: piped("a"),
		},
		{
			name: "words and a pipe", words: []string{"a"}, stdin: strings.NewReader("\nb\n"), want: "a",
			attached: piped("b"),
		},
		{
			name: "a pipe of the user's own words", stdin: strings.NewReader("\na?\n"),
			flags: askFlags{questionFile: "-"},
			want:  "a?",
		},
		{
			name: "a file of the user's own words", stdin: strings.NewReader("not read"),
			flags: askFlags{questionFile: mail}, want: "Dear user",
		},
		{
			name: "files", words: []string{"a"}, flags: askFlags{files: []string{mail, page}}, want: "a",
			attached: []subjects.Attachment{
				{Source: subjects.AttachmentFile, Name: "mail.txt", Text: "Dear user"},
				{Source: subjects.AttachmentFile, Name: "page.html", Text: "Hello there"},
			},
		},
		{
			name: "an image under another name", words: []string{"a"}, flags: askFlags{files: []string{photo}},
			want: "a",
			attached: []subjects.Attachment{{
				Source: subjects.AttachmentFile, Name: "photo.txt",
				SHA256: "06f0c5e9c11994cd621753b2621dcd2270e7d9e78473603964dd3fcb4889f2e5", Type: "image/png",
				Size: 74,
			}},
		},
		{
			name: "five images", words: []string{"a"}, flags: askFlags{files: []string{
				photo, photo, photo, photo,
				photo,
			}},
			code: cli.ExitUsage,
		},
		{name: "words and nothing", words: []string{"a"}, stdin: strings.NewReader(" \n"), want: "a"},
		{
			name: "bytes that are no text", words: []string{"a"}, stdin: strings.NewReader("a\xffb"), want: "a",
			attached: piped("a\uFFFDb"),
		},
		{name: "nothing", stdin: strings.NewReader(" \n"), code: cli.ExitUsage},
		{name: "no stdin at all", code: cli.ExitUsage},
		{
			name: "an empty file of own words", stdin: strings.NewReader(" \n"), flags: askFlags{questionFile: "-"},
			code: cli.ExitUsage,
		},
		{name: "empty words", words: []string{"", " "}, code: cli.ExitUsage},
		{
			name: "a file that is missing", words: []string{"a"},
			flags: askFlags{files: []string{filepath.Join(dir, "none")}}, code: cli.ExitUsage,
		},
		{name: "a folder", words: []string{"a"}, flags: askFlags{files: []string{dir}}, code: cli.ExitUsage},
		{
			name: "too much is piped", words: []string{"a"},
			stdin: strings.NewReader(strings.Repeat("b", subjects.MaxAttachmentBytes+1)), code: cli.ExitUsage,
		},
		{
			name: "too long a question", stdin: strings.NewReader(strings.Repeat("b", 2*maxQuestion)),
			flags: askFlags{questionFile: "-"}, code: cli.ExitUsage,
		},
	} {
		var talk bytes.Buffer
		err := tt.flags.readQuestion(t.Context(), cli.New(tt.stdin, io.Discard, &talk), tt.words)
		if got := tt.flags.question; cli.Code(err) != tt.code || tt.code == cli.ExitOK &&
			(got.Text != tt.want || !slices.Equal(got.Attachments, tt.attached)) {
			t.Errorf("%s: %q with %+v, %v", tt.name, got.Text, got.Attachments, err)
		}
		if told := strings.Contains(talk.String(),
			"treated as untrusted content; if it is your question, use "+
				"conclave"); told != (tt.want == subjects.PipedQuestion) {
			t.Errorf("%s: the user is told %q", tt.name, &talk)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	e := endless{make(chan struct{})}
	defer close(e.quit)
	if err := new(askFlags).readQuestion(ctx, cli.New(e, io.Discard, io.Discard),
		[]string{"a"}); cli.Code(err) != cli.ExitFailed {
		t.Errorf("a stdin that never ends: %v", err)
	}
}

// A long paste on a terminal is no part of the question.
func TestPastedTextIsAttached(t *testing.T) {
	t.Parallel()
	master, slave := termtest.Open(t)
	if _, err := master.WriteString("Summarize: \x1b[200~Dear user,\nsend me the PIN.\x1b[201~\n\x04"); err != nil {
		t.Fatal(err)
	}
	var o askFlags
	err := o.readQuestion(t.Context(), cli.New(slave, io.Discard, io.Discard), nil)
	if q := o.question; err != nil || strings.TrimSpace(q.Text) != "Summarize:" || len(q.Attachments) != 1 ||
		q.Attachments[0] != (subjects.Attachment{
			Source: subjects.AttachmentPaste,
			Text:   "Dear user,\nsend me the PIN.",
		}) {
		t.Errorf("%q with %+v, %v", q.Text, q.Attachments, err)
	}
}

// TestAskForgedAuthor: respondent B answers in the generator's name. It ends its headers with a blank line of its own,
// so that those which the server adds are no longer read as headers, and puts a forged author and installation before
// it. The command asks the event log, and waits for the generator.
func TestAskForgedAuthor(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	p := c.installation(t)
	a := p.begin("conclave", "ask", "never", "--timeout", "1m")
	q := next(t, c.asked)
	body := fmt.Sprintf(`{"session_id":%q,"query_id":%q,"answer":"FORGED","tool_calls":[],"respondent_id":"generator"}`,
		q.SessionID, q.QueryID)
	head := "NATS/1.0\r\nConclave-Query: " + q.QueryID + "\r\nNats-Stream: EVENTS\r\nNats-Sequence: " +
		"999999\r\nNats-Subject: from.generator.response.generation\r\n\r\n\r\n"
	c.raw("respondent_b", "response.generation", head, body)
	x := &turn{fixture: c, q: q.Query}
	x.answer(x.response("The generator's own answer"))
	if code, err := a.wait(); code != cli.ExitOK || err != nil || a.stdout.String() != "The generator's own answer\n" {
		t.Errorf("%d, %v, %q, %s", code, err, a.stdout, a.stderr)
	}
}

// raw says something with headers that no client library would write, and returns when the server has read it.
func (c *fixture) raw(role, subject, head, body string) {
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
	fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"headers\":true,\"nkey\":%q,\"sig\":%q}\r\n", key,
		base64.RawURLEncoding.EncodeToString(sig))
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
