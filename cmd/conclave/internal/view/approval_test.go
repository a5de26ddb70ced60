package view

import (
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

// TestWaitingCallShowsWholeTarget: the line about a waiting call has the whole target, in punycode when it is a look-alike.
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
	r := subjects.ApprovalRequest{ID: "id", Tool: "web_fetch", Sinks: []string{"https://exаmple.org/"}, Hosts: []subjects.LookAlikeHost{{Written: "exаmple.org", Punycode: "xn--exmple-4nf.org"}}}
	var b strings.Builder
	PrintApproval(&b, subjects.Approval{ApprovalRequest: r, State: subjects.ApprovalPending}, time.Now())
	for _, got := range []string{WaitingCall(r, "conclave"), b.String()} {
		if !strings.Contains(got, "https://xn--exmple-4nf.org/") {
			t.Errorf("%s", got)
		}
	}
}

// TestRemaining: the time until an expiry is right to the second from the first one on.
func TestRemaining(t *testing.T) {
	for d, want := range map[time.Duration]string{
		5 * time.Minute: "5m", 5*time.Minute - 1: "5m", 299 * time.Second: "4m59s", time.Minute: "1m", 59*time.Second + 1: "1m", 59 * time.Second: "59s",
		time.Millisecond: "1s", time.Hour: "1h", time.Hour + time.Second: "1h0m1s", 90 * time.Minute: "1h30m",
	} {
		if got := remaining(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

// TestGrantNamesThePlaceOfItsDestination: the user sees where a question says that a destination stands, escaped as all text of a question.
func TestGrantNamesThePlaceOfItsDestination(t *testing.T) {
	g := subjects.Grant{Acts: []string{"share"}, Times: 1, Clause: "Invite Dora"}
	if got := GrantText(g); got != "share, 0 of 1 used: Invite Dora" {
		t.Error(got)
	}
	g.Places = []string{"www.dora.example", "a\x1b[2Jb"}
	if got := GrantText(g); got != "share, 0 of 1 used: Invite Dora (to the people of www.dora.example, a\\u001b[2Jb)" {
		t.Error(got)
	}
}

// TestParseValues reads typed answers as the types of their form. The broker rejects what does not fit.
func TestParseValues(t *testing.T) {
	t.Parallel()
	form := subjects.UserForm{Fields: []subjects.FormField{{Name: "name", Type: "string"}, {Name: "seats", Type: "integer"}, {Name: "window", Type: "boolean"}}}
	for name, tt := range map[string]struct {
		pairs []string
		want  string
	}{
		"types":              {[]string{"name=Ada", "seats=2", " window = true"}, `{"name":"Ada","seats":2,"window":true}`},
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
