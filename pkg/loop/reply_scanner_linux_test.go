package loop

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"conclave/pkg/jsonschema"
	"conclave/pkg/strict"
)

// A reply that never decides itself costs as much as it is long, not the square of it: eight times the pieces must not
// cost much more than eight times as much. The processor's time is measured, so a busy machine does not matter.
func TestReplyScannerIsLinear(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const few, many = 1 << 10, 1 << 13
	for _, unit := range []string{
		" ", "\n", "{", "[", "`", "<", "</", "\"", "x", "```\n", "``` ", "{\"name\":", "[ ", "<tool_call> ",
		"<tool_call>{", "<function=x",
		"web_search ", "web_search {\"", "<think>", "{\"name\":\"web_search\"}\n", "a\n{\"name\":\"a\"}",
	} {
		short, long := time.Hour, time.Hour
		for range 3 {
			short, long = min(short, scanCost(unit, few)), min(long, scanCost(unit, many))
		}
		if long > 24*max(short, 200*time.Microsecond) {
			t.Errorf("%q: %d pieces cost %s, %d cost %s", unit, few, short, many, long)
		}
		if long == 0 {
			t.Fatal("nothing was measured")
		}
	}
}

// scanCost is the processor's time for reading a unit n times.
func scanCost(unit string, n int) time.Duration {
	s := newReplyScanner(offeredNames, nil)
	before := threadTime()
	for range n {
		s.feed(unit)
		s.shown = s.textEnd
	}
	s.finish(true)
	return threadTime() - before
}

func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// costlyReplies are replies that somebody might have a model write so that reading them is slow: a beginning that puts
// the reader into some state, and a unit that is repeated up to the size.
func costlyReplies(size int) map[string]string {
	const call = `{"name":"get_time","arguments":{}}`
	line := strings.Repeat("word ", size/10) + "\n"
	blank := strings.Repeat(" \n", size/5)
	deep := `<tool_call>{"name":"get_time","arguments":` + strings.Repeat(`{"a":`, 50)
	out := map[string]string{}
	for _, c := range [][2]string{
		{line, call + "<think></think>"}, // the end of one line is asked about again and again
		{line, "\n" + call + "<think>a</think>"},
		{line, call + "\n"},
		{blank, call + "<think></think>"},
		{"example:\n", call + "<think></think>\n"},
		{"", "<think></think>"}, // the other closing tag is nowhere
		{"", "<thinking></thinking>"},
		{"", "<function=get_time></function>"},
		{"", "<invoke name=get_time></invoke>"},
		{"", "<function=get_time><parameter=a>1</parameter></function>\n"},
		{"<tool_call>", `{"name":"get_time","arguments":{}<tool_call>`}, // each is left open
		{"<tool_call>", `{"name":"get_time","arguments":{"a":"`},
		{"<tool_call>", "<tool_call>"},
		{"<tool_call>", "</tool_calls>"},
		{"<tool_call>", "get_time {"},
		{"<function=get_time>", "<parameter=a>"},
		{"<function=get_time>", "<parameter=a>1</parameter>"},
		{"<think>", "</thin"},
		{"", "a</think>"},
		{"", call + "</think>"},
		{"", "<"},
		{"", "</"},
		{"", "<t"},
		{"", "{"},
		{"", "[{"},
		{"", "}\n"},
		{"", `{"name":`},
		{"", "\n{\"name\":\"get_time\",\"x\":1}"},
		{`{"name":"get_time","arguments":{"a":"`, `\"`},
		{`{"name":"get_time","arguments":{"a":[`, "{},"},
		{`get_time {"a":`, "["},
		{"", "get_time\n"},
		{"", "get_time {}\n"},
		{"", "g"},
		{"", "`"},
		{"", "```\n"},
		{"", "```json\n" + call + "\n```\n"},
		{"```json\n", call + ","},
		{"", "'<tool_call>"},
		{"", "\"\n"},
		{"", "\xe4\xb8"},
		{deep, "1,"},
	} {
		begin, again := c[0], c[1]
		n := max(1, (size-len(begin))/len(again))
		out[fmt.Sprintf("%.30q and %.60q", begin, again)] = begin + strings.Repeat(again, n)
	}
	return out
}

