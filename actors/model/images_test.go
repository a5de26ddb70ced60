package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"strings"
	"testing"

	"conclave/pkg/attachment"
	llm "conclave/pkg/model"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// The model server gets the bytes of an image that the generator refers to. Refused before the server is asked, and
// denied in the audit log unless malformed, are a model without vision, an image of another session, one that is not
// stored or named twice, and a caller that answers no questions.
func TestBusImages(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 9, 9))); err != nil {
		t.Fatal(err)
	}
	f, err := attachment.Decode(t.Context(), subjects.AttachmentFile, "photo.png", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	w := newBusHarness(t,
		scriptserver.Script{
			"seer": {{
				When:  scriptserver.When{Images: []string{f.SHA256}},
				Reply: scriptserver.Reply{Content: "A heron."},
			}},
		}, nil,
		scriptserver.WithModels(scriptserver.Model{Name: "seer", Family: "f", Vision: true},
			scriptserver.Model{Name: "blind", Family: "f"}))
	if err := attachment.Store(t.Context(), w.out("user", "", ""), "s1", f.Image); err != nil {
		t.Fatal(err)
	}
	ask := func(caller, name string, images ...llm.Image) (string, error) {
		r := newRequest("What is this?")
		r.Model, r.Messages[0].Images = name, images
		m, _, err := llm.Collect(wire.Client{Out: w.out(caller, "s1", "q1"), Timeout: soon}.Chat(t.Context(), r))
		return m.Content, err
	}
	stored := llm.Image{Session: "s1", SHA256: f.SHA256, Type: f.Type, Size: f.Size}
	other, missing := stored, stored
	other.Session, missing.SHA256 = "s2", strings.Repeat("0", 64)
	if _, err := ask(subjects.Generator, "blind", stored); !errors.Is(err, llm.ErrNoVision) ||
		!strings.Contains(fmt.Sprint(err), "blind; ask one that can with --model: seer") {
		t.Errorf("a model without vision: %v", err)
	}
	for _, tt := range []struct {
		name, caller, code string
		images             []llm.Image
	}{
		{"of another session", subjects.Generator, subjects.CodeDenied, []llm.Image{other}},
		{"for a caller that answers no questions", "critic", subjects.CodeDenied, []llm.Image{stored}},
		{"named twice", subjects.Generator, subjects.CodeMalformed, []llm.Image{stored, stored}},
		{"not stored", subjects.Generator, subjects.CodeNoAttachment, []llm.Image{missing}},
	} {
		var fault *subjects.Fault
		if _, err := ask(tt.caller, "seer", tt.images...); !errors.As(err, &fault) || fault.Code != tt.code {
			t.Errorf("an image %s: %v, want %s", tt.name, err, tt.code)
		}
	}
	if n := len(w.srv.Requests()); n != 0 {
		t.Errorf("the model server was asked %d times", n)
	}
	if said, err := ask(subjects.Generator, "seer", stored); err != nil || said != "A heron." {
		t.Errorf("%q, %v", said, err)
	}
	var reasons []string
	for _, r := range w.auditRecords() {
		if r.Status == subjects.StatusDenied {
			reasons = append(reasons, r.Reason)
		}
	}
	if got := strings.Join(reasons, " "); got != "model_no_vision denied denied attachment_missing" {
		t.Errorf("denials in the audit log: %q", got)
	}
}
