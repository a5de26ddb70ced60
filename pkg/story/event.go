package story

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Event is one message of the bus as a user sees it.
type Event struct {
	Seq     uint64 // in the event log; 0 = not stored there
	Time    time.Time
	Subject string
	From    string // the author's account, on events of the event log
	Session string
	Query   string
	Body    json.RawMessage
}

// idFields are removed from reports, where they are the same on every line.
var idFields = regexp.MustCompile(`"(session|query)_id":"[^"]*",?`)

// String returns the event on one line: sequence, account, subject and the body without ids, cut. "-" stands for an
// unknown sequence or account.
func (e Event) String() string {
	seq, from := "-", "-"
	if e.Seq > 0 {
		seq = strconv.FormatUint(e.Seq, 10)
	}
	if e.From != "" {
		from = e.From
	}
	return fmt.Sprintf("%4s %-10s %-30s %s", seq, from, e.Subject,
		text.Clip(idFields.ReplaceAllString(string(e.Body), ""), 240))
}

// EventPattern matches events: a subject, which may have wildcards, and conditions. It is written as one text:
//
//	tool.result.* error.code=denied by=broker times=1
//
// "field=value" and "field!=value" compare a field of the body, "field~text" searches it case-insensitively, "field=*"
// requires a value. Values with spaces are quoted. A path may go into objects and, by index, into lists: hits.0.name.
// The field "body" is the whole body, "by" the author's account; "times" is the number of such events, "scripted_only"
// skips the expectation with a real model.
type EventPattern struct {
	text         string
	pattern      string
	conditions   []condition
	times        int // -1 = any, but at least one
	scriptedOnly bool
}

type condition struct{ field, op, value string }

// anyValue matches every value but the empty one.
const anyValue = "*"

// UnmarshalText implements [encoding.TextUnmarshaler]: a subject pattern, then conditions such as field=value, times=2
// and scripted_only. It rejects an empty text, an invalid pattern or condition, and times below 1.
func (w *EventPattern) UnmarshalText(text []byte) error {
	words, err := splitWords(string(text))
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return errors.New("a subject is required")
	}
	*w = EventPattern{text: string(text), pattern: words[0], times: -1}
	if err := checkPattern(w.pattern); err != nil {
		return err
	}
	for _, word := range words[1:] {
		if word == "scripted_only" {
			w.scriptedOnly = true
			continue
		}
		c, err := parseCondition(word)
		if err != nil {
			return err
		}
		if c.field != "times" {
			w.conditions = append(w.conditions, c)
			continue
		}
		if w.times, err = strconv.Atoi(c.value); err != nil || w.times < 1 || c.op != "=" {
			return fmt.Errorf("%s: write times=1 or more; use absent for events that must not occur", word)
		}
	}
	return nil
}

// String is the pattern as it was written.
func (w EventPattern) String() string { return w.text }

// splitWords splits a text at spaces outside double quotes, which it removes. It rejects an unterminated quote.
func splitWords(s string) ([]string, error) {
	var words []string
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		end := strings.IndexAny(s, " \"")
		if end >= 0 && s[end] == '"' {
			quoted, err := strconv.QuotedPrefix(s[end:])
			if err != nil {
				return nil, fmt.Errorf("unterminated quote in %q", text.Clip(s, 40))
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, err
			}
			words, s = append(words, s[:end]+text), s[end+len(quoted):]
			continue
		}
		if end < 0 {
			end = len(s)
		}
		words, s = append(words, s[:end]), s[end:]
	}
	return words, nil
}

// parseCondition parses field=value, field!=value or field~text. It rejects an empty field or value.
func parseCondition(word string) (condition, error) {
	i := strings.IndexAny(word, "=~!")
	if i > 0 {
		for _, op := range []string{"!=", "=", "~"} {
			if value, ok := strings.CutPrefix(word[i:], op); ok && value != "" {
				return condition{word[:i], op, value}, nil
			}
		}
	}
	return condition{}, fmt.Errorf("invalid condition %q; write field=value, field!=value, field~text, field=*, "+
		"by=account, times=1 or scripted_only", text.Clip(word, 40))
}

// checkPattern rejects a pattern that the server would reject.
func checkPattern(p string) error {
	words := strings.Split(p, ".")
	for i, w := range words {
		if w == "*" || w == ">" && i == len(words)-1 {
			continue
		}
		if err := subjects.CheckToken(w); err != nil {
			return fmt.Errorf("invalid subject %q: write tokens joined by dots, * for one token, > for the rest",
				text.Clip(p, 40))
		}
	}
	return nil
}

// matches reports whether the subject of e matches and e meets all conditions. The field by is the account, body the
// whole body. A missing field meets only !=; "=*" needs a value that is not empty, and ~ ignores case. times is not
// considered.
func (w EventPattern) matches(e Event) bool {
	if _, ok := subjects.Match(w.pattern, e.Subject); !ok {
		return false
	}
	for _, c := range w.conditions {
		var value string
		var there bool
		switch c.field {
		case "by":
			value, there = e.From, e.From != ""
		case "body":
			value, there = string(e.Body), true
		default:
			value, there = e.Field(c.field)
		}
		var ok bool
		switch c.op {
		case "=":
			ok = there && (value == c.value || c.value == anyValue && value != "")
		case "!=":
			ok = value != c.value
		case "~":
			ok = there && containsFold(value, c.value)
		}
		if !ok {
			return false
		}
	}
	return true
}

// count is the number of events that match.
func (w EventPattern) count(events []Event) (n int) {
	for _, e := range events {
		if w.matches(e) {
			n++
		}
	}
	return n
}

// Field returns a field of the body by its path, such as "error.code" or "tool_calls.0.tool": a string as it is, other
// values as JSON. It reports false when the field is missing or null.
func (e Event) Field(path string) (string, bool) {
	dec := json.NewDecoder(bytes.NewReader(e.Body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return "", false
	}
	for _, key := range strings.Split(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(at) {
				return "", false
			}
			v = at[i]
		default:
			return "", false
		}
	}
	switch v := v.(type) {
	case nil:
		return "", false
	case string:
		return v, true
	}
	text, err := json.Marshal(v)
	return string(text), err == nil
}

// containsFold reports whether s contains part, case-insensitively.
func containsFold(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}
