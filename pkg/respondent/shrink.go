package respondent

import (
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// ShrinkResponse shortens a response until it has at most most bytes or nothing is left to shorten, first the parts
// that are in other events too, and notes it. The slices of r are not modified.
func ShrinkResponse(r subjects.Response, most int) subjects.Response {
	results := func(each int) func() {
		return func() {
			r.ToolCalls = slices.Clone(r.ToolCalls)
			for i := range r.ToolCalls {
				c := &r.ToolCalls[i]
				c.Result = text.Clip(c.Result, each)
				if len(c.Args) > each {
					c.Args = nil
				}
			}
		}
	}
	for i, shrink := range []func(){
		results(4 << 10),
		func() { r.Thinking = text.Clip(r.Thinking, 16<<10) },
		func() { r.Attachments = conversation.ShortenAttachments(r.Attachments, 4<<10) },
		func() { r.Query = text.Clip(r.Query, 16<<10) },
		results(256),
		func() { r.Answer = text.Clip(r.Answer, 32<<10) },
		func() { r.ToolCalls = []subjects.ToolCall{} },
	} {
		if data, err := actor.EncodeValue(r); err == nil && len(data) <= most {
			break
		}
		if i == 0 {
			r.Notes = append(slices.Clone(r.Notes), subjects.Note{
				Code: subjects.NoteRecordCut,
				Text: "the record of this answer was too large and is shortened",
			})
		}
		shrink()
	}
	return r
}
