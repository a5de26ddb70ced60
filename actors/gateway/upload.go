package gateway

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"conclave/pkg/attachment"
	"conclave/pkg/document"
	"conclave/pkg/text"
	"conclave/subjects"
)

// maxUpload bounds a form with files, in bytes. The limits of texts and images apply as well.
const maxUpload = 32 << 20

// readQuestion reads the body of POST /query: JSON, or a form (multipart/form-data) with the text fields of
// [Question], and any number of parts "file" and, for pasted texts, "paste". Images are the content of the images among
// them. It rejects what [Gateway.readBody] rejects, unknown and repeated fields, and files that [attachment.Decode]
// rejects.
func (g *Gateway) readQuestion(w http.ResponseWriter, r *http.Request) (in Question, images [][]byte, err error) {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || r.Header.Get("Content-Encoding") != "" {
		return in, nil, g.readBody(w, r, &in)
	}
	if base, _, err := mime.ParseMediaType(types[0]); err != nil || base != "multipart/form-data" {
		return in, nil, g.readBody(w, r, &in)
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxUpload)
	form, err := r.MultipartReader()
	if err != nil {
		return in, nil, malformedf("malformed form: %v", err)
	}
	fields := map[string]*string{
		"query": &in.Query, "session_id": &in.SessionID, "query_id": &in.QueryID,
		"model": &in.Model, "hint": &in.Hint, "mode": &in.Mode, "reference": &in.Reference,
	}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it is for the body only
			return in, images, nil
		}
		if err != nil {
			return in, nil, g.explainUpload(w, err)
		}
		name := part.FormName()
		into, known := fields[name]
		switch {
		case name == "file":
			f, err := g.readFile(w, r, part)
			if err != nil {
				return in, nil, err
			}
			in.Attachments = append(in.Attachments, f.Attachment)
			if f.Image != nil {
				images = append(images, f.Image)
			}
		case !known && name != "paste":
			return in, nil, malformedf("unknown or repeated field %q; the fields are query, session_id, query_id, "+
				"model, hint, mode, reference, paste and file", text.Clip(name, 60))
		default:
			data, err := io.ReadAll(io.LimitReader(part, maxBody+1))
			if err != nil {
				return in, nil, g.explainUpload(w, err)
			}
			if len(data) > maxBody {
				return in, nil, tooLargef("field %s too large; at most %d KB", name, maxBody>>10)
			}
			if name == "paste" {
				// a form has CRLF
				in.Attachments = append(in.Attachments, subjects.Attachment{
					Source: subjects.AttachmentPaste,
					Text:   strings.ReplaceAll(string(data), "\r\n", "\n"),
				})
				continue
			}
			*into = string(data)
			delete(fields, name)
		}
	}
}

// readFile reads a part "file". The content decides what it is, not its name or content type.
func (g *Gateway) readFile(w http.ResponseWriter, r *http.Request, part *multipart.Part) (attachment.File, error) {
	name := text.OneLine(part.FileName(), subjects.MaxAttachmentName)
	data, err := io.ReadAll(io.LimitReader(part, document.MaxBytes+1))
	if err != nil {
		return attachment.File{}, g.explainUpload(w, err)
	}
	if len(data) > document.MaxBytes {
		return attachment.File{}, tooLargef("file %q too large; at most %d MB (limit of a file): send a part of it",
			name, document.MaxBytes>>20)
	}
	f, err := attachment.Decode(r.Context(), subjects.AttachmentFile, name, data)
	if err != nil {
		return attachment.File{}, malformedf("file %q: %v", name, err)
	}
	return f, nil
}

// explainUpload returns the problem of a form that could not be read to its end. The connection is closed.
func (g *Gateway) explainUpload(w http.ResponseWriter, err error) error {
	w.Header().Set("Connection", "close")
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return tooLargef("form too large; at most %d MB: send fewer files", maxUpload>>20)
	}
	return malformedf("incomplete form, or timeout after %s", g.bodyTimeout)
}
