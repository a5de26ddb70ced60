package broker

import (
	"conclave/pkg/actor"
	"conclave/subjects"
)

// queryID is the query that the call belongs to: the header's, which the runtime carried, otherwise the body's when it
// is a token, otherwise "".
func queryID(in actor.Msg[subjects.ToolRequest]) string {
	if in.Query != "" {
		return in.Query
	}
	if subjects.CheckToken(in.Body.QueryID) == nil {
		return in.Body.QueryID
	}
	return ""
}

// checkRequest rejects a call_id that is no token, arguments over the tool's limit, and arguments that are not one JSON
// object; nil means that the request is well-formed. A tool with MaxArgs 0 has no limit here. Layers may rely on it.
func checkRequest(r subjects.ToolRequest, k Known) *subjects.Fault {
	if r.CallID != "" && subjects.CheckToken(r.CallID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "call_id may hold letters, digits, - and _ only")
	}
	if k.MaxArgs > 0 && len(r.Args) > k.MaxArgs {
		return subjects.Faultf(subjects.CodeTooLarge, "arguments too large: %d bytes, limit %d", len(r.Args), k.MaxArgs)
	}
	if err := actor.CheckJSONObject(r.Args); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "args must be one JSON object: %v", err)
	}
	return nil
}
