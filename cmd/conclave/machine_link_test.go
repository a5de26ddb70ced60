package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest/hosts"
	"conclave/pkg/client"
	"conclave/pkg/loop"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// hostInstallation is an installation on a machine of its own.
type hostInstallation struct {
	*installation
	host *hosts.Host
}

// begin starts conclave on the host; it ends with the test.
func (p hostInstallation) begin(v ...string) *process {
	p.t.Helper()
	return p.beginProgram("conclave", v...)
}

// beginProgram starts a built program on the host; it ends with the test.
func (p hostInstallation) beginProgram(name string, v ...string) *process {
	p.t.Helper()
	cmd := p.host.Command(context.WithoutCancel(p.t.Context()), built(p.t, name), v...)
	c := &process{cmd: cmd, stdout: newOutput(), stderr: newOutput(), done: make(chan struct{})}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.env, c.stdout, c.stderr
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go c.reap()
	p.t.Cleanup(c.kill)
	return c
}

func (p hostInstallation) configure(files map[string]string) {
	p.t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.dir, "config", "conclave", name), []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
}

// dial connects a role to the server of a started hub.
func (p hostInstallation) dial(url, role string) *nats.Conn {
	p.t.Helper()
	home := bus.Home{Data: p.data}
	nc, err := home.Connect(url, nil).Dial(role, nats.SetCustomDialer(p.host))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(nc.Close)
	return nc
}

// up starts a hub and returns its URL.
func (p hostInstallation) up() string {
	p.t.Helper()
	up := p.begin("up")
	line, err := up.stdout.wait(`"pid"`)
	if err != nil {
		p.t.Fatalf("%v: %s", err, up.stderr)
	}
	var r readiness
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		p.t.Fatal(err)
	}
	return r.URL
}

// linkModel is the model that only the other machine has.
const linkModel = "big"

// linkHarness is a hub and a machine with the model, each on a host of its own.
type linkHarness struct {
	t        *testing.T
	hub, box hostInstallation
	joined   *process
	user     *client.Client
	url      string
	model    *scriptserver.Server
	answer   string
}

func newLinkHarness(t *testing.T, words int) *linkHarness {
	t.Helper()
	all := hosts.Start(t, "hub", "gpu-box")
	h := &linkHarness{
		t: t, hub: hostInstallation{newInstallation(t), all[0]},
		box: hostInstallation{newInstallation(t), all[1]},
	}
	for i := range words {
		h.answer += fmt.Sprintf("word%d ", i)
	}
	h.answer = strings.TrimSpace(h.answer)
	search := scriptserver.Reply{
		Calls: []scriptserver.Call{{Name: "web_search", Arguments: map[string]any{"query": "red pandas"}}},
	}
	script := scriptserver.Script{linkModel: {
		{Always: true, When: scriptserver.When{
			LastRole: "user", LastContains: searchQuestion,
			ToolsInclude: []string{"web_search"},
		}, Reply: search},
		{
			Always: true, When: scriptserver.When{LastRole: "tool"},
			Reply: scriptserver.Reply{Content: "{{tool_result 0}}"},
		},
		{Always: true, Reply: scriptserver.Reply{
			Content: h.answer,
			Quirks:  scriptserver.Quirks{TokenDelay: 10 * time.Millisecond},
		}},
	}}
	if err := h.box.host.Run(func() error {
		h.model = scriptserver.Start(script)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.model.Close)
	h.hub.configure(map[string]string{
		"system.yaml": fmt.Sprintf("listen: 127.0.0.1:0\ngateway: {listen: 127.0.0.1:0}\nmachines: {listen: "+
			"\"%s:7422\"}\nbroker: {question_rate: 1000}\n", h.hub.host.Addr),
		"models.yaml": "roles: {assistant: " + linkModel + "}\ndemo_model: never\nollama: {url: " +
			"\"http://127.0.0.1:1\"}\n",
		"critic.yaml": "enabled: false\n", "memory.yaml": "enabled: false\n", "web_search.yaml": "provider: none\n",
	})
	h.box.configure(map[string]string{
		"models.yaml": "demo_model: never\nollama: {url: \"" + h.model.URL + "\"}\n",
		"web_search.yaml": "provider: mock\nmock: [{title: Found by gpu-box, url: \"https://a.example/\", snippet: " +
			"It searched.}]\n",
	})
	h.url = h.hub.up()
	invite := h.hub.begin("invite", "gpu-box", "--actors", "model,web_search", "--json")
	var token invitation
	if err := json.Unmarshal([]byte(h.hub.must(invite.stdout, `"token"`)), &token); err != nil {
		t.Fatal(err)
	}
	h.joined = h.box.begin("join", token.Token)
	h.box.must(h.joined.stderr, "connected to ")
	var err error
	if h.user, err = client.New(h.hub.dial(h.url, "user")); err != nil {
		t.Fatal(err)
	}
	h.awaitModel()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("gpu-box: %s", lastBytes(h.joined.stderr.String(), 4000))
		}
	})
	return h
}