// No reply costs more to read than its length: eight times as much of each must not cost much more than eight times as
// much, and together they cost no more than a moment, whether they come in one piece or in many.
func TestCostlyRepliesAreLinear(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	read := func(content string, step int) time.Duration {
		s := newReplyScanner(offeredNames, nil)
		before := threadTime()
		for ; content != ""; content = content[min(step, len(content)):] {
			s.feed(content[:min(step, len(content))])
			s.shown = s.textEnd
		}
		s.finish(false)
		return threadTime() - before
	}
	few, many := 12<<10, 96<<10
	if isRaceBuild() {
		few, many = few/4, many/4
	}
	small, all := costlyReplies(few), time.Duration(0)
	for name, content := range costlyReplies(many) {
		for _, step := range []int{many, 61} {
			long := read(content, step)
			short := read(small[name], step)
			if long > 24*max(short, 2*time.Millisecond) { // one more try: a collector may have come between
				long, short = min(long, read(content, step)), max(short, read(small[name], step))
			}
			all += long
			if long > 24*max(short, 2*time.Millisecond) {
				t.Errorf("%s in pieces of %d: %d bytes cost %s, %d cost %s", name, step, few, short, many, long)
			}
		}
	}
	if most := time.Second; all > most && !isRaceBuild() {
		t.Errorf("%d replies cost %s, want at most %s", 2*len(small), all, most)
	}
	t.Logf("%d replies of %d bytes cost %s", 2*len(small), many, all)
}

// Arguments are looked through once, however the keys stand in them: to look for each key among all before it would be
// to walk over the values before it, at each level again.
func TestCostlyArgumentsAreLinear(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	object := func(size int) string {
		s := `"x"`
		for level := 0; len(s) < size; level++ {
			var b strings.Builder
			b.WriteString(`{"first":` + s)
			for i := range 200 {
				fmt.Fprintf(&b, `,"k%d":%d`, i, level)
			}
			s = b.String() + "}"
		}
		return s
	}
	escaped := func(size int) string {
		var b strings.Builder
		b.WriteString("[{}")
		for b.Len() < size {
			b.WriteString(`,{"\u0061":0`)
			for i := range 200 {
				fmt.Fprintf(&b, `,"\u006b%d":0`, i)
			}
			b.WriteString("}")
		}
		return b.String() + "]"
	}
	anyObject := &jsonschema.Schema{Types: strict.Object}
	const walks, most = 20, 300
	for name, b := range map[string][]byte{"nested": []byte(object(88 << 10)), "escaped": []byte(`{"a":` +
		escaped(88<<10) + "}")} {
		before := threadTime()
		for range walks {
			if !json.Valid(b) {
				t.Fatalf("%s is not valid", name)
			}
		}
		once := (threadTime() - before) / walks
		before = threadTime()
		if _, problem := coerceArguments(anyObject, b); problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
		if took := threadTime() - before; took > most*once {
			t.Errorf("%s: scanning %d bytes cost %s, coercing them %s", name, len(b), once, took)
		} else {
			t.Logf("%s: scanning %d bytes cost %s, coercing them %s", name, len(b), once, took)
		}
	}
	for content, want := range map[string]string{
		`{"a":1,"b":{"c":[{"d":1},{"d":2}]}}`:   "",
		`{"a":1,"b":{"c":[{"d":1,"d":2}]}}`:     `duplicate key "d"`,
		`{"a":1,"\u0061":2}`:                    `duplicate key "a"`,
		`{"a":{"x":1},"b":2,"a":{"x":1}}`:       `duplicate key "a"`,
		`{"a":{"a":{"a":1}},"A":1,"":1,"a ":1}`: "",
	} {
		if _, got := coerceArguments(anyObject, []byte(content)); !strings.HasSuffix(got, want) ||
			(got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", content, got, want)
		}
	}
}

// isRaceBuild reports whether the race detector is in this program: then everything takes many times as long.
func isRaceBuild() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
