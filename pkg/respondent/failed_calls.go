package respondent

import (
	"slices"
	"strings"

	"conclave/pkg/text"
	"conclave/subjects"
)

// NoteFailedCalls is a note for each tool of which no call gave a result, with the reason of the last: a model may
// answer as if it had looked something up. A recall of the runtime counts when memory could not be reached.
func NoteFailedCalls(calls []subjects.ToolCall) (notes []subjects.Note) {
	for i, c := range calls {
		isSame := func(other subjects.ToolCall) bool { return other.Tool == c.Tool }
		gaveResult := func(other subjects.ToolCall) bool { return isSame(other) && other.Error == nil }
		switch {
		case c.Error == nil:
			continue
		case c.Layer == subjects.LayerRecall && c.Error.Code != subjects.CodeUnavailable &&
			c.Error.Code != subjects.CodeTimeout:
			continue
		case slices.ContainsFunc(calls[i+1:], isSame):
			continue
		case slices.ContainsFunc(calls, gaveResult):
			continue
		}
		words := c.Tool + " gave no result: " + quoteReason(c.Error.Text)
		if c.Error.Code == subjects.CodeTimeout {
			words += "; ask again, and see conclave doctor"
		}
		notes = append(notes, subjects.Note{Code: subjects.NoteNoResult, Text: words})
	}
	return notes
}

// NoteUnavailable is a note for each tool that agents did not get, with the reason and what to do.
func NoteUnavailable(all []subjects.UnavailableTool) (notes []subjects.Note) {
	for _, u := range all {
		n := subjects.Note{
			Code: subjects.NoteNoResult,
			Text: u.Name + " was not used: " + quoteReason(u.Why),
		}
		if !slices.Contains(notes, n) {
			notes = append(notes, n)
		}
	}
	return notes
}

// quoteReason quotes words of a tool's process, which cannot end the quote.
func quoteReason(words string) string {
	return `"` + text.OneLine(strings.ReplaceAll(words, `"`, "'"), maxReason) + `"`
}

// maxReason bounds the reason in a note, in bytes.
const maxReason = 600
