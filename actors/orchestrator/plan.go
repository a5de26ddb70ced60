package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/jsonschema"
	"conclave/pkg/text"
	"conclave/subjects"
)

// planSchema is the JSON schema of a plan, for the constrained decoding and for the validation. Long texts have no
// bound in it, because a grammar cannot hold large ones: see maxPlanText.
var planSchema = jsonschema.Literal(fmt.Sprintf(`{
	"type": "object",
	"properties": {
		"subtasks": {
			"type": "array",
			"maxItems": %d,
			"items": {
				"type": "object",
				"properties": {
					"id": {"type": "string", "minLength": 1, "maxLength": 32},
					"title": {"type": "string", "minLength": 1, "maxLength": 120},
					"instructions": {"type": "string", "minLength": 1},
					"agent": {"type": "string", "enum": ["assistant", "researcher", "coder", "sysadmin"]},
					"depends_on": {"type": "array", "maxItems": %[1]d, "items": {"type": "string"}},
					"hint": {"type": "string", "enum": ["simple", "reasoning", "code"]},
					"tools": {"type": "array", "maxItems": 16, "items": {"type": "string"}},
					"verify": {
						"type": "object",
						"properties": {
							"language": {"type": "string", "maxLength": 32},
							"code": {"type": "string"},
							"command": {"type": "string", "maxLength": 1000}
						},
						"additionalProperties": false
					}
				},
				"required": ["id", "title", "instructions", "agent"],
				"additionalProperties": false
			}
		}
	},
	"required": ["subtasks"],
	"additionalProperties": false
}`, subjects.MaxSubtasks))

var compiledPlan = mustCompile(planSchema)

// mustCompile compiles a schema of this package.
func mustCompile(schema json.RawMessage) *jsonschema.Schema {
	s, err := jsonschema.Compile(schema)
	if err != nil {
		panic(err)
	}
	return s
}

// plannedSubtask is a subtask as the model writes it.
type plannedSubtask struct {
	ID           string           `json:"id"`
	Title        string           `json:"title"`
	Instructions string           `json:"instructions"`
	Agent        string           `json:"agent"`
	DependsOn    []string         `json:"depends_on"`
	Hint         string           `json:"hint"`
	Tools        []string         `json:"tools"`
	Verify       *subjects.Verify `json:"verify"`
}

// errEmptyPlan means that a plan has no subtasks: nothing can be done, or nothing more.
var errEmptyPlan = errors.New("the plan has no subtasks")

