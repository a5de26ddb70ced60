package actor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"conclave/pkg/text"
	"conclave/subjects"
)

// codec is the encoding of one message.
type codec subjects.Codec

// replyCodec is the encoding of the reply: JSON for a request in plain text.
func (c codec) replyCodec() codec {
	if subjects.Codec(c) == subjects.Text {
		return codec(subjects.JSON)
	}
	return c
}

// maxDepth bounds the nesting of a payload.
const maxDepth = 64

// detectCodec returns the encoding by the Content-Type header, whose parameters are ignored. Without one it decides by
// the first byte, so that a bare `nats pub` works: "{" is JSON (no payload is a single msgpack integer), otherwise
// plain text where spec accepts it, then the codec of spec. A raw subject has no encoding, whatever the header says. It
// rejects other types, and plain text where spec does not accept it.
func detectCodec(contentType string, spec subjects.Spec, data []byte) (codec, *subjects.Fault) {
	if spec.Codec == subjects.Raw {
		return codec(subjects.Raw), nil
	}
	base, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(base)) {
	case subjects.TypeJSON:
		return codec(subjects.JSON), nil
	case subjects.TypeMsgpack, "application/x-msgpack":
		return codec(subjects.Msgpack), nil
	case subjects.TypeText:
		if spec.PlainText {
			return codec(subjects.Text), nil
		}
	case "":
		trimmed := bytes.TrimLeft(data, " \t\r\n")
		switch {
		case len(trimmed) > 0 && trimmed[0] == '{':
			return codec(subjects.JSON), nil
		case spec.PlainText:
			return codec(subjects.Text), nil
		case spec.Codec == subjects.Msgpack:
			return codec(subjects.Msgpack), nil
		}
		return codec(subjects.JSON), nil
	}
	return 0, subjects.Faultf(subjects.CodeCodec, "this subject accepts %s", acceptedCodecs(spec))
}

func acceptedCodecs(spec subjects.Spec) string {
	if spec.PlainText {
		return "JSON, msgpack or plain text"
	}
	return "JSON or msgpack"
}

func encode(c codec, v any) ([]byte, error) {
	switch subjects.Codec(c) {
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

// decode decodes data strictly into the struct that v points to: unknown and duplicate keys, trailing bytes, wrong
// types and nesting deeper than maxDepth are errors. Error texts are for the sender: they may quote a key and name no
// Go types. v may be partly filled when it fails.
func decode(c codec, data []byte, v any) error {
	switch subjects.Codec(c) {
	case subjects.Msgpack:
		return decodeMsgpack(data, v)
	case subjects.Text:
		return decodeText(data, v)
	case subjects.Raw:
		p, ok := v.(*[]byte)
		if !ok {
			return decodeError{reason: "raw bytes are not accepted here"}
		}
		*p = data
		return nil
	}
	return decodeJSON(data, v)
}

// decodeText decodes plain text into a [subjects.Query] or a [subjects.Cancel], trimmed, with invalid UTF-8 replaced.
// It rejects empty text and every other payload.
func decodeText(data []byte, v any) error {
	text := strings.TrimSpace(strings.ToValidUTF8(string(data), "\uFFFD"))
	if text == "" {
		return decodeError{reason: "the text is empty"}
	}
	switch p := v.(type) {
	case *subjects.Query:
		p.Query = text
	case *subjects.Cancel:
		p.Reason = text
	default:
		return decodeError{reason: "plain text is not accepted here"}
	}
	return nil
}

// decodeMsgpack is decode for msgpack. It rejects everything but one map; [checkMsgpack] has the other rules.
func decodeMsgpack(data []byte, v any) error {
	if len(data) == 0 || !isMapCode(data[0]) {
		return decodeError{reason: "not a msgpack map"}
	}
	data, err := checkMsgpack(data, v)
	if err != nil {
		return err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(true)
	if err := dec.Decode(v); err != nil {
		return decodeError{reason: "not this subject's msgpack"}
	}
	return nil
}

func isMapCode(c byte) bool { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }

// decodeJSON is decode for JSON; [checkJSON] has the rules. Its errors name the field of a wrong type and no value.
func decodeJSON(data []byte, v any) error {
	data, err := checkJSON(data, v)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err = dec.Decode(v)
	var when *time.ParseError
	switch {
	case errors.As(err, new(*json.UnmarshalTypeError)):
		return ExplainJSON(err)
	case errors.As(err, &when):
		return decodeError{reason: "a time is not in RFC 3339"}
	case err != nil:
		return decodeError{reason: "not this subject's JSON"}
	}
	return nil
}

// ExplainJSON returns an error of package json for the sender of a body: a value of a wrong type is named by its field,
// without types of Go and without the value.
func ExplainJSON(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &wrong):
		return err
	case wrong.Field == "":
		return decodeError{reason: "a value is not " + describeType(wrong.Type)}
	}
	return decodeError{"not " + describeType(wrong.Type) + ": field", wrong.Field}
}

// describeType names the value that t expects, in an error for the sender: every kind without a name of its own is "a
// number that fits".
func describeType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a number that fits"
}

