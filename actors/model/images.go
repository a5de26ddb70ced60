package model

import (
	"context"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/pkg/model"
	"conclave/subjects"
)

// maxImages bounds the images of a request: those of the question and of the conversation before it.
const maxImages = 2 * subjects.MaxImages

func hasImages(r model.Request) bool {
	return slices.ContainsFunc(r.Messages, func(m model.Message) bool { return len(m.Images) > 0 })
}

// loadImages reads the images of r, which its messages refer to, for the model t. It fails with [model.ErrNoVision] when the
// model cannot read images, before any is read, and with a fault when there are more than maxImages, or one of them is not
// stored in the session that its reference names.
func (m *Model) loadImages(ctx context.Context, out actor.Out, t target, r model.Request) error {
	if !t.info.Vision {
		return model.NoVisionError(t.name, subjects.ModelList{Models: m.listModels(ctx, out.Now())}.Seeing())
	}
	n := 0
	for _, msg := range r.Messages {
		for i, image := range msg.Images {
			if n++; n > maxImages {
				return subjects.Faultf(subjects.CodeMalformed, "more than %d images", maxImages)
			}
			data, err := attachment.Read(ctx, out, image.Session, subjects.Attachment{SHA256: image.SHA256, Type: image.Type, Size: image.Size})
			if err != nil {
				return err
			}
			msg.Images[i].Data = data
		}
	}
	return nil
}