// parsePlan reads a plan of the model: the new subtasks, each waiting. existing are those of the plan that it extends;
// new ones may depend on them, and get other ids where theirs are taken, see [renameTaken]. The error says what is
// wrong, for the model. A plan without new subtasks is errEmptyPlan.
func parsePlan(reply string, existing []subjects.Subtask) ([]subjects.Subtask, error) {
	raw := extractObject(reply)
	if err := compiledPlan.ValidateJSON(raw); err != nil {
		return nil, describeInvalid(err)
	}
	var p struct {
		Subtasks []plannedSubtask `json:"subtasks"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, errors.New("the plan is not the JSON object of the schema")
	}
	out := make([]subjects.Subtask, 0, len(p.Subtasks))
	for _, s := range p.Subtasks {
		v := s.Verify
		if v != nil && v.Command == "" && v.Code == "" {
			v = nil // models fill in empty objects
		}
		out = append(out, subjects.Subtask{
			ID: s.ID, Title: text.OneLine(s.Title, 120), Instructions: s.Instructions, Agent: s.Agent,
			DependsOn: s.DependsOn,
			Hint:      s.Hint, Tools: s.Tools, Verify: v, State: subjects.SubtaskWaiting,
		})
	}
	if out = renameTaken(out, existing); len(out) == 0 {
		return nil, errEmptyPlan
	}
	return out, checkPlan(out, existing)
}

// renameTaken gives new subtasks other ids where existing ones have theirs, and leaves out those that repeat one that
// is done: models extend a plan by writing it again.
func renameTaken(added, existing []subjects.Subtask) []subjects.Subtask {
	isTaken := func(id string) bool {
		hasID := func(s subjects.Subtask) bool { return s.ID == id }
		return slices.ContainsFunc(existing, hasID) || slices.ContainsFunc(added, hasID)
	}
	for _, old := range existing {
		if old.State == subjects.SubtaskDone {
			added = slices.DeleteFunc(added, func(s subjects.Subtask) bool { return s.ID == old.ID })
			continue
		}
		at := slices.IndexFunc(added, func(s subjects.Subtask) bool { return s.ID == old.ID })
		if at < 0 {
			continue
		}
		id := old.ID
		for n := 2; isTaken(id); n++ {
			id = fmt.Sprintf("%s-%d", old.ID, n)
		}
		added[at].ID = id
		for i := range added {
			for j, d := range added[i].DependsOn {
				if d == old.ID {
					added[i].DependsOn[j] = id
				}
			}
		}
	}
	return added
}

// maxPlanText bounds the instructions of a subtask and the code of its verification, in bytes.
const maxPlanText = 8000

// checkPlan checks what the schema cannot: texts are not too long, ids are valid, unique tokens, dependencies exist and
// have no cycle, and all subtasks together are at most [subjects.MaxSubtasks].
func checkPlan(added, existing []subjects.Subtask) error {
	if n := len(added) + len(existing); n > subjects.MaxSubtasks {
		return fmt.Errorf("%d subtasks, at most %d", n, subjects.MaxSubtasks)
	}
	all := append(slices.Clone(existing), added...)
	seen := map[string]bool{}
	for _, s := range all {
		if subjects.CheckToken(s.ID) != nil {
			return fmt.Errorf("the id %q is invalid: use letters, digits, - and _", text.OneLine(s.ID, 40))
		}
		if seen[s.ID] {
			return fmt.Errorf("the id %q is used twice", s.ID)
		}
		seen[s.ID] = true
	}
	for _, s := range added {
		if len(s.Instructions) > maxPlanText || s.Verify != nil && len(s.Verify.Code) > maxPlanText {
			return fmt.Errorf("subtask %q is too long: at most %d characters of instructions and of code", s.ID,
				maxPlanText)
		}
		for _, d := range s.DependsOn {
			switch {
			case !seen[d]:
				return fmt.Errorf("subtask %q depends on %q, which is not in the plan", s.ID, text.OneLine(d, 40))
			case d == s.ID:
				return fmt.Errorf("subtask %q depends on itself", s.ID)
			}
		}
		if v := s.Verify; v != nil && v.Code != "" && v.Language == "" {
			return fmt.Errorf("verify of subtask %q has code without a language", s.ID)
		}
		for _, tool := range s.Tools {
			if subjects.CheckToken(tool) != nil {
				return fmt.Errorf("subtask %q names the tool %q, which is not a valid tool name", s.ID,
					text.OneLine(tool, 40))
			}
		}
	}
	return checkCycles(all)
}

// checkCycles fails when subtasks depend on each other in a circle. All dependencies must exist.
func checkCycles(all []subjects.Subtask) error {
	done := map[string]bool{}
	for len(done) < len(all) {
		progress := false
		for _, s := range all {
			if !done[s.ID] && !slices.ContainsFunc(s.DependsOn, func(d string) bool { return !done[d] }) {
				done[s.ID], progress = true, true
			}
		}
		if progress {
			continue
		}
		var left []string
		for _, s := range all {
			if !done[s.ID] {
				left = append(left, s.ID)
			}
		}
		return fmt.Errorf("the subtasks %s depend on each other in a circle", strings.Join(left, ", "))
	}
	return nil
}

// extractObject is the JSON object in a reply: models that ignore the schema put it into a fence or behind words.
func extractObject(reply string) []byte {
	from, to := strings.IndexByte(reply, '{'), strings.LastIndexByte(reply, '}')
	if from < 0 || to < from {
		return []byte(strings.TrimSpace(reply))
	}
	return []byte(reply[from : to+1])
}

// describeInvalid words a validation error for the model, with the rejected value where it is known.
func describeInvalid(err error) error {
	if e, ok := errors.AsType[*jsonschema.Error](err); ok {
		return errors.New(e.ErrorWithValue())
	}
	return fmt.Errorf("the reply is not the JSON object of the schema: %w", err)
}
