package subjects

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Attachment is content that comes with a question and that the user did not type: text that was piped, pasted or read
// from a file, or an image. It is untrusted content, because its origin cannot be attested.
//
// Text is part of the question, because the broker reads the addresses in it. An image is not: it is stored in
// ATTACHMENTS under the session of the question, and SHA256, Type and Size refer to it. Text is empty then.
type Attachment struct {
	Name   string `json:"name,omitempty"`   // for users: a file name, for example
	Source string `json:"source,omitempty"` // how it came; "" counts as [AttachmentOther]
	Text   string `json:"text,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of an image: 64 lower-case hexadecimal digits
	Type   string `json:"type,omitempty"`   // of an image: one of [ImageTypes]
	Size   int    `json:"size,omitempty"`   // of an image: bytes
}

// Sources of an [Attachment].
const (
	AttachmentPipe  = "pipe"  // standard input of a command
	AttachmentFile  = "file"  // a file that the user named
	AttachmentPaste = "paste" // pasted into a terminal or page
	AttachmentOther = "other" // not stated by the client
)

// Limits on the attachments of one question. The limit on the whole message ([MaxBody]) applies as well.
const (
	MaxAttachments    = 16
	MaxAttachmentName = 200 // bytes
	// of all texts together: a turn must fit into the window of a model and into its checkpoint
	MaxAttachmentBytes = 112 << 10
	MaxImages          = 4
	MaxImageBytes      = 5 << 20 // of one image: the smallest limit of the model services
)

// ImageTypes are the media types of images that are accepted: those that every model server reads.
var ImageTypes = []string{"image/png", "image/jpeg", "image/webp"}

// MaxPiece is the size of a stored piece of an image, in bytes; only the last one may be smaller.
const MaxPiece = 256 << 10

// PipedQuestion is the text of a question whose whole content was piped in. It requests no action, so that it does not
// authorize one.
const PipedQuestion = "The attached text holds the question."

// CheckAttachments returns the first reason why a question with these attachments is rejected, nil when there is none:
// more than the limits above, an unknown source, a blank text, invalid UTF-8, a name with line breaks or other control
// characters, an invalid reference to an image, or an image with a text.
func CheckAttachments(all []Attachment) error {
	if len(all) > MaxAttachments {
		return fmt.Errorf("%d attachments, at most %d", len(all), MaxAttachments)
	}
	total, images := 0, 0
	for i, a := range all {
		total += len(a.Text)
		if a.IsImage() {
			images++
		}
		switch {
		case len(a.Name) > MaxAttachmentName:
			return fmt.Errorf("the name of attachment %d has %d bytes, at most %d", i+1, len(a.Name), MaxAttachmentName)
		case !utf8.ValidString(a.Name) || strings.ContainsFunc(a.Name, isControl):
			return fmt.Errorf("the name of attachment %d has control characters", i+1)
		case !utf8.ValidString(a.Text):
			return fmt.Errorf("attachment %d is not UTF-8 text", i+1)
		case a.IsImage():
			if err := a.checkImage(); err != nil {
				return fmt.Errorf("attachment %d: %w", i+1, err)
			}
		case strings.TrimSpace(a.Text) == "":
			return fmt.Errorf("attachment %d is empty", i+1)
		}
		switch a.Source {
		case "", AttachmentPipe, AttachmentFile, AttachmentPaste, AttachmentOther:
		default:
			return fmt.Errorf("attachment %d has an unknown source: use %s, %s, %s or %s", i+1, AttachmentPipe,
				AttachmentFile, AttachmentPaste, AttachmentOther)
		}
	}
	switch {
	case total > MaxAttachmentBytes:
		return fmt.Errorf("the attachments have %d bytes of text, at most %d", total, MaxAttachmentBytes)
	case images > MaxImages:
		return fmt.Errorf("%d images, at most %d: ask about fewer at once", images, MaxImages)
	}
	return nil
}

// IsImage reports whether a is a reference to a stored image, valid or not.
func (a Attachment) IsImage() bool { return a.SHA256 != "" || a.Type != "" || a.Size != 0 }

// checkImage returns why the reference of a to an image is rejected, nil when it is valid.
func (a Attachment) checkImage() error {
	switch {
	case a.Text != "":
		return errors.New("an image has no text")
	case len(a.SHA256) != 64 || strings.Trim(a.SHA256, "0123456789abcdef") != "":
		return errors.New("sha256 must have 64 lower-case hexadecimal digits")
	case !slices.Contains(ImageTypes, a.Type):
		return fmt.Errorf("unknown image type: use %s", strings.Join(ImageTypes, ", "))
	case a.Size < 1 || a.Size > MaxImageBytes:
		return fmt.Errorf("the image has %d bytes, at most %d", a.Size, MaxImageBytes)
	}
	return nil
}

// Content is what can be read of an attachment as text: its text, or a description of the image.
func (a Attachment) Content() string {
	if a.IsImage() {
		return fmt.Sprintf("(an image, %s, %d bytes)", a.Type, a.Size)
	}
	return a.Text
}

// isControl reports whether r could break a line or change how the text around it is displayed.
func isControl(r rune) bool {
	return r < ' ' || r >= 0x7f && r <= 0x9f || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e ||
		r >= 0x2066 && r <= 0x2069
}

// Describe names an attachment for users: its name, or its source when it has none.
func (a Attachment) Describe() string {
	if a.Name != "" {
		return a.Name
	}
	if a.IsImage() {
		return "an image"
	}
	switch a.Source {
	case AttachmentPipe:
		return "piped text"
	case AttachmentFile:
		return "a file"
	case AttachmentPaste:
		return "pasted text"
	}
	return "attached text"
}
