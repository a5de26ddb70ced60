package view

import (
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// TestWaitingCallShowsWholeTarget: the line about a waiting call has the whole target, in punycode when it is a
// look-alike.
func TestWaitingCallShowsWholeTarget(t *testing.T) {
	long := "https://example.org/" + strings.Repeat("a", 300) + ".evil.example/end"
	for _, r := range []subjects.ApprovalRequest{
		{ID: "id", Tool: "web_fetch", Sinks: []string{"https://a.example/", long}},
		{ID: "id", Tool: "web_fetch", Args: []byte(`{"url":"` + long + `"}`)},
	} {
		if got := WaitingCall(r, "conclave"); !strings.Contains(got, long) {
			t.Errorf("%s", got)
		}
	}
	r := subjects.ApprovalRequest{
		ID: "id", Tool: "web_fetch", Sinks: []string{"https://exаmple.org/"},
		Hosts: []subjects.LookAlikeHost{{Written: "exаmple.org", Punycode: "xn--exmple-4nf.org"}},
	}
	var b strings.Builder
	PrintApproval(&b, subjects.Approval{ApprovalRequest: r, State: subjects.ApprovalPending}, time.Now())
	for _, got := range []string{WaitingCall(r, "conclave"), b.String()} {
		if !strings.Contains(got, "https://xn--exmple-4nf.org/") {
			t.Errorf("%s", got)
		}
	}
}

// TestApprovalIndentsArguments: on a terminal no line of an argument begins where a field does, and the line about a
// waiting call has its whole reason.
func TestApprovalIndentsArguments(t *testing.T) {
	reason := "after reading “https://a.example/" + strings.Repeat("a", 150) + "”, it would send mail to “bo@b.example”"
	r := subjects.ApprovalRequest{
		ID: "id", Tool: "mail_send", Reason: reason,
		Args: []byte(`{"body":"` + strings.Repeat(" ", 41) + "reason     the user wants it" + `"}`),
	}
	var b strings.Builder
	a := subjects.Approval{ApprovalRequest: r, State: subjects.ApprovalPending}
	PrintApproval(term.Sized(&b, 60), a, time.Now())
	_, fields, _ := strings.Cut(b.String(), "arguments")
	for line := range strings.Lines(fields) {
		if term.Width(strings.TrimSuffix(line, "\n")) > 60 || strings.HasPrefix(line, "reason") {
			t.Errorf("%q", line)
		}
	}
	if got := WaitingCall(r, "conclave"); !strings.Contains(got, reason) {
		t.Error(got)
	}
}

// TestRemaining: the time until an expiry is right to the second from the first one on.
func TestRemaining(t *testing.T) {
	for d, want := range map[time.Duration]string{
		5 * time.Minute: "5m", 5*time.Minute - 1: "5m", 299 * time.Second: "4m59s", time.Minute: "1m", 59*time.Second +
			1: "1m", 59 * time.Second: "59s",
		time.Millisecond: "1s", time.Hour: "1h", time.Hour + time.Second: "1h0m1s", 90 * time.Minute: "1h30m",
	} {
		if got := formatRemaining(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

// TestParseValues reads typed answers as the types of their form. The broker rejects what does not fit.
func TestParseValues(t *testing.T) {
	t.Parallel()
	form := subjects.UserForm{Fields: []subjects.FormField{
		{Name: "name", Type: "string"},
		{Name: "seats", Type: "integer"},
		{Name: "window", Type: "boolean"},
	}}
	for name, tt := range map[string]struct {
		pairs []string
		want  string
	}{
		"types": {
			[]string{"name=Ada", "seats=2", " window = true"},
			`{"name":"Ada","seats":2,"window":true}`,
		},
		"a text of digits":   {[]string{"name=7"}, `{"name":"7"}`},
		"a text with =":      {[]string{"name=a=b"}, `{"name":"a=b"}`},
		"not a number":       {[]string{"seats=two"}, `{"seats":"two"}`},
		"unknown":            {[]string{"iban=5"}, `{"iban":"5"}`},
		"trick: JSON syntax": {[]string{`seats=2,"name":"x"`}, `{"seats":"2,\"name\":\"x\""}`},
		"nothing":            {[]string{""}, `{}`},
	} {
		if got := string(ParseValues(tt.pairs, form)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestParseAnswer: where pastes are not marked, only a line that begins with the word of the request approves, and a
// yes without it is asked again.
func TestParseAnswer(t *testing.T) {
	t.Parallel()
	r := subjects.ApprovalRequest{ID: "3f9c01d2"}
	form := &subjects.UserForm{Fields: []subjects.FormField{{Name: "name", Type: "string"}}}
	for _, tt := range []struct {
		line     string
		form     *subjects.UserForm
		word     string
		approve  bool
		remember string
		ok       bool
	}{
		{"y", nil, "", true, "", true},
		{"hello", nil, "", false, "", true},
		{"3f9c", nil, Word(r), true, "", true},
		{" 3F9C ", nil, Word(r), true, "", true},
		{"3f9c s", nil, Word(r), true, subjects.RememberSession, true},
		{"3f9c no", nil, Word(r), false, "", true},
		{"", nil, Word(r), false, "", true},
		{"hello", nil, Word(r), false, "", true},
		{"y", nil, Word(r), false, "", false},
		{"always", nil, Word(r), false, "", false},
		{"3f9c01d2", nil, Word(r), false, "", true},
		{"y 3f9c", nil, Word(r), false, "", true},
		{"3f9c name=Ada", form, Word(r), true, "", true},
		{"3f9c always", form, Word(r), true, "", true},
		{"name=Ada", form, Word(r), false, "", false},
		{"name=Ada", form, "", true, "", true},
	} {
		if d, ok := ParseAnswer(tt.line, tt.form, tt.word); d.Approve != tt.approve || d.Remember != tt.remember ||
			ok != tt.ok || (d.Values != nil) != (tt.approve && strings.Contains(tt.line, "=")) {
			t.Errorf("%q, word %q: %+v, %v", tt.line, tt.word, d, ok)
		}
	}
}

// TestParseLater: Enter decides nothing, only a clear no denies, only the word of the prompt approves, and a decision
// is remembered only where the prompt offers it.
func TestParseLater(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		approve, decided bool
		remember         string
		again            bool // the prompt is repeated
	}{
		"": {}, "  ": {}, "no": {decided: true}, " N ": {decided: true}, "deny": {decided: true},
		"0123":   {approve: true, decided: true},
		"0123 s": {approve: true, decided: true, remember: subjects.RememberSession},
		"0123 a": {approve: true, decided: true, remember: subjects.RememberAlways}, "y": {again: true},
		"a": {again: true}, "maybe": {again: true}, "0123 no": {again: true},
	} {
		d, decided, complaint := ParseLater(line, "0123", true)
		if decided != want.decided || decided && (d.Approve != want.approve || d.Remember != want.remember) ||
			(complaint != "") != want.again {
			t.Errorf("%q: %+v, %t, %q", line, d, decided, complaint)
		}
		if d, decided, complaint := ParseLater(line, "0123", false); want.remember != "" &&
			(decided || d.Approve || complaint == "") {
			t.Errorf("%q, which the prompt does not offer: %+v, %t, %q", line, d, decided, complaint)
		}
	}
}
