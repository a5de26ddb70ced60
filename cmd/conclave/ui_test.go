package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

func TestRun(t *testing.T) {
	var out, talk bytes.Buffer
	if code := run([]string{"version", "--json"}, nil, &out, &talk); code != exitDone || !json.Valid(out.Bytes()) || talk.Len() > 0 {
		t.Errorf("%d, %s, %s", code, &out, &talk)
	}
	if code := run([]string{"nothing"}, nil, &out, &talk); code != exitUsage || strings.Count(talk.String(), "\n") != 1 {
		t.Errorf("%d, %s", code, &talk)
	}
	// A reader that has gone is no failure; a disk that is full is.
	if code := run([]string{"version"}, nil, broken{syscall.EPIPE}, &talk); code != exitDone {
		t.Errorf("a broken pipe ends with %d", code)
	}
	if code := run([]string{"version"}, nil, broken{syscall.ENOSPC}, &talk); code != exitFailed {
		t.Errorf("a full disk ends with %d", code)
	}
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"déjà vu":       "déjà vu",
		"a\x1b[2Jb":     "a\uFFFD[2Jb",
		"a\nb":          "a\uFFFDb",
		"\u202eevil":    "\uFFFDevil", // turns the direction of what follows
		"\u009b31mred":  "\uFFFD31mred",
		"bell\a":        "bell\uFFFD",
		"zero\u200bgap": "zero\uFFFDgap",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q is shown as %q", in, got)
		}
	}
	if got := plainText("a\tb\nc\x1b"); got != "a\tb\nc\uFFFD" {
		t.Errorf("text is shown as %q", got)
	}
	if got := oneLine(errors.Join(errors.New("a"), errors.New(" b\x1b")).Error()); got != "a; b\uFFFD" {
		t.Errorf("two errors are shown as %q", got)
	}
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"timeot", "timeout", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("from %q to %q it is %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	if got := nearest("brokr", []string{"tools", "broker"}); got != ", did you mean broker?" {
		t.Errorf("%q", got)
	}
	if got := nearest("elephant", []string{"tools", "broker"}); got != "" {
		t.Errorf("%q", got)
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"/a/b-c_d.e": "/a/b-c_d.e", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'"} {
		if got := shellQuote(in); got != want {
			t.Errorf("%q is quoted as %s", in, got)
		}
	}
}

func TestExplain(t *testing.T) {
	denial := &subjects.Denial{Layer: "manifest", Rule: "r", Reason: "no", Allowed: []string{"x", "y"}}
	for _, tt := range []struct {
		fault *subjects.Fault
		code  int
		text  string
	}{
		{&subjects.Fault{Code: subjects.CodeDenied, Denial: denial}, exitDenied, "t was denied by layer manifest, rule r: no: allowed: x, y"},
		{&subjects.Fault{Code: subjects.CodeDenied, Text: "no"}, exitDenied, "no (denied)"},
		{&subjects.Fault{Code: subjects.CodeUnavailable}, exitAbsent, "conclave doctor"},
		{&subjects.Fault{Code: subjects.CodeTimeout}, exitAbsent, "--timeout"},
		{&subjects.Fault{Code: subjects.CodeUnknownTool}, exitAbsent, "conclave actor"},
		{&subjects.Fault{Code: subjects.CodeTool, Text: "broken"}, exitFailed, "t: broken (tool_failed)"},
		{&subjects.Fault{Code: subjects.CodeNoAudit}, exitFailed, "conclave doctor"},
		{&subjects.Fault{Code: subjects.CodeInternal}, exitFailed, "log"},
		{&subjects.Fault{Code: "something new"}, exitFailed, "log"},
	} {
		err := explain("t", tt.fault)
		if codeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %d, %v", tt.fault.Code, codeOf(err), err)
		}
	}
}

func TestFit(t *testing.T) {
	if got := fit("abcdef\nx\ny\nz\n", 4, 4); !slices.Equal(got, []string{"abcd", "x", "y"}) {
		t.Errorf("%q", got)
	}
	if got := fit("abc\n", 0, 0); !slices.Equal(got, []string{"abc"}) {
		t.Errorf("without a size: %q", got)
	}
}

func TestHeard(t *testing.T) {
	live := nats.Header{"Nats-Stream": {"forged", "EVENTS"}, "Nats-Sequence": {"1", "7"}, "Nats-Subject": {"from.broker.tool.result.x", "from.generator.response.generation"}}
	for _, tt := range []struct {
		name    string
		msg     nats.Msg
		shown   bool
		from    string
		body    string
		session string
	}{
		{"live copy, the server's headers last", nats.Msg{Subject: "response.generation", Header: live, Data: []byte(`{"session_id": "s"}`)}, true, "generator", `{"session_id":"s"}`, "s"},
		{"one's own original", nats.Msg{Subject: "query.received", Data: []byte("hi")}, false, "", "", ""},
		{"live token", nats.Msg{Subject: "response.delta.q", Data: []byte(`{"n":1}`), Header: live}, true, "", `{"n":1}`, ""},
		{"an inbox", nats.Msg{Subject: "_INBOX.x.y", Data: []byte("x")}, false, "", "", ""},
		{"discovery", nats.Msg{Subject: "$SRV.PING"}, false, "", "", ""},
		{"the API", nats.Msg{Subject: "core.API.STREAM.INFO.EVENTS"}, false, "", "", ""},
		{"msgpack", nats.Msg{Subject: "tool.output.x", Data: []byte("\x81\xa1n\x01"), Header: nats.Header{"Content-Type": {"application/msgpack"}}}, true, "", `{"n":1}`, ""},
		{"nonsense", nats.Msg{Subject: "tool.output.x", Data: []byte("{\xff")}, true, "", `"{` + "\uFFFD" + `"`, ""},
		{"empty", nats.Msg{Subject: "tool.output.x"}, true, "", "null", ""},
	} {
		s, ok := heard(&tt.msg)
		if ok != tt.shown || s.From != tt.from || string(s.Body) != tt.body || s.Session != tt.session {
			t.Errorf("%s: %v %+v %s", tt.name, ok, s, s.Body)
		}
	}
	if s, _ := heard(&nats.Msg{Subject: "response.generation", Header: live}); s.Seq != 7 || s.Stream != events {
		t.Errorf("%+v", s)
	}
}
