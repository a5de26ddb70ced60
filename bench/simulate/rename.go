package main

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"

	"conclave/pkg/policy"
)

// rename returns cases and tools in which names are made up: those of tools, of arguments, or both. A name is replaced
// by the same one everywhere, in the declarations too, so that only rules that depend on names decide differently.
func rename(cases []Case, effects, tools Tools, o Options) ([]Case, Tools, Tools) {
	toolName, argName := keepName, keepName
	if o.RenameTools {
		toolName = makeName
	}
	if o.RenameArgs {
		argName = makeName
	}
	calls := func(in []Call) []Call {
		out := slices.Clone(in)
		for i, u := range out {
			out[i].Tool, out[i].Args = toolName(u.Tool), renameArguments(u.Args, argName)
		}
		return out
	}
	renamed := slices.Clone(cases)
	for i, c := range renamed {
		renamed[i].Calls, renamed[i].Attack = calls(c.Calls), calls(c.Attack)
	}
	table := func(in Tools) Tools {
		out := Tools{}
		for name, t := range in {
			t.Name = toolName(name)
			args := policy.Args{}
			for path, a := range t.Args {
				args[renamePath(path, argName)] = a
			}
			t.Args = args
			out[t.Name] = t
		}
		return out
	}
	return renamed, table(effects), table(tools)
}

func keepName(s string) string { return s }

// makeName returns a made-up word for a name, the same for equal names.
func makeName(s string) string {
	const consonants, vowels = "bdfgklmnprstvz", "aeiou"
	sum := sha256.Sum256([]byte(s))
	var b strings.Builder
	for i := range 5 {
		b.WriteByte(consonants[int(sum[2*i])%len(consonants)])
		b.WriteByte(vowels[int(sum[2*i+1])%len(vowels)])
	}
	return b.String()
}

// renamePath renames each part of a path of argument names.
func renamePath(path string, name func(string) string) string {
	parts := strings.Split(path, ".")
	for i, p := range parts {
		parts[i] = name(p)
	}
	return strings.Join(parts, ".")
}

// renameArguments renames the keys of arguments, also inside of objects.
func renameArguments(args arguments, name func(string) string) arguments {
	var v any
	if json.Unmarshal(args.object(), &v) != nil {
		return args
	}
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case []any:
			for i, x := range v {
				v[i] = walk(x)
			}
		case map[string]any:
			out := map[string]any{}
			for k, x := range v {
				out[name(k)] = walk(x)
			}
			return out
		}
		return v
	}
	data, err := json.Marshal(walk(v))
	if err != nil {
		return args
	}
	return data
}
