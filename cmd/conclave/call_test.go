package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"conclave/subjects"
)

// Every way in which a call can end has an exit code that a script can go by, and says what to do.
func TestExplainFault(t *testing.T) {
	t.Parallel()
	denial := &subjects.Denial{Layer: "manifest", Rule: "not_in_set", Reason: "not for you", Allowed: []string{"get_datetime"}}
	asked := &subjects.Denial{Layer: "approval", Rule: "denied", Reason: "you said no"}
	for _, tt := range []struct {
		name string
		f    subjects.Fault
		code int
		text string // in what is said
	}{
		{"a layer refuses", subjects.Fault{Code: subjects.CodeDenied, Denial: denial}, exitDenied, "denied by layer manifest, rule not_in_set: not for you: allowed: get_datetime"},
		{"a layer refuses and nothing is allowed", subjects.Fault{Code: subjects.CodeDenied, Denial: &subjects.Denial{Layer: "egress"}}, exitDenied, "allowed: nothing else is"},
		{"the arguments are wrong", subjects.Fault{Code: subjects.CodeDenied, Denial: &subjects.Denial{Layer: "arguments"}}, exitDenied, "change the arguments"},
		{"refused without a reason", subjects.Fault{Code: subjects.CodeDenied, Text: "no"}, exitDenied, "manifest.yaml"},
		{"the user said no", subjects.Fault{Code: subjects.CodeNotApproved, Text: "said no", Denial: asked}, exitDenied, "said no (not_approved): nothing was run"},
		{"nobody answered", subjects.Fault{Code: subjects.CodeUnanswered, Text: "nobody answered", Denial: asked}, exitDenied, "nobody answered (unanswered): conclave approve lists what waits"},
		{"a limit with what it allows", subjects.Fault{Code: subjects.CodeLimit, Denial: &subjects.Denial{Layer: "limits", Rule: "repeated", Allowed: []string{"at most 2 identical calls"}}}, exitDenied, "allowed: at most 2 identical calls"},
		{"a limit", subjects.Fault{Code: subjects.CodeLimit, Denial: &subjects.Denial{Layer: "limits", Rule: "no_limits"}}, exitDenied, "raise the limits in manifest.yaml"},
		{"a limit without a layer", subjects.Fault{Code: subjects.CodeLimit, Text: "enough"}, exitDenied, "raise the limits in manifest.yaml"},
		{"no credential", subjects.Fault{Code: subjects.CodeNoSecret, Text: "there is no credential named x; set it with: conclave secret set x"}, exitFailed, "conclave secret set x (no_secret)"},
		{"perhaps it ran", subjects.Fault{Code: subjects.CodeUncertain, Text: "nobody knows"}, exitFailed, "look whether it has run"},
		{"unknown", subjects.Fault{Code: subjects.CodeUnknownTool, Text: "no such"}, exitAbsent, "conclave actor lists"},
		{"too slow", subjects.Fault{Code: subjects.CodeTimeout, Text: "late"}, exitAbsent, "--timeout"},
		{"the tool failed", subjects.Fault{Code: subjects.CodeTool, Text: "broken"}, exitFailed, "tool: broken (tool_failed)"},
		{"what was sent is malformed", subjects.Fault{Code: subjects.CodeMalformed, Text: "odd"}, exitFailed, "change the arguments"},
		{"no audit", subjects.Fault{Code: subjects.CodeNoAudit, Text: "full"}, exitFailed, "conclave doctor"},
		{"a code of tomorrow", subjects.Fault{Code: "moonstruck", Text: "odd"}, exitFailed, "the log of conclave up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := explain("tool", &tt.f)
			if codeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%d: %v", codeOf(err), err)
			}
		})
	}
}

// The tool's own text is the whole message: nothing that fits every tool is added to it.
func TestExplainToolFault(t *testing.T) {
	t.Parallel()
	if got := explain("web_search", &subjects.Fault{Code: subjects.CodeTool, Text: "no provider answers; try later"}).Error(); got != "web_search: no provider answers; try later (tool_failed)" {
		t.Error(got)
	}
}

// What a person should know of a result is said beside it, and never steers the terminal.
func TestWarnOf(t *testing.T) {
	t.Parallel()
	label := func(trust string, flags ...string) subjects.ToolResult {
		return subjects.ToolResult{Labels: &subjects.Labels{Trust: trust, Privacy: subjects.Public, Flags: flags}}
	}
	parked := label(subjects.Trusted)
	parked.Parked = &subjects.Parked{ID: "0123", Bytes: 4 << 20, Shown: 15 << 10}
	for _, tt := range []struct {
		name string
		res  subjects.ToolResult
		want string
	}{
		{"trusted", label(subjects.Trusted), ""},
		{"no labels", subjects.ToolResult{}, ""},
		{"untrusted", label(subjects.Untrusted), "strangers could have written this\n"},
		{"a label that nobody knows is no trust", label("fine"), "strangers could have written this\n"},
		{"flags", label(subjects.Untrusted, "override", "exfiltration"), "careful: strangers could have written this, and it shows signs of injection: override, exfiltration\n"},
		{"flags in what is trusted", label(subjects.Trusted, "override"), "careful: strangers could have written this, and it shows signs of injection: override\n"},
		{"a flag that steers", label(subjects.Untrusted, "\x1b[2J"), "careful: strangers could have written this, and it shows signs of injection: \\u001b[2J\n"},
		{"redacted only", label(subjects.Trusted, "redacted"), "what looked like a credential was taken out of it\n"},
		{"parked", parked, "15 KB of 4 MB are shown; the whole: conclave --data '' --config '' call --parked 0123\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var talk bytes.Buffer
			newApp(nil, io.Discard, &talk).warnOf(tt.res)
			if talk.String() != tt.want {
				t.Errorf("%q, want %q", talk.String(), tt.want)
			}
		})
	}
}
