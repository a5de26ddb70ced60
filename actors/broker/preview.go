package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// A preview shows the user what a call would do before the user decides about it: the tool runs in
// [subjects.ModePreview], in which it changes nothing. It is recorded in the audit log like a call. No agent sees it.

const (
	// previewTimeout bounds the run of a preview.
	previewTimeout = time.Minute
	// maxPreview bounds the text of a preview, in bytes.
	maxPreview = 24 << 10
)

// isOutdated reports whether an approval is too old to cover a repeated request.
func isOutdated(q stage.Approval, now time.Time) bool {
	return q.State == subjects.ApprovalApproved && now.Sub(q.Decided) > approvalTTL
}

// previewCall returns what a call would do, in the words of its tool: redacted, bounded and without control characters.
// It is "" for a tool without a preview. A preview that fails, or that the audit log does not acknowledge, is a
// sentence that says so: the user can decide without it.
func (b *Broker) previewCall(ctx context.Context, out actor.Out, j *stage.Judged) string {
	k, ok := b.table.get(j.Received().Tool)
	if !ok || !k.Known || !k.Preview {
		return ""
	}
	if !b.mayPreview(k.Tool, sessionLabels(j.Facts())) {
		return "[no preview: it would send the arguments off this machine before you decide, and the session holds " +
			"untrusted or private content]"
	}
	got, err := j.Preview(ctx, out, b.gate, k.Zone, previewTimeout, b.newAccessOrder(j))
	if err == nil && got.Error != nil {
		err = toolFault(got.Error)
	}
	if err != nil {
		var fault *subjects.Fault
		reason := "the tool is unavailable"
		if errors.As(err, &fault) {
			reason = fault.Text
		}
		return fmt.Sprintf("[no preview: %s]", text.OneLine(cleanOutput(reason), 300))
	}
	shown := cleanOutput(got.Result)
	if len(shown) > maxPreview {
		shown = fmt.Sprintf("%s\n[cut: %d of %d bytes are shown]", text.Cut(shown, maxPreview), maxPreview, len(shown))
	}
	return shown
}

// assumePreview marks a repeated request of a call whose tool has a preview: the first request may have run it.
func (b *Broker) assumePreview(j *stage.Judged) {
	k, ok := b.table.get(j.Received().Tool)
	if ok && k.Known && k.Preview && b.mayPreview(k.Tool, sessionLabels(j.Facts())) {
		j.AssumePreview()
	}
}

// mayPreview reports whether a preview may run before the user has decided. One that sends data off this machine may
// not when the session, whose labels are l, holds untrusted or private content: the arguments could carry it out. nil
// is an unknown session.
func (b *Broker) mayPreview(t policy.Tool, l *subjects.Labels) bool {
	return !b.sendsData(t) || l != nil && l.Trust == subjects.Trusted && l.Privacy == subjects.Public
}

// cleanOutput returns text of a tool for the user's screen: secrets are redacted, and characters that a terminal obeys
// or does not show become U+FFFD, except line breaks and tabs.
func cleanOutput(s string) string {
	s, _ = firewall.Redact(strings.ToValidUTF8(s, "\uFFFD"))
	return text.ReplaceHidden(s, func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return '\uFFFD'
	})
}
