package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Tools publish live output while a call runs. The broker forwards it to the user and to the agent that called, line by
// line: with secrets redacted, without control characters, labelled, and at most maxLiveBytes of a call. The result is
// what counts: live output may be lost, and none is forwarded after the result.

const (
	// maxLiveBytes bounds the live output of one call.
	maxLiveBytes = 256 << 10
	// maxLiveLine is the length from which a line is forwarded in parts.
	maxLiveLine = 8 << 10
)

// liveKey identifies a running call as its tool names it.
type liveKey struct{ zone, tool, call string }

// liveOutput is the live output of a running call.
type liveOutput struct {
	call     *stage.Judged
	announce func() // publishes the copy of the call, once
	tool     policy.Tool
	running  int    // calls of this key; the output of more than one cannot be told apart, so none is forwarded
	pending  string // an incomplete line
	inKey    bool   // within a private key of several lines
	bytes    int    // of all output
	n        int    // number of the next piece
}

// liveOutputs are the calls that run in this broker. The zero value is ready to use.
type liveOutputs struct {
	mu    sync.Mutex
	calls map[liveKey]*liveOutput
}

// begin registers a running call; the caller must call end once, which returns the rest of its output.
func (l *liveOutputs) begin(k Known, call *stage.Judged, announce func()) (end func() (rest string, o liveOutput)) {
	key := liveKey{k.Zone, k.Name, call.Received().ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls == nil {
		l.calls = map[liveKey]*liveOutput{}
	}
	o := l.calls[key]
	if o == nil {
		o = &liveOutput{call: call, announce: announce, tool: k.Tool}
		l.calls[key] = o
	}
	o.running++
	return func() (string, liveOutput) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if o.running--; o.running > 0 {
			return "", *o
		}
		delete(l.calls, key)
		rest := o.pending
		o.pending = ""
		return o.clean(rest), *o
	}
}

// add adds output of a running call and returns what may be forwarded now; "" for a call that does not run here.
func (l *liveOutputs) add(key liveKey, s string) (shown string, o liveOutput) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := l.calls[key]
	if live == nil || live.running != 1 || live.bytes > maxLiveBytes {
		return "", o
	}
	// a progress bar overwrites its line
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.ToValidUTF8(s, "\uFFFD"))
	if live.bytes += len(s); live.bytes > maxLiveBytes {
		live.pending = ""
		shown = fmt.Sprintf("[the live output ends here, after %d bytes; the result follows]\n", maxLiveBytes)
	} else {
		live.pending += s
		shown = live.clean(live.takeLines())
	}
	o = *live
	if shown != "" {
		live.n++
	}
	return shown, o
}

// takeLines removes the complete lines from the pending text and returns them. A secret is not split, because an
// incomplete line waits for its end, up to maxLiveLine bytes; a longer one is split at a blank.
func (o *liveOutput) takeLines() string {
	end := strings.LastIndexByte(o.pending, '\n') + 1
	if len(o.pending)-end > maxLiveLine {
		end = max(end, strings.LastIndexAny(o.pending, " \t")+1)
		if len(o.pending)-end > maxLiveLine {
			end = len(o.pending)
		}
	}
	lines := o.pending[:end]
	o.pending = o.pending[end:]
	return lines
}

// clean returns whole lines for a screen. A private key is removed over all its lines.
func (o *liveOutput) clean(lines string) string {
	var kept strings.Builder
	for l := range strings.Lines(lines) {
		isBegin := strings.Contains(l, "-----BEGIN ") && strings.Contains(l, "PRIVATE KEY-----")
		if isBegin && !o.inKey {
			kept.WriteString("[redacted private key]\n")
		}
		wasIn := o.inKey || isBegin
		o.inKey = wasIn && !strings.Contains(l, "-----END ")
		if !wasIn {
			kept.WriteString(l)
		}
	}
	return cleanOutput(text.StripTerminalCodes(kept.String()))
}

// onOutput forwards live output of a running call. The zone and the tool are from the subject, which the server
// enforces: a tool cannot write output of another one. Output of a call that does not run in this broker is dropped.
func (b *Broker) onOutput(ctx context.Context, in actor.Msg[subjects.ToolOutput], out actor.Out) error {
	if len(in.Tokens) != 3 {
		return subjects.Faultf(subjects.CodeSubject, "invalid output subject: %s", text.OneLine(in.Subject, 200))
	}
	shown, o := b.live.add(liveKey{in.Tokens[0], in.Tokens[1], in.Tokens[2]}, in.Body.Text)
	b.forwardOutput(ctx, out, o, shown)
	return nil
}

// forwardOutput publishes a piece of live output for the user and for the calling agent. The user does not see what
// respondent B does, and an agent that gets findings only does not see raw output. Failures are not reported: live
// output may be lost.
func (b *Broker) forwardOutput(ctx context.Context, out actor.Out, o liveOutput, shown string) {
	if shown == "" {
		return
	}
	o.announce()
	r := o.call.Received()
	labels := policy.Result{Tool: o.tool, Text: shown, Flags: firewall.Scan(shown).Techniques()}.Labels()
	piece := subjects.ToolOutput{CallID: r.ID, Tool: r.Tool, N: o.n, Text: shown, Labels: &labels}
	out = out.WithIDs(r.Session, r.Query)
	if topic, err := subjects.ToolOutputEvent.With(r.ID); err == nil && !isRespondentB(r.Caller) {
		_ = actor.Emit(ctx, out, topic, piece)
	}
	if topic, err := subjects.AgentOutputEvent.With(r.Caller.Account, r.ID); err == nil &&
		!mustDistill(o.call, o.tool, labels) {
		_ = actor.Emit(ctx, out, topic, piece)
	}
}