// awaitModel waits until the hub knows that the machine has the model.
func (h *linkHarness) awaitModel() {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		list, err := h.user.Models(h.t.Context())
		if err == nil && slices.ContainsFunc(list.Machines, func(m subjects.ModelMachine) bool { return m.Connected }) {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("the hub does not see the machine: %+v, %v", list.Machines, err)
		}
	}
}

// linkQuestion is a question whose answer is followed.
type linkQuestion struct {
	*client.Query
	h     *linkHarness
	text  strings.Builder // the pieces received so far
	notes []subjects.Note
	end   *subjects.Response
}

func (h *linkHarness) ask(session string) *linkQuestion {
	h.t.Helper()
	q, err := h.user.Ask(h.t.Context(), client.Question{Session: session, Text: "Tell me a long story about " +
		session + "."})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(q.Close)
	return &linkQuestion{Query: q, h: h}
}

// until reads updates until is reports true, at most a minute each, and fails the test when the answer ends before,
// unless is accepts that.
func (q *linkQuestion) until(what string, is func() bool) {
	q.h.t.Helper()
	for !is() {
		select {
		case u, open := <-q.Updates():
			switch u := u.(type) {
			case client.Delta:
				if !u.Thinking {
					q.text.WriteString(u.Text)
				}
			case client.Note:
				q.notes = append(q.notes, u.Note)
			case client.Answer:
				q.end = &u.Response
			case client.Failure:
				q.h.t.Fatalf("%s: %v; notes %v", what, u.Fault, q.notes)
			}
			if !open && !is() {
				q.h.t.Fatalf("never: %s; notes %v, end %+v", what, q.notes, q.end)
			}
		case <-time.After(time.Minute):
			q.h.t.Fatalf("never: %s; notes %v", what, q.notes)
		}
	}
}

// told reports whether the user was told, by a note with these words, that the machine cannot be reached, or is back.
func (q *linkQuestion) told(words string) bool {
	return slices.ContainsFunc(q.notes, func(n subjects.Note) bool {
		return n.Code == loop.NoteMachine && strings.Contains(n.Text, words)
	})
}

// linkFaults are what a network does to a link.
var linkFaults = []struct {
	name  string
	begin func(h *hosts.Host)
}{
	{"cut", (*hosts.Host).Cut},
	{"frozen", func(h *hosts.Host) { h.SetLoss(1) }},
	{"reset", (*hosts.Host).Reset},
}

// TestChaosMachineLink runs a hub and a machine with the model and a tool as processes on hosts of their own. The tool
// serves a question. The link is cut, frozen, reset and made lossy in mid-answer and healed: the user is told within
// two seconds, the answer goes on within five seconds of healing (p99), nothing is lost or doubled, and the model is
// asked once. After a machine was killed in mid-answer and restarted, the answer is complete or has an error, and the
// next one is complete. At last an attacker with the keys of the machine reaches nothing else.
func TestChaosMachineLink(t *testing.T) {
	if os.Getenv("CONCLAVE_CHAOS") == "" && os.Getenv("CONCLAVE_MACHINE") == "" {
		t.Skip("needs network namespaces: runs with CONCLAVE_MACHINE=1 in a short form, and with CONCLAVE_CHAOS=1")
	}
	cuts, measures := len(linkFaults), os.Getenv("CONCLAVE_CHAOS") != ""
	if measures {
		cuts = 45
	}
	h := newLinkHarness(t, 300)
	h.callTool()
	random := rand.New(rand.NewPCG(17, 0))
	var told, recovered []time.Duration
	for i := range cuts {
		f := linkFaults[i%len(linkFaults)]
		q := h.ask(fmt.Sprintf("%s-%d", f.name, i))
		q.until("the answer begins", func() bool { return strings.Contains(q.text.String(), "word10 ") })
		began := time.Now()
		f.begin(h.box.host)
		q.until("the user is told", func() bool { return q.told("is interrupted") })
		told = append(told, time.Since(began))
		time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond) // when a link is repaired is chance
		before := q.text.Len()
		began = time.Now()
		h.box.host.Heal()
		q.until("the answer goes on", func() bool { return q.text.Len() > before || q.end != nil })
		recovered = append(recovered, time.Since(began))
		q.until("the answer ends", func() bool { return q.end != nil })
		h.requireComplete(q)
		t.Logf("%s: told after %s, goes on %s after healing", f.name, told[i].Round(time.Millisecond),
			recovered[i].Round(time.Millisecond))
	}
	h.answerOverLoss(max(1, cuts/15))
	slices.Sort(told)
	slices.Sort(recovered)
	at := func(all []time.Duration, p int) time.Duration { return all[(len(all)-1)*p/100].Round(time.Millisecond) }
	t.Logf("%d cuts: user told p50 %s, p99 %s, most %s; answer goes on after healing p50 %s, p99 %s, most %s", cuts,
		at(told, 50), at(told, 99), at(told, 100), at(recovered, 50), at(recovered, 99), at(recovered, 100))
	// the short form runs on busy machines
	if measures && (at(told, 99) > 2*time.Second || at(recovered, 99) > 5*time.Second) {
		t.Error("too slow: the user must be told within 2 s, and an answer go on within 5 s")
	}
	h.killMachine()
	h.attackHub()
}

