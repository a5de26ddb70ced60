package broker

import (
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// respondents are the accounts that answer questions and whose runtime recalls the user's statements for them.
var respondents = []string{subjects.Generator, subjects.RespondentB, "committee"}

// queryID is the query that the call belongs to: the header's, which the runtime carried, otherwise the body's when it
// is a token, otherwise "".
func queryID(in actor.Msg[subjects.ToolRequest]) string {
	if in.Query != "" {
		return in.Query
	}
	if in.Body.QueryID != "" && subjects.CheckToken(in.Body.QueryID) == nil {
		return in.Body.QueryID
	}
	return ""
}

// checkRequest rejects a call_id that is no token, arguments over the tool's limit, arguments that are not one JSON
// object, and a call for [subjects.ModeOwn] by another caller than a respondent or of a tool without that mode; nil
// means that the request is well-formed. A tool with MaxArgs 0 has no limit here. Layers may rely on it.
func checkRequest(r subjects.ToolRequest, caller subjects.Caller, k Known) *subjects.Fault {
	mayRecall := len(caller.Path) == 0 && slices.Contains(respondents, caller.Account)
	if r.Own && !(mayRecall && k.Known && k.Own) {
		return subjects.Faultf(subjects.CodeMalformed, "own is for the recall of a respondent's runtime; "+
			"leave it out")
	}
	if r.CallID != "" && subjects.CheckToken(r.CallID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "call_id may hold letters, digits, - and _ only")
	}
	if k.MaxArgs > 0 && len(r.Args) > k.MaxArgs {
		return subjects.Faultf(subjects.CodeTooLarge, "arguments too large: %d bytes, limit %d", len(r.Args), k.MaxArgs)
	}
	if err := strict.CheckObject(r.Args); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "args must be one JSON object: %v", err)
	}
	return nil
}
