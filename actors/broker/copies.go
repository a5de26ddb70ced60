package broker

import (
	"context"
	"encoding/json"
	"fmt"

	"conclave/actors/broker/internal/stage"
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
// JSON are left out. judgement is nil for a call that no layer judged; refused means that it does not run. The copy of
// its result follows on the same stream, and its acknowledgement stands for both.
func (b *Broker) publishCall(ctx context.Context, out actor.Out, r stage.Received, judgement *subjects.Judgement,
	refused bool,
) {
	topic, err := subjects.ToolRequestEvent.With(append([]string{r.Tool}, r.Caller.Path...)...)
	if err != nil {
		return // the tool name is no token: the request is a dead letter
	}
	shown, _ := firewall.Redact(string(r.Args)) // a model may put a secret into the arguments
	args := json.RawMessage(shown)
	switch {
	case refused && len(shown) > maxRefusedArgs:
		args, _ = json.Marshal(clippedArgs{text.Clip(shown, maxRefusedArgs), len(r.Args), r.Record.ParamsHash})
	case !json.Valid(args):
		args = nil // rejected as no JSON, or no longer JSON after redaction: the event cannot carry it
	}
	if judgement != nil {
		judgement.Redacted = string(args) != string(r.Args)
	}
	topic.Stream = "" // without an acknowledgement, which saves a third of the cost
	publishCopy(ctx, out, b, r, refused, topic, subjects.ToolRequest{
		CallID: r.ID, QueryID: r.Query, Tool: r.Tool, Caller: r.Caller.ID(), Args: args, Judgement: judgement,
	})
}

// publishResult publishes the broker's copy of a result, with the caller of the subject. It does not wait for the
// acknowledgement, and a failure is logged only.
func (b *Broker) publishResult(ctx context.Context, out actor.Out, r stage.Received, res subjects.ToolResult,
	refused bool,
) {
	res.Caller = r.Caller.ID()
	if topic, err := subjects.ToolResultEvent.With(res.Tool); err == nil {
		publishCopy(ctx, out, b, r, refused, topic, res)
	}
}

// publishCopy publishes a copy of a call or of its result, unless the share of its caller is used up. A failure is
// logged only.
func publishCopy[T any](ctx context.Context, out actor.Out, b *Broker, r stage.Received, refused bool,
	topic subjects.Topic[T], body T,
) {
	data, err := json.Marshal(body)
	weight := int64(1)
	if refused {
		weight = refusedWeight
	}
	switch {
	case err != nil:
	case !b.copies.Admit(r.Caller.Account, int64(len(data)+copyOverhead), weight, out.Now()):
		hour := out.Now().Unix() / 3600
		if last, _ := b.fullShares.Swap(r.Caller.Account, hour); last == hour {
			return // it is logged once an hour
		}
		err = fmt.Errorf("the share of %s in the events of the last day is used up; they are left out",
			r.Caller.Account)
	default:
		err = out.Publish(ctx, topic.Spec, data, false)
	}
	if err != nil {
		out.LogError(fmt.Errorf("publishing a copy of a call of %s: %w", r.Tool, err))
	}
}
