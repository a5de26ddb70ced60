package attachment_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// newPNG returns a PNG of noise with a side of n pixels: about 3 n^2 bytes.
func newPNG(t testing.TB, n int) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	m := image.NewRGBA(image.Rect(0, 0, n, n))
	for i := range n * n {
		m.Set(i%n, i/n, color.RGBA{uint8(r.Uint32()), uint8(r.Uint32()), uint8(r.Uint32()), 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func newJPEG(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 4)), nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newWebP returns the header of a lossless WebP image with these dimensions.
func newWebP(width, height int) []byte {
	bits := uint32(width-1) | uint32(height-1)<<14
	return append([]byte("RIFF\x20\x00\x00\x00WEBPVP8L\x10\x00\x00\x00\x2f"), byte(bits), byte(bits>>8), byte(bits>>16),
		byte(bits>>24), 0, 0, 0, 0, 0, 0, 0)
}

func TestContentDecidesWhatAnAttachmentIs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file string
		data       []byte
		kind, text string // of the result
		wrong      string // part of the error
	}{
		{"a PNG under the name of a text", "notes.txt", newPNG(t, 4), "image/png", "", ""},
		{"a JPEG", "a.jpg", newJPEG(t), "image/jpeg", "", ""},
		{"a WebP", "a.webp", newWebP(640, 480), "image/webp", "", ""},
		{"a text under the name of an image", "photo.png", []byte("Buy milk.\n"), "", "Buy milk.", ""},
		{
			"a page under the name of an image", "photo.png", []byte("<html><body><p>Buy milk.</p></body></html>"), "",
			"Buy milk.", "",
		},
		{"a GIF", "a.gif", []byte("GIF89a\x01\x00\x01\x00"), "", "", "gif are not accepted: convert it to PNG"},
		{
			"a photo of a phone", "a.heic", []byte("\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1"), "", "",
			"heic are not accepted",
		},
		{"an image without its end", "a.png", newPNG(t, 4)[:20], "", "", "damaged"},
		{"more pixels than bytes suggest", "a.webp", newWebP(16000, 16000), "", "", "16000 x 16000 pixels, at most " +
			"40 million"},
		{
			"over the limit of an image", "a.png", append(newPNG(t, 4), make([]byte, subjects.MaxImageBytes)...), "",
			"",
			"at most 5 MB (limit of an image)",
		},
		{"a program", "notes.txt", []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00"), "", "", "not a text file"},
		{"nothing", "a.txt", nil, "", "", "no text in the file"},
	} {
		f, err := attachment.Decode(t.Context(), subjects.AttachmentFile, tt.file, tt.data)
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.wrong)
			}
			continue
		}
		if err != nil || f.Type != tt.kind || f.Text != tt.text || f.Name != tt.file || f.IsImage() != (tt.kind != "") {
			t.Errorf("%s: %+v, %v", tt.name, f.Attachment, err)
			continue
		}
		if f.IsImage() && (f.SHA256 != fmt.Sprintf("%x", sha256.Sum256(tt.data)) || f.Size != len(tt.data) ||
			!bytes.Equal(f.Image, tt.data)) {
			t.Errorf("%s: %+v does not describe its content", tt.name, f.Attachment)
		}
		if err := subjects.CheckAttachments([]subjects.Attachment{f.Attachment}); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestPDFWithoutItsReaderNamesThePackage changes PATH, so it runs alone.
func TestPDFWithoutItsReaderNamesThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := attachment.Decode(t.Context(), subjects.AttachmentFile, "letter.pdf", []byte("%PDF-1.4\n"))
	if err == nil || !strings.Contains(err.Error(), "install poppler-utils") {
		t.Errorf("%v, want the package to install", err)
	}
}

