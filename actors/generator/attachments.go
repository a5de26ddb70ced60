package generator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The attachments of a question are untrusted content: the model reads them in a frame that their text cannot close,
// and the labels of the answer say so, in this turn and in all later ones of the session.

// adoptAttachments fills in the attachments of a new record, without credentials, as tool results are sent to a model.
func (t *turn) adoptAttachments(r *turnRecord) {
	if len(t.Query.Attachments) == 0 {
		return
	}
	for _, a := range t.Query.Attachments {
		a.Text, _ = firewall.Redact(strings.ToValidUTF8(a.Text, "\uFFFD"))
		a.Name, _ = firewall.Redact(a.Name)
		r.Attachments = append(r.Attachments, a)
	}
	sum := sha256.Sum256([]byte(t.Out.NewID()))
	r.Nonce = hex.EncodeToString(sum[:8])
}

// describeContent is the content of an attachment as the model reads it. The name is part of it, because its author may
// have chosen it.
func describeContent(a subjects.Attachment) string { return a.Describe() + ":\n\n" + a.Content() }

// labelAttachments returns the labels of attachments, with the techniques of injection that were found; nil = there are
// none. The user's files and mails are private.
func labelAttachments(all []subjects.Attachment) (l *subjects.Labels) {
	for _, a := range all {
		l = l.Join(&subjects.Labels{
			Trust: subjects.Untrusted, Privacy: subjects.Private,
			Flags: firewall.Scan(describeContent(a)).Techniques(),
		})
	}
	return l
}

// frameAttachments returns the attachments as the model reads them, each in a frame with the nonce; "" = there are
// none.
func frameAttachments(all []subjects.Attachment, nonce string) string {
	var frames []string
	for _, a := range all {
		content := describeContent(a)
		frames = append(frames, firewall.FrameAttachment(content, nonce, firewall.Scan(content)))
	}
	return strings.Join(frames, "\n\n")
}

// noteAttachments notes, for the user, what is treated as untrusted content.
func (t *turn) noteAttachments() {
	for _, a := range t.Record().Attachments {
		words := fmt.Sprintf("%s (%d bytes) is treated as untrusted content: what it asks for is not done without "+
			"your approval", a.Describe(), len(a.Text)+a.Size)
		if flags := firewall.Scan(describeContent(a)).Techniques(); len(flags) > 0 {
			words += "; parts of it look like instructions (" + strings.Join(flags, ", ") + ")"
		}
		t.Note(subjects.NoteUntrusted, words)
	}
}

// describeQuestion returns the user's own words, or a description of a question that is attached as a whole.
func (t *turn) describeQuestion() string {
	return cmp.Or(t.ownWords(), "the attached text")
}

// ownWords is the part of the question that the user typed. It is "" when the whole question is attached.
func (t *turn) ownWords() string {
	if own := subjects.UserText(t.Query.Query); own != subjects.PipedQuestion {
		return own
	}
	return ""
}

// task describes the question to the broker, which selects tools for it: the user's words, or the beginning of the
// attachments when there are none.
func (t *turn) task() string {
	task := t.Query.Query
	if t.ownWords() == "" && len(t.Record().Attachments) > 0 {
		task = t.Record().Attachments[0].Content()
	}
	return text.Clip(task, maxTask)
}

// maxTask bounds the description of a question for the selection of tools, in bytes.
const maxTask = 4 << 10

// listImages returns the images among the attachments of a question of a session, as references.
func listImages(session string, all []subjects.Attachment) (out []model.Image) {
	for _, a := range all {
		if a.IsImage() {
			out = append(out, model.Image{Session: session, SHA256: a.SHA256, Type: a.Type, Size: a.Size})
		}
	}
	return out
}

// checkImages refuses a question with an image before any model is asked: with [model.ErrNoVision] when the model
// cannot read images, and with a fault when the image is not stored in the session, or its content is not what the
// question says. The capabilities of a model that the question names are checked by the model actor. t.role must be
// set.
func (t *turn) checkImages(ctx context.Context) error {
	if len(listImages(t.Session, t.Record().Attachments)) == 0 {
		return nil
	}
	if t.Query.Model == "" && t.role.Model != "" && !t.role.Vision {
		list, _ := actor.Ask(ctx, t.Out, subjects.ModelListService, subjects.Empty{}) // only to name others
		return model.NoVisionError(t.role.Model, list.Seeing())
	}
	for _, a := range t.Record().Attachments {
		if !a.IsImage() {
			continue
		}
		if _, err := attachment.Read(ctx, t.Out, t.Session, a); err != nil {
			return err
		}
	}
	return nil
}

// history returns the messages before the question. The latest images of the conversation, at most
// [subjects.MaxImages], are part of it for an assistant that reads images; an image that is no longer stored is left
// out. t.role must be set.
func (t *turn) history(ctx context.Context) []model.Message {
	out := buildHistory(t.prior)
	if t.Query.Model != "" || !t.role.Vision {
		return out
	}
	at, left := len(out), subjects.MaxImages
	for _, past := range slices.Backward(t.prior.Turns) {
		at -= len(past.Messages) + 2 // question, messages, answer
		for _, a := range past.Attachments {
			if !a.IsImage() || left == 0 {
				continue
			}
			if _, err := attachment.Read(ctx, t.Out, t.Session, a); err != nil {
				continue
			}
			left--
			out[at].Images = append(out[at].Images, listImages(t.Session, []subjects.Attachment{a})...)
		}
	}
	return out
}
