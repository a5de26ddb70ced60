package model

import (
	"context"
	"slices"
	"sync/atomic"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/pkg/model"
	"conclave/subjects"
)

// maxImages bounds the images of a request: those of the question and of the conversation before it.
const maxImages = 2 * subjects.MaxImages

// maxImageBytes bounds the images in memory for all requests that run or wait.
const maxImageBytes = 2 * maxImages * subjects.MaxImageBytes

// imageBudget counts the bytes of the images in memory.
type imageBudget struct{ used atomic.Int64 }

// reserve takes n bytes until release is called. It fails with [model.ErrBusy] when fewer are left.
func (b *imageBudget) reserve(n int64) (release func(), err error) {
	if b.used.Add(n) > maxImageBytes {
		b.used.Add(-n)
		return nil, errQueueFull
	}
	return func() { b.used.Add(-n) }, nil
}

func hasImages(r model.Request) bool {
	return slices.ContainsFunc(r.Messages, func(m model.Message) bool { return len(m.Images) > 0 })
}

// checkImages checks the images that the messages of r refer to, and returns their size in bytes. It fails with
// [model.ErrNoVision] when the model cannot read images, and with a fault when the caller is no respondent, an image is
// of another session than the request, one is named twice, or there are more than maxImages.
func (m *Model) checkImages(ctx context.Context, out actor.Out, t target, r model.Request, caller,
	session string,
) (size int64, err error) {
	seen := map[string]bool{}
	for _, msg := range r.Messages {
		for _, image := range msg.Images {
			switch {
			case !t.info.Vision:
				return 0, model.NoVisionError(t.name, subjects.ModelList{Models: m.listModels(ctx, out.Now())}.Seeing())
			case !slices.Contains(subjects.Respondents, caller):
				return 0, subjects.Faultf(subjects.CodeDenied, "%s may not have images read", caller)
			case image.Session != session:
				return 0, subjects.Faultf(subjects.CodeDenied, "the image belongs to another session")
			case seen[image.SHA256]:
				return 0, subjects.Faultf(subjects.CodeMalformed, "an image is named twice")
			case len(seen) == maxImages:
				return 0, subjects.Faultf(subjects.CodeMalformed, "more than %d images", maxImages)
			}
			seen[image.SHA256] = true
			size += int64(max(image.Size, 0))
		}
	}
	return size, nil
}

// loadImages reads the images of r, which checkImages accepted. It fails when one of them is not stored in its session.
func loadImages(ctx context.Context, out actor.Out, r model.Request) error {
	for _, msg := range r.Messages {
		for i, image := range msg.Images {
			data, err := attachment.Read(ctx, out, image.Session,
				subjects.Attachment{SHA256: image.SHA256, Type: image.Type, Size: image.Size})
			if err != nil {
				return err
			}
			msg.Images[i].Data = data
		}
	}
	return nil
}
