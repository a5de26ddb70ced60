package model_test

import (
	"testing"

	"conclave/actors/model"
	"conclave/subjects"
)

// Where a model is installed that was made to grade it grades, without a setting; the assistant's model does only where
// there is none, and where the user wants it so.
func TestModelMadeToGradeGrades(t *testing.T) {
	t.Parallel()
	yes := true
	for name, tt := range map[string]struct {
		installed []string
		critic    string
		want      string
	}{
		"the critic's own":            {[]string{"big", "judge", "grader"}, "judge", "judge"},
		"another one made to grade":   {[]string{"big", "grader"}, "judge", "grader"},
		"none":                        {[]string{"big"}, "judge", "big"},
		"the user wants none":         {[]string{"big", "judge", "grader"}, "", "big"},
		"one that the user has named": {[]string{"big", "coder", "grader"}, "coder", "coder"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, always(tt.installed...), func(c *model.Config) {
				c.Roles["critic"], c.Optional = tt.critic, []string{"critic"}
				c.Models = map[string]model.Options{"grader": {Grades: &yes}, "judge": {Grades: &yes}}
			})
			got := w.askAs("critic", "q1", subjects.ChatRequest{Role: subjects.RoleCritic})
			if got.err != nil || got.last.Model != tt.want || got.last.Notice != "" {
				t.Errorf("%s grades, %q, %v, want %s", got.last.Model, got.last.Notice, got.err, tt.want)
			}
		})
	}
}
