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

// The model server gets the bytes of an image that the generator refers to; a model without vision, and a reference that is
// not stored in the session, is refused before the server is asked, and the refusal is in the audit log.
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
	w := newBusHarness(t, scriptserver.Script{"seer": {{When: scriptserver.When{Images: []string{f.SHA256}}, Reply: scriptserver.Reply{Content: "A heron."}}}}, nil,
		scriptserver.WithModels(scriptserver.Model{Name: "seer", Family: "f", Vision: true}, scriptserver.Model{Name: "blind", Family: "f"}))
	if err := attachment.Store(t.Context(), w.out("user", "", ""), "s1", f.Image); err != nil {
		t.Fatal(err)
	}
	out := w.out(subjects.Generator, "s1", "q1")
	ask := func(name, session string) (string, error) {
		r := newRequest("What is this?")
		r.Model = name
		r.Messages[0].Images = []llm.Image{{Session: session, SHA256: f.SHA256, Type: f.Type, Size: f.Size}}
		m, _, err := llm.Collect(wire.Client{Out: out, Timeout: soon}.Chat(t.Context(), r))
		return m.Content, err
	}
	if _, err := ask("blind", "s1"); !errors.Is(err, llm.ErrNoVision) || !strings.Contains(fmt.Sprint(err), "blind; ask one that can with --model: seer") {
		t.Errorf("a model without vision: %v", err)
	}
	var fault *subjects.Fault
	if _, err := ask("seer", "s2"); !errors.As(err, &fault) || fault.Code != subjects.CodeNoAttachment {
		t.Errorf("an image of another session: %v", err)
	}
	if n := len(w.srv.Requests()); n != 0 {
		t.Errorf("the model server was asked %d times", n)
	}
	if said, err := ask("seer", "s1"); err != nil || said != "A heron." {
		t.Errorf("%q, %v", said, err)
	}
	var reasons []string
	for _, r := range w.auditRecords() {
		if r.Status == subjects.StatusDenied {
			reasons = append(reasons, r.Reason)
		}
	}
	if got := strings.Join(reasons, " "); got != subjects.CodeModelNoVision+" "+subjects.CodeNoAttachment {
		t.Errorf("denials in the audit log: %q", got)
	}
}
