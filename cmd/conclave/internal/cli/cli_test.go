package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/subjects"
)

func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"timeot", "timeout", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("from %q to %q it is %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	if got := Nearest("brokr", []string{"tools", "broker"}); got != ", did you mean broker?" {
		t.Errorf("%q", got)
	}
	if got := Nearest("elephant", []string{"tools", "broker"}); got != "" {
		t.Errorf("%q", got)
	}
}

func TestToolFault(t *testing.T) {
	denial := &subjects.Denial{Layer: "manifest", Rule: "r", Reason: "no", Allowed: []string{"x", "y"}}
	for _, tt := range []struct {
		fault *subjects.Fault
		code  int
		text  string
	}{
		{&subjects.Fault{Code: subjects.CodeDenied, Denial: denial}, ExitDenied, "t was denied by layer manifest, " +
			"rule r: no: allowed: x, y"},
		{&subjects.Fault{Code: subjects.CodeDenied, Text: "no"}, ExitDenied, "no (denied)"},
		{&subjects.Fault{Code: subjects.CodeUnavailable}, ExitAbsent, "conclave doctor"},
		{&subjects.Fault{Code: subjects.CodeTimeout}, ExitAbsent, "--timeout"},
		{&subjects.Fault{Code: subjects.CodeUnknownTool}, ExitAbsent, "conclave actor"},
		{&subjects.Fault{Code: subjects.CodeTool, Text: "broken"}, ExitFailed, "t: broken (tool_failed)"},
		{&subjects.Fault{Code: subjects.CodeNoAudit}, ExitFailed, "conclave doctor"},
		{&subjects.Fault{Code: subjects.CodeInternal}, ExitFailed, "log"},
		{&subjects.Fault{Code: "something new"}, ExitFailed, "log"},
	} {
		err := ToolFault("t", tt.fault)
		if Code(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %d, %v", tt.fault.Code, Code(err), err)
		}
	}
}

// Every way in which a call can end has an exit code that a script can go by, and says what to do.
func TestToolFaultExitCodes(t *testing.T) {
	t.Parallel()
	denial := &subjects.Denial{
		Layer: "manifest", Rule: "not_in_set", Reason: "not for you",
		Allowed: []string{"get_datetime"},
	}
	asked := &subjects.Denial{Layer: "approval", Rule: "denied", Reason: "you said no"}
	for _, tt := range []struct {
		name string
		f    subjects.Fault
		code int
		text string // in what is said
	}{
		{
			"a layer refuses",
			subjects.Fault{Code: subjects.CodeDenied, Denial: denial},
			ExitDenied,
			"denied by layer manifest, rule not_in_set: not for you: allowed: get_datetime",
		},
		{
			"a layer refuses and nothing is allowed",
			subjects.Fault{Code: subjects.CodeDenied, Denial: &subjects.Denial{Layer: "egress"}},
			ExitDenied,
			"the rules are in manifest.yaml",
		},
		{
			"the arguments are wrong",
			subjects.Fault{Code: subjects.CodeDenied, Denial: &subjects.Denial{Layer: "arguments"}},
			ExitDenied,
			"change the arguments",
		},
		{
			"refused without a reason",
			subjects.Fault{Code: subjects.CodeDenied, Text: "no"},
			ExitDenied,
			"manifest.yaml",
		},
		{
			"the user said no",
			subjects.Fault{Code: subjects.CodeNotApproved, Text: "said no", Denial: asked},
			ExitDenied,
			"said no (not_approved): nothing was run",
		},
		{
			"nobody answered",
			subjects.Fault{Code: subjects.CodeUnanswered, Text: "nobody answered", Denial: asked},
			ExitDenied, "nobody answered (unanswered): nothing was run; conclave approve lists waiting calls",
		},
		{
			"a limit with what it allows",
			subjects.Fault{Code: subjects.CodeLimit, Denial: &subjects.Denial{
				Layer: "limits", Rule: "repeated",
				Allowed: []string{"at most 2 identical calls"},
			}},
			ExitDenied, "allowed: at most 2 identical calls",
		},
		{
			"a limit",
			subjects.Fault{Code: subjects.CodeLimit, Denial: &subjects.Denial{Layer: "limits", Rule: "no_limits"}},
			ExitDenied, "raise the limits in manifest.yaml",
		},
		{
			"a limit without a layer",
			subjects.Fault{Code: subjects.CodeLimit, Text: "enough"},
			ExitDenied,
			"raise the limits in manifest.yaml",
		},
		{"no credential", subjects.Fault{Code: subjects.CodeNoSecret, Text: "there is no credential named x; set it " +
			"with: conclave secret set x"}, ExitFailed, "conclave secret set x (no_secret)"},
		{
			"perhaps it ran",
			subjects.Fault{Code: subjects.CodeUncertain, Text: "nobody knows"},
			ExitFailed,
			"check whether it has run",
		},
		{
			"unknown",
			subjects.Fault{Code: subjects.CodeUnknownTool, Text: "no such"},
			ExitAbsent,
			"conclave tool list shows the tools that you added",
		},
		{"too slow", subjects.Fault{Code: subjects.CodeTimeout, Text: "late"}, ExitAbsent, "--timeout"},
		{
			"the tool failed",
			subjects.Fault{Code: subjects.CodeTool, Text: "broken"},
			ExitFailed,
			"tool: broken (tool_failed)",
		},
		{
			"what was sent is malformed",
			subjects.Fault{Code: subjects.CodeMalformed, Text: "odd"},
			ExitFailed,
			"change the arguments",
		},
		{"no audit", subjects.Fault{Code: subjects.CodeNoAudit, Text: "full"}, ExitFailed, "conclave doctor"},
		{"a code of tomorrow", subjects.Fault{Code: "moonstruck", Text: "odd"}, ExitFailed, "the log of conclave up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := ToolFault("tool", &tt.f)
			if Code(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%d: %v", Code(err), err)
			}
		})
	}
}

