package gateway_test

import (
	"bytes"
	"image"
	"image/png"
	"io"
	"mime/multipart"
	"strings"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/document"
	"conclave/subjects"
)

// newForm returns the body and content type of a form. The parts are name and content by turns; a name that begins with
// "file:" is a file of that name.
func newForm(t *testing.T, parts ...string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		name, isFile := strings.CutPrefix(parts[i], "file:")
		create := w.CreateFormField
		if isFile {
			create = func(name string) (io.Writer, error) { return w.CreateFormFile("file", name) }
		}
		field, err := create(name)
		if err == nil {
			_, err = field.Write([]byte(parts[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

// A form carries files: text arrives in the question, an image is stored in the session before the question is asked.
// What a file is, its content decides.
func testFilesOfAForm(t *testing.T, b *bustest.Bus) {
	w := startGateway(t, b, setup{})
	var photo bytes.Buffer
	if err := png.Encode(&photo, image.NewGray(image.Rect(0, 0, 5, 5))); err != nil {
		t.Fatal(err)
	}
	reader := w.out("model")
	w.answerQuestions(func(q subjects.Query, out actor.Out) {
		want := subjects.Attachment{Name: "mail.png", Source: subjects.AttachmentFile, Text: "Dear user"}
		if q.Query != "compare" || q.Model != "seer" || q.SessionID != "s1" || len(q.Attachments) != 3 ||
			q.Attachments[0] != want ||
			q.Attachments[2] != (subjects.Attachment{Source: subjects.AttachmentPaste, Text: "Dear\nuser"}) {
			t.Errorf("asked %+v", q)
		}
		if data, err := attachment.Read(t.Context(), reader, q.SessionID, q.Attachments[1]); err != nil ||
			!bytes.Equal(data, photo.Bytes()) {
			t.Errorf("stored: %d bytes, %v", len(data), err)
		}
		emitStored(w, out, subjects.ResponseGeneration, reply(q, "short"))
	})
	body, kind := newForm(t, "query", "compare", "session_id", "s1", "model", "seer", "file:mail.png", "Dear user\n",
		"file:../photo.txt", photo.String(), "paste", "Dear\r\nuser")
	if status, _, said := w.do("POST", "/query", body, "Content-Type", kind); status != 200 ||
		!strings.Contains(said, "short") {
		t.Errorf("%d %s", status, said)
	}
	for _, tt := range []struct {
		name   string
		parts  []string
		status int
		says   string
	}{
		{"no question", []string{"file:a", "x"}, 400, "query: write the question"},
		{"an unknown field", []string{"query", "a", "trusted", "1"}, 400, "unknown or repeated field"},
		{"a field twice", []string{"query", "a", "query", "b"}, 400, "unknown or repeated field"},
		{
			"a type that is not accepted",
			[]string{"query", "a", "file:a.png", "GIF89a\x01\x00\x01\x00"},
			400,
			"convert it to PNG",
		},
		{"a program", []string{"query", "a", "file:a.txt", "\x7fELF\x02\x01\x01\x00\x00"}, 400, "not a text file"},
		{
			"more text than fits",
			[]string{"query", "a", "file:a.txt", strings.Repeat("word ", subjects.MaxAttachmentBytes/5+1)},
			400,
			"bytes of text, at most 114688",
		},
		{
			"an image over its limit",
			[]string{"query", "a", "file:a.png", photo.String() + strings.Repeat("x", subjects.MaxImageBytes)},
			400,
			"limit of an image",
		},
		{
			"a file over its limit",
			[]string{"query", "a", "file:a.txt", strings.Repeat("x", document.MaxBytes+1)},
			413,
			"limit of a file",
		},
	} {
		body, kind := newForm(t, tt.parts...)
		if status, _, said := w.do("POST", "/query", body, "Content-Type", kind); status != tt.status ||
			!strings.Contains(said, tt.says) {
			t.Errorf("%s: %d %s", tt.name, status, said)
		}
	}
	if status, _, said := w.do("POST", "/query", body, "Content-Type", kind, "Origin",
		"http://elsewhere.example"); status != 403 {
		t.Errorf("a form of another site: %d %s", status, said)
	}
	if status, _, said := w.do("POST", "/query", body[:len(body)/2], "Content-Type", kind); status != 400 {
		t.Errorf("half a form: %d %s", status, said)
	}
}