// TestPDFBecomesText uses a pdftotext of its own, which returns the file that it is given: what the real one makes of a
// PDF is tested in package document.
func TestPDFBecomesText(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pdftotext"), []byte("#!/bin/sh\nshift 4\n/bin/cat \"$1\"\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("TMPDIR", dir)
	f, err := attachment.Decode(t.Context(), subjects.AttachmentFile, "letter.png",
		[]byte("%PDF-1.4\nPay by Friday.\n"))
	if err != nil || f.IsImage() || !strings.Contains(f.Text, "Pay by Friday.") {
		t.Errorf("%+v, %v", f.Attachment, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.pdf")); len(left) > 0 {
		t.Errorf("%v is left behind", left)
	}
}

// store is a bus under the real grants with an image that the account user stored in the session s1.
type store struct {
	*bustest.Bus
	t    *testing.T
	data []byte
	ref  subjects.Attachment
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{Bus: bustest.Start(t), t: t, data: newPNG(t, 400)}
	f, err := attachment.Decode(t.Context(), subjects.AttachmentFile, "photo.png", s.data)
	if err != nil || len(s.data) <= subjects.MaxPiece {
		t.Fatalf("%d bytes, %v", len(s.data), err)
	}
	s.ref = f.Attachment
	s.write("user", "s1", s.data)
	return s
}

func (s *store) out(role string) actor.Out {
	s.t.Helper()
	out, err := actor.NewOut(s.Connect(role))
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *store) write(role, session string, data []byte) {
	s.t.Helper()
	if err := attachment.Store(s.t.Context(), s.out(role), session, data); err != nil {
		s.t.Fatalf("%s stores: %v", role, err)
	}
}

// checkMissing expects that the generator finds no image of this reference in a session.
func (s *store) checkMissing(name, session string, ref subjects.Attachment) {
	s.t.Helper()
	data, err := attachment.Read(s.t.Context(), s.out(subjects.Generator), session, ref)
	var f *subjects.Fault
	if !errors.As(err, &f) || f.Code != subjects.CodeNoAttachment || data != nil {
		s.t.Errorf("%s: %d bytes, %v", name, len(data), err)
	}
}

func TestStoredImageIsReadByThoseWhoNeedIt(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.write("gateway", "s2", s.data)
	s.write("gateway", "s1", s.data) // again: it replaces itself
	for role, session := range map[string]string{subjects.Generator: "s1", subjects.RespondentB: "s2", "model": "s1"} {
		if got, err := attachment.Read(t.Context(), s.out(role), session, s.ref); err != nil ||
			!bytes.Equal(got, s.data) {
			t.Errorf("%s reads %d bytes, %v", role, len(got), err)
		}
	}
}

func TestImageOfAnotherSessionCannotBeReadByItsHash(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.checkMissing("another session", "s2", s.ref)
	unknown := s.ref
	unknown.SHA256 = strings.Repeat("0", 64)
	s.checkMissing("a hash that nobody stored", "s1", unknown)
}

func TestStoredImageIsCheckedWhenItIsRead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, change := range map[string]func(*subjects.Attachment){
		"another type":  func(a *subjects.Attachment) { a.Type = "image/jpeg" },
		"a smaller one": func(a *subjects.Attachment) { a.Size-- },
		"a larger one":  func(a *subjects.Attachment) { a.Size++ },
		"no hash":       func(a *subjects.Attachment) { a.SHA256 = "" },
		"a wildcard":    func(a *subjects.Attachment) { a.SHA256 = "*" },
	} {
		ref := s.ref
		change(&ref)
		s.checkMissing(name, "s1", ref)
	}
	topic, err := subjects.AttachmentPiece.With("s1", s.ref.SHA256, "0")
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(s.data[:subjects.MaxPiece])
	forged[1000] ^= 1
	if err := s.out("user").Publish(t.Context(), topic.Spec, forged, true); err != nil {
		t.Fatal(err)
	}
	s.checkMissing("a changed bit", "s1", s.ref)
}

func TestDeletedSessionHasNoImages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.write("gateway", "s2", s.data)
	s.write("user", "s1", newJPEG(t))
	for range 2 { // also when there is nothing left
		if err := attachment.Delete(t.Context(), s.out(subjects.Generator), "s1"); err != nil {
			t.Fatal(err)
		}
	}
	s.checkMissing("after the deletion", "s1", s.ref)
	if _, err := attachment.Read(t.Context(), s.out(subjects.Generator), "s2", s.ref); err != nil {
		t.Errorf("the same image of another session: %v", err)
	}
	s.write("user", "s1", s.data)
	if _, err := attachment.Read(t.Context(), s.out(subjects.Generator), "s1", s.ref); err != nil {
		t.Errorf("attached again: %v", err)
	}
	if err := attachment.Delete(context.Background(), s.out(subjects.Generator), "*"); err == nil {
		t.Error("a wildcard is a session")
	}
}
