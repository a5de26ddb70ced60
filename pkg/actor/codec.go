package actor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// replyCodec is the encoding of the reply to a request in the encoding c: JSON for one in plain text.
func replyCodec(c subjects.Codec) subjects.Codec {
	if c == subjects.Text {
		return subjects.JSON
	}
	return c
}

// detectCodec returns the encoding by the Content-Type header, whose parameters are ignored. Without one it decides by
// the first byte, so that a bare `nats pub` works: "{" is JSON (no payload is a single msgpack integer), otherwise
// plain text where spec accepts it, then the codec of spec. A raw subject has no encoding, whatever the header says. It
// rejects other types, and plain text where spec does not accept it.
func detectCodec(contentType string, spec subjects.Spec, data []byte) (subjects.Codec, *subjects.Fault) {
	if spec.Codec == subjects.Raw {
		return subjects.Raw, nil
	}
	base, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(base)) {
	case subjects.TypeJSON:
		return subjects.JSON, nil
	case subjects.TypeMsgpack, "application/x-msgpack":
		return subjects.Msgpack, nil
	case subjects.TypeText:
		if spec.PlainText {
			return subjects.Text, nil
		}
	case "":
		trimmed := bytes.TrimLeft(data, " \t\r\n")
		switch {
		case len(trimmed) > 0 && trimmed[0] == '{':
			return subjects.JSON, nil
		case spec.PlainText:
			return subjects.Text, nil
		case spec.Codec == subjects.Msgpack:
			return subjects.Msgpack, nil
		}
		return subjects.JSON, nil
	}
	return 0, subjects.Faultf(subjects.CodeCodec, "this subject accepts %s", acceptedCodecs(spec))
}

func acceptedCodecs(spec subjects.Spec) string {
	if spec.PlainText {
		return "JSON, msgpack or plain text"
	}
	return "JSON or msgpack"
}

func encode(c subjects.Codec, v any) ([]byte, error) {
	switch c {
	case subjects.Msgpack:
		return encodeMsgpack(v)
	case subjects.Raw:
		if data, ok := v.([]byte); ok {
			return data, nil
		}
		return nil, fmt.Errorf("a raw payload is bytes, not %T", v)
	}
	return json.Marshal(v)
}

// encodeMsgpack encodes v as msgpack with the field names of the json tags and the shortest form of integers.
func encodeMsgpack(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&b)
	enc.SetCustomStructTag("json")
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decode decodes data into the struct that v points to by the rules of [strict.DecodeJSON] and [strict.DecodeMsgpack].
// Error texts are for the sender: they may quote a key and name no Go types. v may be partly filled when it fails.
func decode(c subjects.Codec, data []byte, v any) error {
	switch c {
	case subjects.Msgpack:
		return strict.DecodeMsgpack(data, v)
	case subjects.Text:
		return decodeText(data, v)
	case subjects.Raw:
		p, ok := v.(*[]byte)
		if !ok {
			return strict.DecodeError{Reason: "raw bytes are not accepted here"}
		}
		*p = data
		return nil
	}
	return strict.DecodeJSON(data, v)
}

// decodeText decodes plain text into a [subjects.Query] or a [subjects.Cancel], trimmed, with invalid UTF-8 replaced.
// It rejects empty text and every other payload.
func decodeText(data []byte, v any) error {
	text := strings.TrimSpace(strings.ToValidUTF8(string(data), "\uFFFD"))
	if text == "" {
		return strict.DecodeError{Reason: "the text is empty"}
	}
	switch p := v.(type) {
	case *subjects.Query:
		p.Query = text
	case *subjects.Cancel:
		p.Reason = text
	default:
		return strict.DecodeError{Reason: "plain text is not accepted here"}
	}
	return nil
}

// sanitizeError returns the text of an error on one line, with control characters as spaces and invalid UTF-8 as "?",
// clipped to 160: it may quote bytes of the sender.
func sanitizeError(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "?"))
	return text.Clip(s, 160)
}
