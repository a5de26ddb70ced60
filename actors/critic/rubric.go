package critic

import (
	_ "embed"
	"slices"
	"strings"

	"conclave/subjects"
)

// The rubrics as shipped, which people review as text.
var (
	//go:embed rubric_plain.md
	rubricPlain string
	//go:embed rubric_search.md
	rubricSearch string
	//go:embed rubric_memory.md
	rubricMemory string
	//go:embed rubric_task.md
	rubricTask string
)

var (
	rubricNames = []string{subjects.RubricPlain, subjects.RubricSearch, subjects.RubricMemory, subjects.RubricTask}
	shipped     = map[string]string{
		subjects.RubricPlain: rubricPlain, subjects.RubricSearch: rubricSearch, subjects.RubricMemory: rubricMemory, subjects.RubricTask: rubricTask,
	}
)

// choices say which rubric fits what a turn did. The first that fits is taken; none means plain.
var choices = []struct {
	rubric   string
	from     string   // whoever this account is
	tools    []string // one of these ran
	recalled bool     // memories went into the answer
}{
	{rubric: subjects.RubricTask, from: "orchestrator"},
	{rubric: subjects.RubricTask, tools: []string{"fs_write", "run_code", "run_shell", "package_install"}}, // their effects last
	{rubric: subjects.RubricSearch, tools: []string{"web_search", "web_fetch"}},
	{rubric: subjects.RubricMemory, tools: []string{"search_memory", "search_knowledge_graph"}},
	{rubric: subjects.RubricMemory, recalled: true},
}

// rubricFor is what an answer is judged by. Calls that failed or were refused count for nothing.
func rubricFor(from string, r subjects.Response) string {
	ran := ranTools(r.ToolCalls)
	for _, c := range choices {
		if c.from != "" && c.from == from || c.recalled && len(r.Recalls) > 0 ||
			slices.ContainsFunc(c.tools, func(tool string) bool { return slices.Contains(ran, tool) }) {
			return c.rubric
		}
	}
	return subjects.RubricPlain
}

// ranTools are the tools whose calls ran without an error.
func ranTools(calls []subjects.ToolCall) (out []string) {
	for _, c := range calls {
		if c.Error == nil && !slices.Contains(out, c.Tool) {
			out = append(out, c.Tool)
		}
	}
	return out
}

// rubric is the text of a rubric: the user's own, or as shipped.
func (c *Critic) rubric(name string) string {
	if own := c.cfg.Rubrics[name]; own != "" {
		return strings.TrimSpace(own)
	}
	return strings.TrimSpace(shipped[name])
}

// criterion is what a rubric looks for: its first line, without the brackets.
func criterion(rubric string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(rubric), "\n")
	return strings.Trim(strings.TrimSpace(line), "[] ")
}
