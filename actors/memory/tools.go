package memory

import (
	"context"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Tools returns the tools that memory serves, for the broker's configuration. They cannot be run.
func Tools() actor.Toolset { return (&Memory{}).toolset() }

// toolset returns the tools of m. Each is two files: the code and the description that the model reads.
func (m *Memory) toolset() actor.Toolset {
	return actor.Toolset{
		newTool(searchMemorySchema, policy.Tool{
			// The query has no role: a recall with words of the user is one that the user asked for, one with other
			// words is not.
			Args: policy.Args{
				"query": {}, "max": {Role: policy.RoleSetting},
				"kind": {Role: policy.RoleOption, Values: []string{
					subjects.KindEngram, subjects.KindFact,
					subjects.KindDocument,
				}},
			},
			Effects: policy.Declare(policy.ReadsPrivate), Timeout: time.Minute, Standing: true, Own: true,
			Empty: nothingFound,
		}, m.runSearchMemory),
		newTool(saveMemorySchema, policy.Tool{
			Effects: policy.Declare(policy.Remember), Timeout: time.Minute,
			MaxArgs: 64 << 10, Records: true,
		}, m.runSaveMemory),
		newTool(searchGraphSchema, policy.Tool{Effects: policy.Declare(policy.ReadsPrivate), Timeout: 30 * time.Second},
			m.runSearchGraph),
	}
}

// toolFunc runs one call of a tool.
type toolFunc = func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error)

// newTool completes what all tools of memory share.
func newTool(schema subjects.ToolSchema, facts policy.Tool, run toolFunc) actor.Tool {
	schema.Version, schema.Description = version, strings.TrimSpace(schema.Description)
	facts.Name, facts.Zone, facts.Known, facts.Graded = schema.Name, name, true, true
	return actor.Tool{Schema: schema, Facts: facts, Run: run}
}

// toolAct is the act of a tool call, for the audit log. Caller and session are the broker's word.
func toolAct(in actor.Msg[subjects.ToolOrder], action, tool string, params []byte) act {
	return act{
		caller: in.Body.Caller, typ: in.Body.CallerType, action: action, target: tool, params: params,
		session: in.Session, query: in.Body.QueryID,
	}
}

// newToolResult returns a result that is private to the user. trusted must be false unless every entry in content is
// trusted. ids are the entries that were recalled.
func newToolResult(content string, trusted bool, ids ...string) subjects.ToolResult {
	labels := &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
	if trusted {
		labels.Trust = subjects.Trusted
	}
	return subjects.ToolResult{Result: content, Recalls: ids, Labels: labels}
}

// nothingFound is the result of a search that found nothing. The session holds no private data by it, see
// [policy.Tool.Empty].
const nothingFound = "Nothing is remembered about that."