// decodeError is why a body was rejected. The sender gets both parts; a dead letter has the reason only, because detail
// quotes the body, which may hold a secret.
type decodeError struct{ reason, detail string }

func (e decodeError) Error() string {
	if e.detail == "" {
		return e.reason
	}
	return e.reason + " " + strconv.Quote(text.Clip(e.detail, 40))
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

// decodeAnyMsgpack decodes msgpack of any type for display; byte strings that hold JSON are shown as JSON. Depth and
// claimed lengths are bounded, because the decoder would exhaust stack or memory.
func decodeAnyMsgpack(data []byte) (any, error) {
	r := bytes.NewReader(data)
	return decodeAny(msgpack.NewDecoder(r), r, 0)
}

// decodeAny decodes the next value of dec, which reads from r, at this depth; see [decodeAnyMsgpack]. It rejects
// nesting deeper than maxDepth and a length without its bytes. Keys of any type become text; of duplicate keys the last
// one wins.
func decodeAny(dec *msgpack.Decoder, r *bytes.Reader, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	c, err := dec.PeekCode()
	if err != nil {
		return nil, err
	}
	switch {
	case isMapCode(c):
		n, err := dec.DecodeMapLen()
		if err != nil {
			return nil, err
		}
		m := map[string]any{}
		for range n {
			k, err := decodeAny(dec, r, depth+1)
			if err != nil {
				return nil, err
			}
			if m[fmt.Sprint(k)], err = decodeAny(dec, r, depth+1); err != nil {
				return nil, err
			}
		}
		return m, nil
	case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
		n, err := dec.DecodeArrayLen()
		if err != nil {
			return nil, err
		}
		a := []any{}
		for range n {
			v, err := decodeAny(dec, r, depth+1)
			if err != nil {
				return nil, err
			}
			a = append(a, v)
		}
		return a, nil
	}
	if claimedLength(r) > int64(r.Len()) { // the decoder would allocate the claimed length first
		return nil, io.ErrUnexpectedEOF
	}
	v, err := dec.DecodeInterface()
	if b, ok := v.([]byte); ok && json.Valid(b) {
		return json.RawMessage(b), err
	}
	return v, err
}

// claimedLength returns the length in bytes that the string, binary or extension at the reader's position claims,
// without reading it; 0 for types without a length field, the largest int64 when the field is cut off.
func claimedLength(r *bytes.Reader) int64 {
	var head [5]byte
	n, _ := r.ReadAt(head[:], r.Size()-int64(r.Len()))
	size := 0 // bytes of the length field
	switch head[0] {
	case 0xc4, 0xc7, 0xd9:
		size = 1
	case 0xc5, 0xc8, 0xda:
		size = 2
	case 0xc6, 0xc9, 0xdb:
		size = 4
	}
	if n < 1+size {
		return math.MaxInt64
	}
	var length int64
	for _, b := range head[1 : 1+size] {
		length = length<<8 | int64(b)
	}
	return length
}

// CheckJSONObject rejects data unless it is exactly one JSON object, without duplicate keys (also such that differ in
// case alone) and not nested too deep: one that any two readers read alike.
func CheckJSONObject(data []byte) error {
	_, err := checkJSON(data, new(any))
	return err
}

// DecodeStrict decodes JSON as messages are decoded: unknown fields, names in another case, duplicate keys, wrong types
// and trailing data are rejected.
func DecodeStrict(data []byte, v any) error { return decodeJSON(data, v) }

// DecodeStored decodes JSON that this program stored, perhaps an earlier build of it: fields that were renamed are read
// under their former names, unknown ones are ignored.
func DecodeStored(data []byte, v any) error {
	data, err := renameFormerKeys(data, v)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
