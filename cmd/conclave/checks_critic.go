package main

import (
	"slices"
	"strings"

	"conclave/config"
	"conclave/subjects"
)

// judging says whether answers are graded, by which model, and whether the second respondent has the model it should have.
func (x *examination) judging(list subjects.ModelList, respondentB bool) {
	cfg, err := config.Load(x.home.Config)
	if err != nil {
		return // told of elsewhere
	}
	if !cfg.Critic.Enabled {
		x.ok("critic", "switched off in critic.yaml: answers are not graded")
	} else {
		x.judge(list)
	}
	b := cfg.Generator.RespondentB
	if (b.Enabled || respondentB) && !cfg.Critic.Enabled {
		x.warn(subjects.RespondentB, "enabled: true in critic.yaml, or respondent_b: {enabled: false} in generator.yaml", "the second respondent is on and the critic is off, so nobody compares their answers")
	}
	switch {
	case !b.Enabled && respondentB: // its flags are known to whoever started it
		x.ok(subjects.RespondentB, "a second answer to every question, unseen; started by a flag, so which model it has is not known here")
	case !b.Enabled:
	case b.Model != "" && !there(list, b.Model):
		x.warn(subjects.RespondentB, "conclave model pull "+b.Model, "the second respondent is on, and its model %s is not there", b.Model)
	default:
		x.ok(subjects.RespondentB, "a second answer to every question, unseen, with %s", or(b.Model, "the assistant's model"))
	}
}

// judge says which model grades.
func (x *examination) judge(list subjects.ModelList) {
	for _, r := range list.Roles {
		if r.Role != subjects.RoleCritic {
			continue
		}
		switch {
		case r.DemoModel:
			x.warn("critic", "run ollama serve, then conclave model pull "+or(r.Wanted, r.Model), "only the built-in demo model is there, so answers stay ungraded")
		case r.Wanted == "" && r.Notice == "":
			x.ok("critic", "%s grades every answer", r.Model)
		case r.Wanted != "" && (r.Notice == "" || strings.Contains(r.Notice, "conclave model pull")):
			x.warn("critic", "conclave model pull "+r.Wanted, "%s is not there, so %s grades", r.Wanted, r.Model)
		default: // it says what to do: correct a name, start a server
			x.warn("critic", r.Notice, "%s grades", or(r.Model, "nobody"))
		}
		return
	}
	x.warn("critic", "name a model for the role critic in models.yaml", "no model has the role critic")
}

// there reports whether a model is at hand. One without a tag is the latest.
func there(list subjects.ModelList, name string) bool {
	return slices.ContainsFunc(list.Models, func(m subjects.ModelInfo) bool {
		return m.Refused == "" && (m.Name == name || m.Name == name+":latest")
	})
}
