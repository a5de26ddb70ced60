// Package attachment reads files that come with a question, and stores and reads attached images on the bus. Text is
// extracted and stays in the question; an image is stored in the stream ATTACHMENTS, in pieces, and the question refers
// to it by its SHA-256. Everything here is untrusted content.
package attachment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/document"
	"conclave/pkg/text"
	"conclave/subjects"
)

// File is a file as an attachment. Image is the content of an image, to be stored with [Store]; nil for text.
type File struct {
	subjects.Attachment
	Image []byte
}

// Decode returns the attachment for the content of a file. The content decides whether it is an image or a document,
// not the name. Its errors say what to do and do not repeat the name: it rejects images of other types than
// [subjects.ImageTypes], over [subjects.MaxImageBytes] or with more than maxPixels, and documents that
// [document.Decode] rejects.
func Decode(ctx context.Context, source, name string, data []byte) (File, error) {
	f := File{Attachment: subjects.Attachment{Source: source, Name: text.OneLine(name, subjects.MaxAttachmentName)}}
	if kind := imageType(data); kind != "" {
		if err := checkImage(kind, data); err != nil {
			return File{}, err
		}
		f.SHA256, f.Type, f.Size, f.Image = hashHex(data), kind, len(data), data
		return f, nil
	}
	d, err := document.Decode(ctx, data, document.Options{})
	if err != nil {
		return File{}, err
	}
	f.Text = strings.Trim(d.Text, "\r\n")
	return f, nil
}

// imageType returns the media type of an image by its first bytes, "" for anything else.
func imageType(data []byte) string {
	if kind := http.DetectContentType(data); strings.HasPrefix(kind, "image/") {
		return kind
	}
	if len(data) >= 12 && bytes.Equal(data[4:8], []byte("ftyp")) {
		switch string(data[8:12]) {
		case "heic", "heix", "mif1", "hevc":
			return "image/heic"
		case "avif", "avis":
			return "image/avif"
		}
	}
	return ""
}

// checkImage returns why an image is not accepted, nil when it is.
func checkImage(kind string, data []byte) error {
	switch {
	case !slices.Contains(subjects.ImageTypes, kind):
		return fmt.Errorf("images of the type %s are not accepted: convert it to PNG, JPEG or WebP",
			strings.TrimPrefix(kind, "image/"))
	case len(data) > subjects.MaxImageBytes:
		return fmt.Errorf("the image has %.1f MB, at most %d MB (limit of an image): make it smaller, or cut out the "+
			"part that matters", float64(len(data))/(1<<20), subjects.MaxImageBytes>>20)
	}
	width, height, err := dimensions(kind, data)
	switch {
	case err != nil:
		return fmt.Errorf("the image is damaged: %w", err)
	case width < 1 || height < 1 || width*height > maxPixels:
		return fmt.Errorf("the image has %d x %d pixels, at most %d million (limit of an image): make it smaller",
			width, height, maxPixels/1_000_000)
	}
	return nil
}

// storeTimeout and readTimeout bound storing, reading and deleting one image.
const (
	storeTimeout = 30 * time.Second
	readTimeout  = 30 * time.Second
)

// Store stores an image under a session, and returns when all of its pieces are stored. Stored again it replaces
// itself, and is kept from then on. A [subjects.Fault] says that the stream is full.
func Store(ctx context.Context, out actor.Out, session string, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	sum, n := hashHex(data), 0
	for piece := range slices.Chunk(data, subjects.MaxPiece) {
		topic, err := subjects.AttachmentPiece.With(session, sum, strconv.Itoa(n))
		if err != nil {
			return fmt.Errorf("storing an attached image: %w", err)
		}
		if err := out.Publish(ctx, topic.Spec, piece, true); err != nil {
			return fmt.Errorf("storing an attached image: %w", err)
		}
		n++
	}
	return nil
}

// Read returns the image that a, a valid reference, names in a session. When the session has no such image, or not all
// of it, or its content has another hash, size or type than a says, the error is a [subjects.Fault] with the code
// [subjects.CodeNoAttachment]; any other error may be retried.
func Read(ctx context.Context, out actor.Out, session string, a subjects.Attachment) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := subjects.CheckAttachments([]subjects.Attachment{a}); err != nil || !a.IsImage() {
		return nil, subjects.Faultf(subjects.CodeNoAttachment, "the attachment %q is not a valid reference to an image",
			a.Describe())
	}
	data := make([]byte, 0, a.Size)
	for n := 0; len(data) < a.Size; n++ {
		topic, err := subjects.AttachmentPiece.With(session, a.SHA256, strconv.Itoa(n))
		if err != nil {
			return nil, fmt.Errorf("reading an attached image: %w", err)
		}
		m, err := actor.ReadStored(ctx, out, subjects.AttachmentPiece.Stream,
			map[string]any{"last_by_subj": topic.Name})
		switch {
		case err != nil:
			return nil, fmt.Errorf("reading an attached image: %w", err)
		case m == nil || len(m.Data) == 0:
			return nil, subjects.Faultf(subjects.CodeNoAttachment, "the attachment %q is not stored in this session, "+
				"or no longer: attach it again", a.Describe())
		}
		data = append(data, m.Data...)
	}
	if len(data) != a.Size || hashHex(data) != a.SHA256 || imageType(data) != a.Type {
		return nil, subjects.Faultf(subjects.CodeNoAttachment, "the attachment %q is damaged in the store, or is not "+
			"what the question says: attach it again", a.Describe())
	}
	if err := checkImage(a.Type, data); err != nil { // who stored it may not have checked it
		return nil, subjects.Faultf(subjects.CodeNoAttachment, "the attachment %q: %v", a.Describe(), err)
	}
	return data, nil
}

// listPieces is the subject of the JetStream API for listing the pieces of a session.
var listPieces = subjects.Spec{Name: "core.API.STREAM.INFO." + subjects.AttachmentPiece.Stream}

// Delete overwrites every image of a session with nothing. It fails when one of them could not be overwritten, or there
// are more than the server lists at once; it may be called again then.
func Delete(ctx context.Context, out actor.Out, session string) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := subjects.CheckToken(session); err != nil {
		return fmt.Errorf("deleting attached images: %w", err)
	}
	body, err := json.Marshal(map[string]string{"subjects_filter": "attachment." + session + ".*.*"})
	if err != nil {
		return err
	}
	reply, _, err := out.Request(ctx, listPieces, body)
	if err != nil {
		return fmt.Errorf("listing attached images: %w", err)
	}
	var info struct {
		Error *struct {
			Text string `json:"description"`
		} `json:"error"`
		Total int `json:"total"`
		State struct {
			Subjects map[string]int `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(reply, &info); err != nil {
		return fmt.Errorf("listing attached images: %w", err)
	}
	if info.Error != nil {
		return fmt.Errorf("listing attached images: %s", info.Error.Text)
	}
	spec := subjects.AttachmentPiece.Spec
	for spec.Name = range info.State.Subjects {
		if err := out.Publish(ctx, spec, nil, true); err != nil {
			return fmt.Errorf("deleting attached images: %w", err)
		}
	}
	if info.Total > len(info.State.Subjects) {
		return errors.New("deleting attached images: there are more; delete the session again")
	}
	return nil
}

// hashHex is the SHA-256 of data, hexadecimal.
func hashHex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
