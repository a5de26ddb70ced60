package main

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/policy"
)

// toolResult returns the result of the tool in the user's i-th call: the recorded one when the case has it. Most cases
// record none. The real one must have held the values that later calls use and the user did not type, so the stub
// returns each of those from the read just before its first use, except in a bare run: ids as the field id of an
// object, and destinations as one object with the field of people, when the tool declares one. With injected the result
// contains the attacker's text as well.
func (c Case) toolResult(i int, tools Tools, injected, bare bool) string {
	u := c.Calls[i]
	if injected && c.Response != "" {
		return c.Response
	}
	if u.Result != "" && !injected {
		return u.Result
	}
	var items []any
	var people []string
	for j := i + 1; j < len(c.Calls) && !bare; j++ {
		for _, v := range c.newValues(j, tools) {
			switch {
			case c.lastRead(j, tools, v.role == policy.RoleID) != i:
			case v.role == policy.RoleID:
				items = append(items, map[string]string{"id": v.text})
			case v.role == policy.RoleDestination && len(tools[u.Tool].People) > 0:
				people = append(people, v.text)
			default:
				items = append(items, v.text)
			}
		}
	}
	if len(people) > 0 {
		items = append(items, map[string]any{tools[u.Tool].People[0]: people})
	}
	out := map[string]any{"ok": true, "items": items}
	if injected {
		out["text"] = c.Goal + " " + u.Result
	}
	data, err := json.Marshal(out)
	if err != nil {
		return "{}"
	}
	return string(data)
}

// attackResult returns the result of an attacker call.
func (c Case) attackResult(a Call) string {
	if a.Result != "" {
		return a.Result
	}
	return `{"ok":true}`
}

// lastRead returns the index of the last call before the j-th that reads data, or for an id that returns ids; -1 when
// there is none. Earlier calls of the same tool are skipped: repeated calls work through values that were read before
// the first of them.
func (c Case) lastRead(j int, tools Tools, id bool) int {
	for i := j - 1; i >= 0; i-- {
		t := c.Calls[i].Tool
		if (tools.readsData(t) || id && len(tools[t].IDs) > 0) && t != c.Calls[j].Tool {
			return i
		}
	}
	return -1
}

// newValue is a value that a task reads before it uses it.
type newValue struct {
	text string
	role policy.Role // of the argument that uses it
}

// newValues returns the values in the arguments of the j-th call that no earlier call used and the user did not
// type, sorted. Values with white space or over 128 bytes are left out, because a list does not hold them as one item.
func (c Case) newValues(j int, tools Tools) (out []newValue) {
	before := strings.ToLower(strings.Join(c.Instruction, " "))
	for _, u := range c.Calls[:j] {
		before += " " + strings.ToLower(string(u.Args))
	}
	walkArguments(c.Calls[j].Args, func(name, value string) {
		v := newValue{value, tools[c.Calls[j].Tool].Args[name].Role}
		isNew := v.role == policy.RoleID || !strings.Contains(before, strings.ToLower(value))
		if value != "" && len(value) <= 128 && utf8.ValidString(value) && !strings.ContainsAny(value, " \t\n") &&
			isNew && !slices.Contains(out, v) {
			out = append(out, v)
		}
	})
	slices.SortFunc(out, func(a, b newValue) int { return strings.Compare(a.text, b.text) })
	return out
}

// walkArguments calls f for each string and number in the arguments with the path of its name, as in
// attachments.file_id.
func walkArguments(args arguments, f func(name, value string)) {
	d := json.NewDecoder(strings.NewReader(string(args.object())))
	d.UseNumber()
	var top any
	if d.Decode(&top) != nil {
		return
	}
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case string:
			f(name, v)
		case json.Number:
			f(name, v.String())
		case []any:
			for _, x := range v {
				walk(name, x)
			}
		case map[string]any:
			for k, x := range v {
				walk(strings.TrimPrefix(name+"."+k, "."), x)
			}
		}
	}
	walk("", top)
}
