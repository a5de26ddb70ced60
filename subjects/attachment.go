package subjects

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Attachment is text that comes with a question and that the user did not type: piped, pasted, or read from a file. It is
// untrusted content, because its origin cannot be attested.
type Attachment struct {
	Name   string `json:"name,omitempty"`   // for users: a file name, for example
	Source string `json:"source,omitempty"` // how it came; "" counts as [AttachmentOther]
	Text   string `json:"text"`
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
	MaxAttachments     = 16
	MaxAttachmentName  = 200       // bytes
	MaxAttachmentBytes = 112 << 10 // of all texts together: a turn must fit into the window of a model and into its checkpoint
)

// PipedQuestion is the text of a question whose whole content was piped in. It requests no action, so that it does not
// authorize one.
const PipedQuestion = "The attached text holds the question."

// CheckAttachments returns the first reason why a question with these attachments is rejected, nil when there is none: more
// than the limits above, an unknown source, a blank text, invalid UTF-8, or a name with line breaks or other control characters.
func CheckAttachments(all []Attachment) error {
	if len(all) > MaxAttachments {
		return fmt.Errorf("%d attachments, at most %d", len(all), MaxAttachments)
	}
	total := 0
	for i, a := range all {
		total += len(a.Text)
		switch {
		case len(a.Name) > MaxAttachmentName:
			return fmt.Errorf("the name of attachment %d has %d bytes, at most %d", i+1, len(a.Name), MaxAttachmentName)
		case !utf8.ValidString(a.Name) || strings.ContainsFunc(a.Name, isControl):
			return fmt.Errorf("the name of attachment %d has control characters", i+1)
		case !utf8.ValidString(a.Text):
			return fmt.Errorf("attachment %d is not UTF-8 text", i+1)
		case strings.TrimSpace(a.Text) == "":
			return fmt.Errorf("attachment %d is empty", i+1)
		}
		switch a.Source {
		case "", AttachmentPipe, AttachmentFile, AttachmentPaste, AttachmentOther:
		default:
			return fmt.Errorf("attachment %d has an unknown source: use %s, %s, %s or %s", i+1, AttachmentPipe, AttachmentFile, AttachmentPaste, AttachmentOther)
		}
	}
	if total > MaxAttachmentBytes {
		return fmt.Errorf("the attachments have %d bytes, at most %d", total, MaxAttachmentBytes)
	}
	return nil
}

// isControl reports whether r could break a line or change how the text around it is displayed.
func isControl(r rune) bool {
	return r < ' ' || r >= 0x7f && r <= 0x9f || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// Describe names an attachment for users: its name, or its source when it has none.
func (a Attachment) Describe() string {
	if a.Name != "" {
		return a.Name
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
