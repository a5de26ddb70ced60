package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The broker publishes copies of calls and results as events: the audit is the record, this is the view. The accounts
// that call share its quota of events ([actor.Shares]). Those of refused calls weigh more, have bounded arguments, and
// are left out when they repeat: an agent that repeats a denied call must not hide the calls that run.

const (
	// refusedWeight is the weight of copies of refused calls: one account gets a fifth of the quota for them.
	refusedWeight = 4
	// maxRefusedArgs is the size in bytes from which the arguments of a refused call are replaced by clippedArgs.
	maxRefusedArgs = 4 << 10
	// refused calls of an account within refusalPeriod that have a copy each; further ones are counted
	maxRefusalCopies = 50
	refusalPeriod    = 10 * time.Second
	// copyOverhead is the size of subject and headers of an event, in bytes.
	copyOverhead = 512
)

// leftOut counts the copies that were left out, by account. The zero value is ready to use.
type leftOut struct {
	mu        sync.Mutex
	byAccount map[string]*leftOutCopies
}

type leftOutCopies struct {
	start    time.Time // of the period of refusals
	refused  int       // within the period
	repeated int       // refused calls without copies since the last one with copies
	overfull int       // copies left out because a share is used up, since it was logged
	logged   int64     // hour of that
}

// of returns the counts of an account. l.mu must be held.
func (l *leftOut) of(account string) *leftOutCopies {
	if l.byAccount[account] == nil {
		if l.byAccount == nil {
			l.byAccount = map[string]*leftOutCopies{}
		}
		l.byAccount[account] = &leftOutCopies{}
	}
	return l.byAccount[account]
}

// admitRefusal counts a refused call and reports whether it has copies: the first maxRefusalCopies of a period, and
// then each with which their number has doubled. repeated is the number of refused calls before it that have none.
func (l *leftOut) admitRefusal(account string, now time.Time) (repeated int, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of(account)
	if now.Sub(c.start) >= refusalPeriod {
		c.start, c.refused = now, 0
	}
	if c.refused++; c.refused > maxRefusalCopies && c.refused&(c.refused-1) != 0 {
		c.repeated++
		return 0, false
	}
	repeated, c.repeated = c.repeated, 0
	return repeated, true
}

// countOverfull counts a copy for which the share of the account has no room. It returns how many there were since the
// last error, as an error, at most once an hour.
func (l *leftOut) countOverfull(account string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, hour := l.of(account), now.Unix()/3600
	c.overfull++
	if c.logged == hour {
		return nil
	}
	n := c.overfull
	c.overfull, c.logged = 0, hour
	return fmt.Errorf("the share of %s, or of its question, in the events of the last day is used up: %d left out",
		account, n)
}

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

// publishRefusal publishes the copies of a call that did not run and of its result, unless they are left out because
// many were refused.
func (b *Broker) publishRefusal(ctx context.Context, out actor.Out, r stage.Received, j *subjects.Judgement,
	res subjects.ToolResult,
) {
	repeated, admitted := b.leftOut.admitRefusal(r.Caller.Account, out.Now())
	if admitted {
		res.Repeated = repeated
		b.publishCall(ctx, out, r, j, true)
		b.publishResult(ctx, out, r, res, true)
	}
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
	case !b.copies.Admit(r.Caller.Account, r.Query, int64(len(data)+copyOverhead), weight, out.Now()):
		err = b.leftOut.countOverfull(r.Caller.Account, out.Now())
	default:
		err = out.Publish(ctx, topic.Spec, data, false)
	}
	if err != nil {
		out.LogError(fmt.Errorf("publishing a copy of a call of %s: %w", r.Tool, err))
	}
}
