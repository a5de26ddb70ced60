package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
)

// conversation is conclave chat on a terminal whose screen is compared with recorded ones in testdata/chat.
type conversation struct {
	*process
	t      *testing.T
	screen *termtest.Screen
	master *os.File
}

// chat starts conclave chat on a terminal that marks pastes.
func (p *installation) chat(columns, rows int, v ...string) *conversation {
	p.t.Helper()
	return p.startChat(true, columns, rows, v...)
}

// startChat starts conclave chat on a terminal that may confirm that it marks pastes.
func (p *installation) startChat(marksPastes bool, columns, rows int, v ...string) *conversation {
	p.t.Helper()
	master, slave := termtest.OpenSize(p.t, columns, rows)
	c := &conversation{
		t: p.t, screen: termtest.NewScreen(columns, rows), master: master,
		process: &process{
			cmd: exec.Command("conclave", append([]string{"chat"}, v...)...), stdout: newOutput(),
			stderr: newOutput(), done: make(chan struct{}),
		},
	}
	if marksPastes {
		c.screen.Reply = func(sequence string) { c.keys(sequence) }
	}
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = p.env, slave, slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that a resize is a signal
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	slave.Close()
	go func() {
		_, _ = io.Copy(c.screen, master)
		c.reap()
	}()
	p.t.Cleanup(c.kill)
	return c
}

// resize changes the size of the terminal.
func (c *conversation) resize(columns, rows int) {
	c.t.Helper()
	c.screen.Resize(columns, rows)
	if err := unix.IoctlSetWinsize(int(c.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		c.t.Fatal(err)
	}
}

// keys types keys.
func (c *conversation) keys(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// enter types a line and sends it once it is shown.
func (c *conversation) enter(text string) {
	c.t.Helper()
	c.keys(text)
	c.await("the input", func(s string) bool { return strings.Contains(s, text+"▌") })
	c.keys("\r")
}

// await waits for a screen.
func (c *conversation) await(what string, ok func(screen string) bool) {
	c.t.Helper()
	timeout := time.After(3 * waitTimeout)
	for {
		changed := c.screen.Changed()
		if c.screen.Settled() && ok(normalize(c.screen.String())) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			c.t.Fatalf("%s did not come:\n%s\nnot obeyed: %q", what, normalize(c.screen.String()), c.screen.Foreign())
		}
	}
}

// repeat types keys until the screen contains a text, with pauses in which the program can show it.
func (c *conversation) repeat(keys, text string) {
	c.t.Helper()
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if strings.Contains(c.screen.String(), text) {
			return
		}
		c.keys(keys)
	}
	c.shows(text)
}

// shows waits until the screen contains a text.
func (c *conversation) shows(text string) {
	c.t.Helper()
	c.await(fmt.Sprintf("%q", text), func(s string) bool { return strings.Contains(s, text) })
}

// What differs from run to run: the frame and the seconds of the spinner, ids and times.
var (
	spinnerLine = regexp.MustCompile(`(?m)^[|/\\-] (\w[^(\n]*?)( \d+ s)?( \()`)
	sessionID   = regexp.MustCompile(`session [0-9a-f]{8}\b`)
	longID      = regexp.MustCompile(`\b[0-9a-f]{32}\b`)
	askedAgo    = regexp.MustCompile(`asked +.* ago, expires in \S+`)
)

func normalize(screen string) string {
	screen = spinnerLine.ReplaceAllString(screen, "~ $1$3")
	screen = sessionID.ReplaceAllString(screen, "session SESSION")
	screen = askedAgo.ReplaceAllString(screen, "asked AGO")
	return longID.ReplaceAllString(screen, "ID")
}

