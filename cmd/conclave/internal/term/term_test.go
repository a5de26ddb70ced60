package term

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"déjà vu":         "déjà vu",
		"a\x1b[2Jb":       "a\uFFFD[2Jb",
		"a\nb":            "a\uFFFDb",
		"\u202eevil":      "\uFFFDevil", // turns the direction of what follows
		"\u009b31mred":    "\uFFFD31mred",
		"bell\a":          "bell\uFFFD",
		"zero\u200bgap":   "zero\uFFFDgap",
		"pay\u200dpal":    "pay\uFFFDpal",
		"👨\u200d👩\u200d👧": "👨\u200d👩\u200d👧", // a family is one emoji
		"می\u200cخواهم":   "می\u200cخواهم",
	} {
		if got := Plain(in); got != want {
			t.Errorf("%q is shown as %q", in, got)
		}
	}
	if got := PlainText("a\tb\nc\x1b"); got != "a\tb\nc\uFFFD" {
		t.Errorf("text is shown as %q", got)
	}
	if got := OneLine(errors.Join(errors.New("a"), errors.New(" b\x1b")).Error()); got != "a; b\uFFFD" {
		t.Errorf("two errors are shown as %q", got)
	}
}

// A text is sanitized the same way however it is cut into pieces.
func TestPlainStreamKeepsJoinersBetweenPieces(t *testing.T) {
	for _, whole := range []string{
		"a 👨\u200d👩\u200d👧 b", "می\u200cخواهم\n", "pay\u200dpal \x1b[2J", "\u200d👩",
		"❤\ufe0f\u200d🔥.",
	} {
		var p PlainStream
		got := ""
		for _, r := range whole {
			got += p.Next(string(r))
		}
		if want := PlainText(whole); got != want {
			t.Errorf("by runes: %+q, want %+q", got, want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{
		"/a/b-c_d.e": "/a/b-c_d.e", "": "''", "a b": "'a b'", "it's": `'it'\''s'`,
		"$(x)": "'$(x)'",
	} {
		if got := ShellQuote(in); got != want {
			t.Errorf("%q is quoted as %s", in, got)
		}
	}
}

func TestFit(t *testing.T) {
	if got := Fit("abcdef\nx\ny\nz\n", 4, 4); !slices.Equal(got, []string{"abcd", "x", "y"}) {
		t.Errorf("%q", got)
	}
	if got := Fit("abc\n", 0, 0); !slices.Equal(got, []string{"abc"}) {
		t.Errorf("without a size: %q", got)
	}
}

// JSON on stdout controls no terminal and hides nothing, and is the same value. encoding/json escapes only what is
// below U+0020.
func TestJSONHasNoControlCharacters(t *testing.T) {
	t.Parallel()
	hidden := "a\u009b2J\u009d52;c\u202e\u007f\U000e0041\u2800\n<é"
	for _, indent := range []bool{false, true} {
		var out bytes.Buffer
		s := NewStreams(nil, &out, nil)
		if err := s.encodeJSON(map[string]string{"k\u009b": hidden}, indent); err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["k\u009b"] != hidden {
			t.Errorf("%q has the value %q, %v", out.String(), got, err)
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q has %U", out.String(), r)
			}
		}
		lines := 1
		if indent {
			lines = 3
		}
		if !strings.Contains(out.String(), "<é") || strings.Count(out.String(), "\n") != lines {
			t.Errorf("layout %q", out.String())
		}
	}
}

// However the arguments look, what is shown is all of them, is the same value, and steers nothing.
func FuzzVisibleJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":"\u001b[2J"}`, "{\"a\":\"\u202e\u200b\u009b\U000e0041\"}", `{"a":[1,{"b":null}],"c":1e99}`,
		"{\"\u001f\":1}", `["\ud800"]`, "{\"a\":\"\xff\"}", `{"a":"\\u001b"}`, "\x1b[2J", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = raw[:min(len(raw), 4096)]
		got := VisibleJSON(raw, "    ")
		for _, r := range got {
			if !unicode.IsPrint(r) && (r != '\n' || !json.Valid(raw)) {
				t.Fatalf("%q shows %q", raw, r)
			}
		}
		if !json.Valid(raw) {
			return
		}
		var a, b any
		x, y := json.NewDecoder(bytes.NewReader(raw)), json.NewDecoder(strings.NewReader(got))
		x.UseNumber()
		y.UseNumber()
		if x.Decode(&a) != nil || y.Decode(&b) != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("%q is shown as %q", raw, got)
		}
	})
}

func TestBytesHasNoExponent(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1023: "1023 B", 1536: "1.5 KB", 1023 << 20: "1023 MB",
		1 << 30: "1 GB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
