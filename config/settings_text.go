package config

import (
	"strings"
	"sync"
)

// describeSettings returns the description of each setting by path: its comment in the shipped file.
var describeSettings = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	for _, name := range Files {
		if name == "manifest.yaml" { // its comments describe groups of rules
			continue
		}
		data, err := shipped.ReadFile(name)
		if err == nil {
			describeFile(strings.TrimSuffix(name, ".yaml"), string(data), out)
		}
	}
	return out
})

// describeFile adds the comments of a shipped file to out. A comment is on the line of its field, with further lines
// that begin further right than a comment above the next field would, or above a group of fields, up to an empty line;
// then it describes all of them.
func describeFile(section, data string, out map[string]string) {
	lines := strings.Split(data, "\n")
	var parents []string // by indentation
	var above []string   // comment above the next field
	group := ""          // comment above a group of fields
	for i := 0; i < len(lines); i++ {
		text := strings.TrimSpace(lines[i])
		indent := len(lines[i]) - len(strings.TrimLeft(lines[i], " "))
		switch {
		case text == "":
			above, group = nil, ""
			continue
		case strings.HasPrefix(text, "#"):
			above = append(above, strings.TrimSpace(strings.TrimLeft(text, "#")))
			continue
		}
		key, rest, ok := strings.Cut(text, ":")
		if !ok || strings.ContainsAny(key, " {[-\"'") {
			continue
		}
		if len(above) > 0 {
			group, above = strings.Join(above, " "), nil
		}
		parents = append(parents[:min(indent/2, len(parents))], key)
		own := ""
		if _, comment, ok := strings.Cut(rest, " #"); ok {
			own = strings.TrimSpace(comment)
			for i+1 < len(lines) && strings.Index(lines[i+1], "#") > indent+2 &&
				strings.HasPrefix(strings.TrimSpace(lines[i+1]), "#") {
				i++
				own += " " + strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(lines[i]), "#"))
			}
		}
		if own == "" {
			own = group
		}
		out[section+"."+strings.Join(parents, ".")] = own
	}
}
