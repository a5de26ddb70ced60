package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/subjects"
)

// The attachments of a question are untrusted content: a model reads them in a frame that their text cannot close, and
// the labels of the answer say so, in this turn and in all later ones of the session.

// NewNonce is the unpredictable nonce of the frames around untrusted content.
func NewNonce(out actor.Out) string {
	sum := sha256.Sum256([]byte(out.NewID()))
	return hex.EncodeToString(sum[:8])
}

// RedactAttachments returns attachments without credentials, as tool results are sent to a model.
func RedactAttachments(all []subjects.Attachment) (out []subjects.Attachment) {
	for _, a := range all {
		a.Text, _ = firewall.Redact(strings.ToValidUTF8(a.Text, "\uFFFD"))
		a.Name, _ = firewall.Redact(a.Name)
		out = append(out, a)
	}
	return out
}

// DescribeAttachment is the content of an attachment as the model reads it. The name is part of it, because its author
// may have chosen it.
func DescribeAttachment(a subjects.Attachment) string { return a.Describe() + ":\n\n" + a.Content() }

// LabelAttachments returns the labels of attachments, with the techniques of injection that were found; nil = there are
// none. The user's files and mails are private.
func LabelAttachments(all []subjects.Attachment) (l *subjects.Labels) {
	for _, a := range all {
		l = l.Join(&subjects.Labels{
			Trust: subjects.Untrusted, Privacy: subjects.Private,
			Flags: firewall.Scan(DescribeAttachment(a)).Techniques(),
		})
	}
	return l
}

// FrameAttachments returns the attachments as the model reads them, each in a frame with the nonce; "" = there are
// none.
func FrameAttachments(all []subjects.Attachment, nonce string) string {
	var frames []string
	for _, a := range all {
		content := DescribeAttachment(a)
		frames = append(frames, firewall.FrameAttachment(content, nonce, firewall.Scan(content)))
	}
	return strings.Join(frames, "\n\n")
}

// ListImages returns the images among the attachments of a question of a session, as references.
func ListImages(session string, all []subjects.Attachment) (out []model.Image) {
	for _, a := range all {
		if a.IsImage() {
			out = append(out, model.Image{Session: session, SHA256: a.SHA256, Type: a.Type, Size: a.Size})
		}
	}
	return out
}