// looks waits until the screen, with everything that has scrolled away, is the recorded one. UPDATE_SCREENS=1 records
// anew what contains the text until.
func (c *conversation) looks(name, until string) {
	c.t.Helper()
	file := filepath.Join("testdata", "chat", name+".txt")
	if os.Getenv("UPDATE_SCREENS") != "" {
		c.shows(until)
		time.Sleep(time.Second) // recorded by hand, and looked at
		if err := os.WriteFile(file, []byte(normalize(c.screen.String())), 0o644); err != nil {
			c.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		c.t.Fatal(err)
	}
	c.await("the screen of "+file, func(s string) bool { return s == string(want) })
	if f := c.screen.Foreign(); len(f) > 0 {
		c.t.Errorf("the program wrote sequences that a conversation does not need: %q", f)
	}
}

// ends waits for the end.
func (c *conversation) ends(code int) {
	c.t.Helper()
	if got, err := c.wait(); err != nil || got != code {
		c.t.Errorf("it ended with %d, %v:\n%s", got, err, c.screen)
	}
}

// TestChatScreens compares recorded screens of a conversation at three widths: an answer in mid-stream, after a resize,
// and at its end.
func TestChatScreens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.installation(t)
	for _, columns := range []int{60, 80, 140} {
		name := func(moment string) string { return fmt.Sprintf("%s.%d", moment, columns) }
		c := p.chat(columns, 30)
		c.shows("/help")
		c.enter("markdown please")
		c.looks(name("stream"), "Second paragraph")
		narrower := columns - 15
		c.resize(narrower, 30)
		c.looks(name("resized"), "Second paragraph")
		c.resize(columns+10, 30)
		c.looks(name("widened"), "Second paragraph")
		wide := strings.Repeat("x", narrower)
		c.keys(wide) // it has the new size when this is one line
		c.shows("> " + wide + "▌")
		c.keys("\x15")
		c.shows("> ▌")
		f.goOn <- struct{}{}
		c.looks(name("answered"), "test:1b")
		c.keys("\x04")
		c.ends(cli.ExitOK)
	}
}

// TestChatHostileAnswer: an answer full of escape sequences, in every form that Markdown knows, changes nothing on the
// terminal.
func TestChatHostileAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.installation(t).chat(80, 40)
	c.shows("/help")
	c.enter("hostile one")
	c.looks("hostile.80", "test:1b")
	c.keys("\x04")
	c.ends(cli.ExitOK)
}