// requireComplete fails the test unless the answer is the text of the script, neither more nor less, and the model was
// asked once.
func (h *linkHarness) requireComplete(q *linkQuestion) {
	h.t.Helper()
	if q.end.Answer != h.answer || q.end.Partial || q.end.Error != nil {
		h.t.Fatalf("%d bytes, partial %v, %v, not the %d bytes of the script; notes %v", len(q.end.Answer),
			q.end.Partial, q.end.Error, len(h.answer), q.notes)
	}
	if !strings.HasPrefix(h.answer, strings.TrimSpace(q.text.String())) {
		h.t.Fatalf("the pieces are %q", q.text.String())
	}
	asked := 0
	for _, r := range h.model.Requests() {
		if n := len(r.Messages); n > 0 && strings.Contains(r.Messages[n-1].Content, "about "+q.Session+".") {
			asked++
		}
	}
	if asked != 1 {
		h.t.Errorf("the model was asked %d times for one answer", asked)
	}
}

// answerOverLoss asks while a third of the packets is lost in each direction.
func (h *linkHarness) answerOverLoss(n int) {
	h.t.Helper()
	for i := range n {
		q := h.ask(fmt.Sprint("lossy-", i))
		q.until("the answer begins", func() bool { return strings.Contains(q.text.String(), "word10 ") })
		h.box.host.SetLoss(0.3)
		began := time.Now()
		for len(q.notes) == 0 && time.Since(began) < 3*time.Second && q.end == nil {
			at := q.text.Len()
			q.until("something arrives", func() bool { return q.text.Len() > at || len(q.notes) > 0 || q.end != nil })
		}
		h.box.host.Heal()
		q.until("the answer ends", func() bool { return q.end != nil })
		h.requireComplete(q)
	}
}

// killMachine kills the machine in mid-answer and starts it again.
func (h *linkHarness) killMachine() {
	h.t.Helper()
	q := h.ask("killed")
	q.until("the answer begins", func() bool { return strings.Contains(q.text.String(), "word10 ") })
	began := time.Now()
	h.joined.kill()
	q.until("the user is told", func() bool { return q.told("is interrupted") || q.end != nil })
	told := time.Since(began)
	h.joined = h.box.begin("join")
	q.until("the answer ends", func() bool { return q.end != nil })
	if whole := q.end.Answer == h.answer; !whole &&
		(q.end.Error == nil || !strings.HasPrefix(h.answer, strings.TrimSpace(q.end.Answer))) {
		h.t.Errorf("the answer of a killed machine: %q, %v", q.end.Answer, q.end.Error)
	}
	h.t.Logf("machine killed: told after %s, %d of %d bytes answered after %s, error %v, notes %v",
		told.Round(time.Millisecond), len(q.end.Answer), len(h.answer), time.Since(began).Round(time.Millisecond),
		q.end.Error, q.notes)
	h.box.must(h.joined.stderr, "connected to ")
	h.awaitModel()
	q = h.ask("restarted")
	q.until("the answer ends", func() bool { return q.end != nil })
	h.requireComplete(q)
}
