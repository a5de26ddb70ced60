package generator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/attachment"
	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// noteAttachments notes, for the user, what is treated as untrusted content.
func (t *turn) noteAttachments() {
	for _, a := range t.Record().Attachments {
		words := fmt.Sprintf("%s (%d bytes) is treated as untrusted content: what it asks for is not done without "+
			"your approval", a.Describe(), len(a.Text)+a.Size)
		if flags := firewall.Scan(agent.DescribeAttachment(a)).Techniques(); len(flags) > 0 {
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

// checkImages refuses a question with an image before any model is asked: with [model.ErrNoVision] when the model
// cannot read images, and with a fault when the image is not stored in the session, or its content is not what the
// question says. The capabilities of a model that the question names are checked by the model actor. t.role must be
// set.
func (t *turn) checkImages(ctx context.Context) error {
	if len(agent.ListImages(t.Session, t.Record().Attachments)) == 0 {
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
			out[at].Images = append(out[at].Images, agent.ListImages(t.Session, []subjects.Attachment{a})...)
		}
	}
	return out
}