// TestChatStops: Ctrl-C stops the answer and keeps what is there, and without one it quits. A question that is sent
// meanwhile waits.
func TestChatStops(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.installation(t)
	c := p.chat(80, 30)
	c.shows("/help")
	c.enter("stop here")
	c.shows("as far as")
	c.enter("capital of France")
	c.shows("queued: capital of France")
	c.keys("\x03")
	c.looks("stopped.80", "stopped by the user")
	c.enter("capital of France")
	c.shows("Paris")
	// The history has both, and two lines are one question.
	c.keys("\x1b[A")
	c.shows("> capital of France▌")
	c.keys("\x1b[A")
	c.shows("> stop here▌")
	c.keys("\x03")
	c.shows("> ▌")
	c.keys("echo one\ntwo")
	c.shows("  two▌")
	c.keys("\r")
	c.shows("echo one two") // rendered as one paragraph
	c.keys("\x03")
	c.ends(cli.ExitOK)
	info, err := os.Stat(filepath.Join(p.dir, "state", "conclave", "chat_history"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the history: %v, %v", info, err)
	}
	again := p.chat(80, 30, "--continue")
	again.shows("has no answer yet") // the fixture stores no sessions
	again.keys("\x1b[A")
	again.shows("  two▌")
	again.keys("\x03")
	again.shows("> ▌")
	again.keys("\x04")
	again.ends(cli.ExitOK)
}

// TestChatApproval: a call that waits is shown with its exact arguments, hidden characters escaped. Enter alone denies.
func TestChatApproval(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.installation(t).chat(80, 40)
	c.shows("/help")
	k := newFakeBroker(f)
	for i, ask := range []struct{ typed, state string }{{"", "denied"}, {"yes", "approved"}, {"yesterday", "denied"}} {
		question := "approval " + cmp.Or(ask.typed, "nothing")
		c.enter(question)
		asked := next(t, f.asked)
		q := open(fmt.Sprintf("%032d", i))
		q.SessionID, q.QueryID = asked.SessionID, asked.QueryID
		k.pose(q)
		if c.shows("allow web_fetch? [y/N] ▌"); i == 0 {
			c.looks("approval.80", "[y/N]")
		}
		// Keys that come at once were not meant for the question: they are typed until they show, and Enter until it
		// decides.
		if ask.typed != "" {
			c.repeat("y", "[y/N] y")
			c.keys(strings.Repeat("\x7f", 200))
			c.shows("[y/N] ▌")
			c.keys(ask.typed)
			c.shows("[y/N] " + ask.typed + "▌")
		}
		got := ""
		for got == "" {
			c.keys("\r")
			select {
			case got = <-k.decisions:
			case <-time.After(100 * time.Millisecond):
			}
		}
		if got != q.ID+" "+ask.state {
			t.Errorf("%q decided %s", ask.typed, got)
		}
		f.goOn <- struct{}{}
		c.shows("decided as " + question)
	}
	// A command at the prompt is one, and decides nothing.
	c.enter("approval last")
	asked := next(t, f.asked)
	q := open(strings.Repeat("9", 32))
	q.SessionID, q.QueryID = asked.SessionID, asked.QueryID
	k.pose(q)
	c.shows("allow web_fetch? [y/N] ▌")
	c.repeat("y", "[y/N] y")
	c.keys(strings.Repeat("\x7f", 200) + "/quit")
	c.shows("[y/N] /quit▌")
	c.keys("\r")
	c.ends(cli.ExitOK)
	select {
	case got := <-k.decisions:
		t.Errorf("/quit decided %s", got)
	default:
	}
}

// TestChatApprovesTogether: the calls of one reply are one question, each with its arguments; one that comes after they
// were shown is asked about by itself, whatever was typed before.
func TestChatApprovesTogether(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.installation(t).chat(100, 40)
	c.shows("/help")
	k := newFakeBroker(f)
	c.enter("approval many")
	asked := next(t, f.asked)
	ids := k.poseMany(asked.SessionID, asked.QueryID, 0, 20)
	c.shows("run these 20 calls of web_fetch? [y = all / N = none / numbers such as 1,3-5] ▌")
	c.repeat("7", "1,3-5] 7")
	late := k.poseMany(asked.SessionID, asked.QueryID, 20, 21)
	c.keys(strings.Repeat("\x7f", 200) + "21\r")
	c.shows("nothing was decided: answer with numbers from 1 to 20")
	c.keys("1,3-5\r")
	k.wantDecisions(ids, func(i int) bool { return i == 0 || i >= 2 && i <= 4 })
	c.shows("allow web_fetch? [y/N] ▌")
	c.repeat("y", "[y/N] y")
	c.keys("\r")
	if got := next(t, k.decisions); got != late[0]+" denied" && got != late[0]+" approved" {
		t.Errorf("the late call: %s", got)
	}
	f.goOn <- struct{}{}
	c.shows("decided as approval many")
	c.keys("\x04")
	c.ends(cli.ExitOK)
}

// TestChatSaysWhatLeft: the line below an answer says which calls sent data off this machine.
func TestChatSaysWhatLeft(t *testing.T) {
	t.Parallel()
	c := newFixture(t).installation(t).chat(100, 40)
	c.shows("/help")
	c.enter("egress")
	c.shows("test:1b, 3 tokens, 1.2s, get_datetime left this machine\n")
	c.enter("capital of France")
	c.shows("nothing left this machine\n")
	c.keys("\x04")
	c.ends(cli.ExitOK)
}

// TestChatPasteDoesNotApprove: on a terminal that does not mark pastes, a y of pasted text approves nothing; the word
// of the prompt does.
func TestChatPasteDoesNotApprove(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.installation(t).startChat(false, 80, 40)
	c.shows("/help")
	k := newFakeBroker(f)
	c.enter("approval pasted")
	asked := next(t, f.asked)
	q := open("0123456789abcdef0123456789abcdef")
	q.SessionID, q.QueryID = asked.SessionID, asked.QueryID
	c.keys("hello\ry\r") // during the turn: these are further questions
	c.shows("queued: y")
	k.pose(q)
	c.shows("allow web_fetch? type 0123 to allow, Enter to deny: ▌")
	c.repeat("y\r", "this could be pasted text: to approve, type 0123")
	c.keys("\x1b[?2004;1$yyes\ry\r") // a second attempt, with a report that the terminal has not sent
	c.keys("0")
	c.shows("Enter to deny: 0▌")
	select {
	case got := <-k.decisions:
		t.Fatalf("pasted text decided: %s", got)
	default:
	}
	c.keys("123\r")
	if got := <-k.decisions; got != q.ID+" approved" {
		t.Errorf("the word decided %s", got)
	}
	c.keys("\x03")
	c.shows("stopp")
}

// TestChatCommands: slash commands and their completion.
func TestChatCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := f.models(t.Cleanup); err != nil {
		t.Fatal(err)
	}
	p := f.installation(t)
	file := filepath.Join(p.dir, "letter.txt")
	if err := os.WriteFile(file, []byte("Dear all"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := p.chat(100, 40)
	c.shows("/help")
	c.keys("/mo\t")
	c.shows("/model ▌")
	c.keys("gem")
	c.await("the candidate", func(s string) bool { return strings.Contains(s, "/model gem▌") })
	c.repeat("\t", "/model gemma4:12b▌") // the names come a little later
	c.keys("\r")
	c.shows("the next questions go to gemma4:12b")
	c.enter("/model nowhere")
	c.shows("there is no model nowhere")
	c.enter("/model")
	c.shows("the next questions go to gemma4:12b")
	c.enter("/model assistant")
	c.shows("the next questions go to the assistant's model")
	c.enter("/model gemma4:12b")
	c.shows("the next questions go to gemma4:12b")
	c.enter("/why")
	c.shows("there is no answer in this conversation yet")
	c.enter("/attach " + file)
	c.shows("as UNTRUSTED content: letter.txt")
	c.enter("echo it")
	c.shows("file letter.txt: Dear all")
	c.shows("gemma4:12b, 3 tokens")
	c.enter("/why")
	c.shows("no call")
	c.enter("/nothing")
	c.shows("/nothing is not a command: see /help")
	c.enter("/session new")
	c.shows("the next question begins a new session")
	// A long paste is untrusted content, and the end mark inside of it does not make it the user's words.
	c.keys("\x1b[200~one\rtwo\x1b[201~\recho injected\r\x1b[201~")
	c.shows("as UNTRUSTED content: pasted text")
	c.repeat("x", "> x") // keys right after a paste belong to it
	c.keys("\x15")
	c.shows("> ▌")
	c.enter("echo pasted")
	c.shows("paste: one")
	if strings.Contains(c.screen.String(), "injected") {
		t.Errorf("a paste was sent as a question:\n%s", c.screen)
	}
	c.enter("/quit")
	c.ends(cli.ExitOK)
}

// TestChatStartsSystem: with nothing running, chat starts a system when the user wants one, and then reads the keys.
func TestChatStartsSystem(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	c := p.chat(100, 40)
	c.shows("Start it in the background? [y/N]")
	isStarted := func() bool { return strings.Contains(c.screen.String(), "started as process ") }
	for asked := 1; !isStarted(); asked++ {
		time.Sleep(term.TooFast) // what is typed sooner is no answer: it asks again
		c.keys("y\r")
		c.await("started as process ", func(s string) bool {
			return strings.Contains(s, "started as process ") || strings.Count(s, "this was typed before") == asked
		})
	}
	var pid int
	_, after, _ := strings.Cut(c.screen.String(), "started as process ")
	if _, err := fmt.Sscan(strings.Replace(after, ";", " ", 1), &pid); err != nil {
		t.Fatal(err)
	}
	up, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Signal(os.Interrupt)
		for end := time.Now().Add(waitTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if unlock, err := (bus.Home{Data: p.data}).Lock(); err == nil {
				unlock()
				return
			}
		}
		t.Errorf("process %d did not stop", pid)
	})
	c.shows("/help")
	c.enter("hello")
	c.shows("ungraded: no model judges") // the end: Ctrl-C stops an answer that is still written
	c.keys("\x03")
	c.ends(cli.ExitOK)
}

// TestChatReconnects: the server goes away and comes back ten times under an open chat: the chat says so, keeps what is
// typed, and a question that is asked meanwhile is answered then.
func TestChatReconnects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	link := bustest.StartLink(t, strings.TrimPrefix(f.b.URL, "nats://"))
	c := f.installation(t).chat(80, 30, "--server", "nats://"+link.Addr())
	c.shows("/help")
	const lost = "not connected to conclave: reconnecting"
	connected := func(s string) bool { return !strings.Contains(s, lost) }
	for n := range 10 {
		text := fmt.Sprintf("echo number %d", n)
		c.keys(text)
		c.shows("> " + text + "▌")
		link.Cut()
		c.shows(lost)
		c.shows("> " + text + "▌")
		if n%2 == 0 { // it waits for the connection
			c.keys("\r")
			c.shows("waiting for the connection")
		}
		link.Heal()
		c.await("the connection", connected)
		if n%2 == 1 {
			c.keys("\r")
		}
		c.shows("\n" + text)
		c.await("the end of the answer", func(s string) bool { return strings.Count(s, "test:1b, 3 tokens") == n+1 })
	}
	c.keys("\x04")
	c.ends(cli.ExitOK)
}
