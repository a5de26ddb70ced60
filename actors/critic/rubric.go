package critic

import (
	_ "embed"
	"slices"
	"strings"

	"conclave/subjects"
)

// The shipped rubrics.
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
	rubricNames    = []string{subjects.RubricPlain, subjects.RubricSearch, subjects.RubricMemory, subjects.RubricTask}
	defaultRubrics = map[string]string{
		subjects.RubricPlain: rubricPlain, subjects.RubricSearch: rubricSearch, subjects.RubricMemory: rubricMemory,
		subjects.RubricTask: rubricTask,
	}
)

// rubricChoices select the rubric of an answer: the first that matches, else plain.
var rubricChoices = []struct {
	rubric   string
	from     string   // the account
	tools    []string // one of these ran
	recalled bool     // the answer used memories
}{
	{rubric: subjects.RubricTask, from: "orchestrator"},
	// their effects last
	{rubric: subjects.RubricTask, tools: []string{"fs_write", "run_code", "run_shell", "package_install"}},
	{rubric: subjects.RubricSearch, tools: []string{"web_search", "web_fetch"}},
	{rubric: subjects.RubricMemory, tools: []string{"search_memory", "search_knowledge_graph"}},
	{rubric: subjects.RubricMemory, recalled: true},
}

// selectRubric returns the name of the rubric for an answer: the persona's own, the first choice that fits its author,
// its recalls or its successful calls, else the plain one.
func selectRubric(a answer) string {
	if a.rubric != "" {
		return subjects.RubricPersona
	}
	from, r := a.from, a.Response
	ran := successfulTools(r.ToolCalls)
	for _, c := range rubricChoices {
		if c.from != "" && c.from == from || c.recalled && len(r.Recalls) > 0 ||
			slices.ContainsFunc(c.tools, func(tool string) bool { return slices.Contains(ran, tool) }) {
			return c.rubric
		}
	}
	return subjects.RubricPlain
}

// successfulTools returns the tools that ran without an error, each once, but for the recall before the first model
// call: its entries are the recalls of the answer.
func successfulTools(calls []subjects.ToolCall) (out []string) {
	for _, c := range calls {
		if c.Error == nil && c.Layer != subjects.LayerRecall && !slices.Contains(out, c.Tool) {
			out = append(out, c.Tool)
		}
	}
	return out
}

// rubricText returns the configured text of a rubric, or the shipped one.
func (c *Critic) rubricText(name string) string {
	if own := c.cfg.Rubrics[name]; own != "" {
		return strings.TrimSpace(own)
	}
	return strings.TrimSpace(defaultRubrics[name])
}

// criterion returns the first line of a rubric, without brackets.
func criterion(rubric string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(rubric), "\n")
	return strings.Trim(strings.TrimSpace(line), "[] ")
}
