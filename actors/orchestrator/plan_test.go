package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"conclave/subjects"
)

// subtaskJSON is a valid subtask with an id and dependencies.
func subtaskJSON(id string, depends ...string) string {
	return fmt.Sprintf(
		`{"id":%q,"title":"T","instructions":"Do it.","agent":"assistant","depends_on":[%s],"hint":"simple"}`, id,
		quoteAll(depends))
}

func quoteAll(all []string) string {
	var out []string
	for _, s := range all {
		out = append(out, fmt.Sprintf("%q", s))
	}
	return strings.Join(out, ",")
}

func planJSON(subtasks ...string) string { return `{"subtasks":[` + strings.Join(subtasks, ",") + `]}` }

// No bound of a schema is larger than what the grammar of a model server can hold.
func TestSchemasHaveSmallBounds(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]json.RawMessage{"plan": planSchema, "return": returnSchema} {
		for _, m := range regexp.MustCompile(`"max(?:Length|Items)":(\d+)`).FindAllSubmatch(schema, -1) {
			if n, err := strconv.Atoi(string(m[1])); err != nil || n > 1900 {
				t.Errorf("%s has the bound %s", name, m[1])
			}
		}
	}
}

func TestParsePlan(t *testing.T) {
	t.Parallel()
	many := make([]string, 0, 13)
	for i := range 13 {
		many = append(many, subtaskJSON(fmt.Sprintf("s%d", i)))
	}
	for _, tt := range []struct{ name, in, wrong string }{
		{"one", planJSON(subtaskJSON("a")), ""},
		{"in a fence", "Here it is:\n```json\n" + planJSON(subtaskJSON("a")) + "\n```", ""},
		{"a chain and a fork", planJSON(subtaskJSON("a"), subtaskJSON("b", "a"), subtaskJSON("c", "a"),
			subtaskJSON("d", "b", "c")), ""},
		{"named before its dependency", planJSON(subtaskJSON("b", "a"), subtaskJSON("a")), ""},
		{"twelve", planJSON(many[:12]...), ""},
		{"thirteen", planJSON(many...), "at most 12"},
		{
			"long instructions", strings.Replace(planJSON(subtaskJSON("a")), "Do it.",
				strings.Repeat("x", maxPlanText), 1), "",
		},
		{
			"instructions that are too long", strings.Replace(planJSON(subtaskJSON("a")), "Do it.",
				strings.Repeat("x", maxPlanText+1), 1), "too long",
		},
		{"no JSON", "I will do it.", "not the JSON object"},
		{"none", planJSON(), "no subtasks"},
		{"same id", planJSON(subtaskJSON("a"), subtaskJSON("a")), `"a" is used twice`},
		{"id is a subject", planJSON(subtaskJSON("a.>")), `id "a.>" is invalid`},
		{"unknown agent", strings.Replace(planJSON(subtaskJSON("a")), `"assistant"`, `"root"`, 1), `must be one of`},
		{
			"spawns its like", strings.Replace(planJSON(subtaskJSON("a")), `"assistant"`, `"orchestrator"`, 1),
			`must be one of`,
		},
		{"unknown hint", strings.Replace(planJSON(subtaskJSON("a")), `"simple"`, `"hard"`, 1), `must be one of`},
		{"missing dependency", planJSON(subtaskJSON("a", "b")), `depends on "b", which is not in the plan`},
		{"itself", planJSON(subtaskJSON("a", "a")), "depends on itself"},
		{"circle of two", planJSON(subtaskJSON("a", "b"), subtaskJSON("b", "a")), "in a circle"},
		{"circle behind a chain", planJSON(subtaskJSON("x"), subtaskJSON("a", "x", "c"), subtaskJSON("b", "a"),
			subtaskJSON("c", "b")), "a, b, c depend on each other"},
		{
			"unknown field", strings.Replace(planJSON(subtaskJSON("a")), `"title"`, `"sudo":true,"title"`, 1),
			"not known",
		},
		{
			"a tool that is none", strings.Replace(planJSON(subtaskJSON("a")), `"hint"`, `"tools":["a b"],"hint"`, 1),
			"not a valid tool name",
		},
		{"code without a language", strings.Replace(planJSON(subtaskJSON("a")), `"hint"`,
			`"verify":{"code":"x"},"hint"`, 1), "without a language"},
		{"an empty verify", strings.Replace(planJSON(subtaskJSON("a")), `"hint"`, `"verify":{},"hint"`, 1), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parsePlan(tt.in, nil)
			switch {
			case tt.wrong == "" && err != nil:
				t.Fatal(err)
			case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)):
				t.Fatalf("error %v, want %q", err, tt.wrong)
			}
			for _, s := range got {
				if err == nil && (s.State != subjects.SubtaskWaiting || s.Return != nil) {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// An extended plan may depend on subtasks that are there, and replaces none of them: what repeats one that is done is
// left out, and a new one gets another id where its own is taken.
func TestExtendedPlan(t *testing.T) {
	t.Parallel()
	before := []subjects.Subtask{{ID: "a", State: subjects.SubtaskDone}}
	if _, err := parsePlan(planJSON(subtaskJSON("b", "a")), before); err != nil {
		t.Error(err)
	}
	before = append(before, subjects.Subtask{ID: "b", State: subjects.SubtaskFailed},
		subjects.Subtask{ID: "b-2", State: subjects.SubtaskSkipped})
	got, err := parsePlan(planJSON(subtaskJSON("a"), subtaskJSON("b", "a"), subtaskJSON("c", "b")), before)
	if err != nil || len(got) != 2 || got[0].ID != "b-3" || got[0].DependsOn[0] != "a" || got[1].DependsOn[0] != "b-3" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parsePlan(planJSON(subtaskJSON("a")), before); !errors.Is(err, errEmptyPlan) {
		t.Errorf("a plan that repeats what is done: %v", err)
	}
	if _, err := parsePlan(planJSON(), before); !errors.Is(err, errEmptyPlan) {
		t.Errorf("%v", err)
	}
}
