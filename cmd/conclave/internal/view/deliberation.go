package view

import (
	"fmt"
	"strings"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// DescribeDeliberation is one line about a persona of the committee: it is working, or how it ended.
func DescribeDeliberation(d subjects.Deliberation) string {
	who := d.Persona
	if d.Round > 1 && !d.Closing {
		who = fmt.Sprintf("%s (round %d)", d.Persona, d.Round)
	}
	switch d.Status {
	case subjects.DeliberationWorking:
		return who + " is working ..."
	case subjects.DeliberationFailed:
		reason := "no reason given"
		if d.Error != nil {
			reason = d.Error.Text
		}
		return who + " failed and is skipped: " + reason
	}
	parts := []string{"done in " + term.Took(d.Usage.Millis)}
	if n := len(d.Calls); n > 0 {
		parts = append(parts, term.Count(n, "tool call"))
	}
	if d.Dissents {
		parts = append(parts, "dissents: "+d.Dissent)
	}
	return who + ": " + strings.Join(parts, ", ")
}
