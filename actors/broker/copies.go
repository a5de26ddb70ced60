package broker

import (
	"context"
	"encoding/json"
	"fmt"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The broker publishes copies of calls and results as events: the audit is the record, this is the view. The accounts
// that call share its quota of events ([actor.Shares]). Those of refused calls weigh more, and have bounded arguments:
// an agent that repeats a denied call must not hide the calls that run.

const (
	// refusedWeight is the weight of copies of refused calls: one account gets a fifth of the quota for them.
	refusedWeight = 4
	// maxRefusedArgs is the size in bytes from which the arguments of a refused call are replaced by clippedArgs.
	maxRefusedArgs = 4 << 10
	// copyOverhead is the size of subject and headers of an event, in bytes.
	copyOverhead = 512
)

// clippedArgs are the arguments in the copy of a refused call whose own are too large.
type clippedArgs struct {
	Clipped string `json:"clipped"`     // their beginning
	Bytes   int    `json:"bytes"`       // their size
	Hash    string `json:"params_hash"` // as the audit log has it
}

// publishCall publishes the broker's copy of a call, with secrets redacted from the arguments; arguments that are no
// JSON are left out. The copy of its result follows on the same stream, and its acknowledgement stands for both.
func (b *Broker) publishCall(ctx context.Context, out actor.Out, c call) {
	topic, err := subjects.ToolRequestEvent.With(append([]string{c.tool}, c.path...)...)
	if err != nil {
		return // the tool name is no token: the request is a dead letter
	}
	shown, _ := firewall.Redact(string(c.args)) // a model may put a secret into the arguments
	args := json.RawMessage(shown)
	switch {
	case c.refused && len(shown) > maxRefusedArgs:
		args, _ = json.Marshal(clippedArgs{text.Clip(shown, maxRefusedArgs), len(c.args), c.record.ParamsHash})
	case !json.Valid(args):
		args = nil // rejected as no JSON, or no longer JSON after redaction: the event cannot carry it
	}
	if c.judgement != nil {
		c.judgement.Redacted = string(args) != string(c.args)
	}
	topic.Stream = "" // without an acknowledgement, which saves a third of the cost
	publishCopy(ctx, out, b, c, topic, subjects.ToolRequest{
		CallID: c.id, QueryID: c.query,
		Tool: c.tool, Caller: c.record.AgentID, Args: args, Judgement: c.judgement,
	})
}

// publishResult publishes the broker's copy of a result, with the caller of the subject. It does not wait for the
// acknowledgement, and a failure is logged only.
func (b *Broker) publishResult(ctx context.Context, out actor.Out, c call, res subjects.ToolResult) {
	res.Caller = c.record.AgentID
	if topic, err := subjects.ToolResultEvent.With(res.Tool); err == nil {
		publishCopy(ctx, out, b, c, topic, res)
	}
}

// publishCopy publishes a copy of a call or of its result, unless the share of its caller is used up. A failure is
// logged only.
func publishCopy[T any](ctx context.Context, out actor.Out, b *Broker, c call, topic subjects.Topic[T], body T) {
	data, err := json.Marshal(body)
	weight := int64(1)
	if c.refused {
		weight = refusedWeight
	}
	switch {
	case err != nil:
	case !b.copies.Admit(c.account(), int64(len(data)+copyOverhead), weight, out.Now()):
		hour := out.Now().Unix() / 3600
		if last, _ := b.fullShares.Swap(c.account(), hour); last == hour {
			return // it is logged once an hour
		}
		err = fmt.Errorf("the share of %s in the events of the last day is used up; they are left out", c.account())
	default:
		err = out.Publish(ctx, topic.Spec, data, false)
	}
	if err != nil {
		out.LogError(fmt.Errorf("publishing a copy of a call of %s: %w", c.tool, err))
	}
}
