package view

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Every place that shows a grade says when the model of the answer gave it itself, and only then.
func TestSelfGradedIsSaid(t *testing.T) {
	t.Parallel()
	for _, self := range []bool{true, false} {
		c := subjects.Critique{Score: 4, Feedback: "Right.", Model: "big", SelfGraded: self}
		feedback := c.Feedback
		if self {
			feedback = subjects.GradedByItself + ": " + feedback
		}
		var list, detail, basis bytes.Buffer
		Grades(&list, []client.GradedAnswer{{Critique: c}})
		Judgement(&detail, client.Judgement{
			Answers:  []client.JudgedAnswer{{Critique: &c}},
			Pairwise: &subjects.Pairwise{Winner: subjects.Tie, Model: "big", SelfGraded: self},
		})
		Basis(&basis, subjects.Response{}, []subjects.MemoryRecall{{Critic: 4, Feedback: feedback}})
		body, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"event": describeEvent(client.Event{Subject: subjects.CritiqueResult.Name, Body: body}),
			"line":  GradeLine(c),
			"list":  list.String(), "detail": detail.String(), "basis": basis.String(),
			"session": GradeLine(subjects.Critique{Score: 4, Feedback: feedback}),
		} {
			if strings.Contains(text, subjects.GradedByItself) != self {
				t.Errorf("%s of a grade by itself (%t): %s", name, self, text)
			}
		}
	}
}
