package scriptserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// templater expands quotes of a request in the texts of a reply.
type templater struct{ r Request }

// expand replaces every {{...}} in s. A quote that the request does not have is an error: an empty text would make a
// test pass for the wrong reason.
func (f templater) expand(s string) (string, error) {
	return f.expandEncoded(s, func(value string) (string, error) { return value, nil })
}

// expandEncoded is expand with an encoding for the inserted values. It fails for {{ without }} and as evaluate and
// encode do.
func (f templater) expandEncoded(s string, encode func(string) (string, error)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "{{")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		expr, after, found := strings.Cut(rest, "}}")
		if !found {
			return "", fmt.Errorf("{{ without }} in %q", text.Clip(s, 80))
		}
		value, err := f.evaluate(expr)
		if err == nil {
			value, err = encode(value)
		}
		if err != nil {
			return "", fmt.Errorf("{{%s}}: %w", expr, err)
		}
		b.WriteString(value)
		s = after
	}
}

// evaluate returns the value of an expression: tool_result N (of this turn; -1 is the last), user N (of the whole
// conversation; -1 is the last), last_user and quoted text, then any number of "| line N", counted from 1, and "| match
// REGEXP". A source, line or match that does not exist is an error.
func (f templater) evaluate(expr string) (string, error) {
	steps := strings.Split(expr, "|")
	value, err := f.lookupSource(strings.TrimSpace(steps[0]))
	if err != nil {
		return "", err
	}
	for _, step := range steps[1:] {
		name, arg, _ := strings.Cut(strings.TrimSpace(step), " ")
		arg = strings.TrimSpace(arg)
		switch name {
		case "line":
			n, err := strconv.Atoi(arg)
			lines := strings.Split(value, "\n")
			if err != nil || n < 1 || n > len(lines) {
				return "", fmt.Errorf("no line %s in %q", arg, text.Clip(value, 200))
			}
			value = strings.TrimSpace(lines[n-1])
		case "match":
			re, err := regexp.Compile(arg)
			if err != nil {
				return "", err
			}
			found := re.FindString(value)
			if found == "" {
				return "", fmt.Errorf("%s is not in %q", arg, text.Clip(value, 200))
			}
			value = found
		default:
			return "", fmt.Errorf("invalid filter %q; use line or match", name)
		}
	}
	return value, nil
}

// lookupSource returns the text that an expression starts from: quoted text, last_user, user N or tool_result N. It
// fails for any other source and one that the request does not have.
func (f templater) lookupSource(s string) (string, error) {
	if strings.HasPrefix(s, `"`) {
		return strconv.Unquote(s)
	}
	name, arg, _ := strings.Cut(s, " ")
	switch name {
	case "last_user":
		return elementAt(f.messagesOf(model.User, 0), -1)
	case "tool_result", "user":
		n, err := strconv.Atoi(strings.TrimSpace(arg))
		if err != nil {
			return "", fmt.Errorf("%s needs a number", name)
		}
		if name == "user" {
			return elementAt(f.messagesOf(model.User, 0), n)
		}
		return elementAt(f.messagesOf(model.ToolRole, len(f.r.history())), n)
	}
	return "", fmt.Errorf("invalid source %q; use tool_result N, user N or last_user", s)
}

// messagesOf returns the contents of the messages of a role, from an index on.
func (f templater) messagesOf(role string, from int) []string {
	var all []string
	for _, m := range f.r.Messages[from:] {
		if m.Role == role {
			all = append(all, m.Content)
		}
	}
	return all
}

// elementAt returns the n-th element, from 0; a negative n counts from the end, -1 is the last. It fails when there is
// none.
func elementAt(all []string, n int) (string, error) {
	if n < 0 {
		n += len(all)
	}
	if n < 0 || n >= len(all) {
		return "", fmt.Errorf("the request has %d of them", len(all))
	}
	return all[n], nil
}

// arguments returns a call's arguments as JSON with quotes expanded; {} = it has none. It rejects a call with both
// Arguments and JSON, and JSON that is not valid.
func (f templater) arguments(c Call) (json.RawMessage, error) {
	if c.JSON != "" {
		if len(c.Arguments) > 0 {
			return nil, errors.New("arguments and arguments_json exclude each other")
		}
		return f.rawArguments(c.JSON)
	}
	if c.Arguments == nil {
		return json.RawMessage(`{}`), nil
	}
	filled, err := f.expandValue(c.Arguments)
	if err != nil {
		return nil, err
	}
	return encodeJSON(filled)
}

// encodeJSON encodes v without HTML escapes, as a model writes it.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// rawArguments expands s, JSON whose quotes of the request are inside strings. It fails when the result is not valid
// JSON.
func (f templater) rawArguments(s string) (json.RawMessage, error) {
	expanded, err := f.expandEncoded(s, func(value string) (string, error) {
		quoted, err := encodeJSON(value)
		return string(quoted[1 : len(quoted)-1]), err
	})
	if err != nil {
		return nil, err
	}
	if !json.Valid([]byte(expanded)) {
		return nil, fmt.Errorf("arguments_json is not JSON: %s", text.Clip(expanded, 200))
	}
	return json.RawMessage(expanded), nil
}

// expandValue returns v with every string in it expanded, keys excepted. It does not change v, because an exchange may
// be used again.
func (f templater) expandValue(v any) (any, error) {
	switch v := v.(type) {
	case string:
		return f.expand(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, x := range v {
			filled, err := f.expandValue(x)
			if err != nil {
				return nil, err
			}
			out[key] = filled
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			filled, err := f.expandValue(x)
			if err != nil {
				return nil, err
			}
			out[i] = filled
		}
		return out, nil
	}
	return v, nil
}