// The tool's own text is the whole message: nothing that fits every tool is added to it.
func TestToolFaultKeepsTextOfTool(t *testing.T) {
	t.Parallel()
	if got := ToolFault("web_search", &subjects.Fault{Code: subjects.CodeTool, Text: "no provider answers; try later"}).
		Error(); got != "web_search: no provider answers; try later (tool_failed)" {
		t.Error(got)
	}
}

func TestAnswerFault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code string
		exit int
		fix  string
	}{
		{subjects.CodeModelUnreachable, ExitAbsent, "start the model server"},
		{subjects.CodeModelMissing, ExitAbsent, "conclave model pull"},
		{subjects.CodeModelRemote, ExitDenied, "by name"},
		{subjects.CodeModelTooLong, ExitFailed, "new session"},
		{subjects.CodeModelKey, ExitFailed, "key"},
		{subjects.CodeModelCut, ExitFailed, "--model"},
		{subjects.CodeModelRunner, ExitFailed, "log"},
		{subjects.CodeUnavailable, ExitAbsent, "doctor"},
		{subjects.CodeTimeout, ExitAbsent, "try again"},
		{subjects.CodeStopped, ExitFailed, "ask again"},
		{subjects.CodeDenied, ExitDenied, "manifest.yaml"},
		{subjects.CodeUnsupported, ExitFailed, "model list"},
		{subjects.CodeInternal, ExitFailed, "log"},
		{"something new", ExitFailed, "log"},
	} {
		err := AnswerFault(subjects.Faultf(tt.code, "why"))
		if Code(err) != tt.exit || !strings.Contains(err.Error(), "why ("+tt.code+")") ||
			!strings.Contains(err.Error(), tt.fix) {
			t.Errorf("%s: %d, %v", tt.code, Code(err), err)
		}
	}
}

// A file that exists, a path that cannot be looked up and a folder that cannot be written to are told apart.
func TestWriteNewFileSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	content := func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }
	meanwhile := filepath.Join(dir, "meanwhile")
	for _, tt := range []struct {
		name, file string
		write      func(io.Writer) error
		want       string // part of the error, "" = written
	}{
		{"new", filepath.Join(dir, "new"), content, ""},
		{"exists", there, content, "there exists already"},
		{"below a file", filepath.Join(there, "x"), content, "not a directory"},
		{"a name that is too long", filepath.Join(dir, strings.Repeat("x", 300)), content, "file name too long"},
		{"no folder", filepath.Join(dir, "none", "x"), content, "no such file or directory"},
		{"created meanwhile", meanwhile, func(io.Writer) error {
			return os.WriteFile(meanwhile, []byte("other"), 0o600)
		}, "meanwhile exists already"},
	} {
		err := WriteNewFile(tt.file, tt.write)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) ||
			Code(err) != ExitFailed) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	for file, want := range map[string]string{there: "old", meanwhile: "other", filepath.Join(dir, "new"): "new"} {
		if data, err := os.ReadFile(file); err != nil || string(data) != want {
			t.Errorf("%s holds %q, %v", file, data, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}
