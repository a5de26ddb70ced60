package strict

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"
)

// DecodeMsgpack decodes the one msgpack map in data into the struct that v points to, whose fields must all have a json
// tag. It rejects what [CheckMsgpack] rejects, unknown fields and values of another type. Former field names are read
// as in [DecodeJSON]. v may be partly filled when it fails.
func DecodeMsgpack(data []byte, v any) error {
	if len(data) == 0 || !isMapCode(data[0]) {
		return DecodeError{Reason: "not a msgpack map"}
	}
	data, err := checkMsgpack(data, shapeOf(v))
	if err != nil {
		return err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(true)
	if err := dec.Decode(v); err != nil {
		return DecodeError{Reason: "not the msgpack that is expected here"}
	}
	return nil
}

// CheckMsgpack rejects data unless it is one msgpack value that the msgpack package can decode without exhausting stack
// or memory. It rejects duplicate keys, keys that are no text, nesting
// deeper than maxNesting, lengths without their bytes and trailing bytes.
func CheckMsgpack(data []byte) error {
	_, err := checkMsgpack(data, nil)
	return err
}

// checkMsgpack is [CheckMsgpack], and rejects unknown fields and values of another type than s has. It returns data
// with former field names replaced.
func checkMsgpack(data []byte, s *shape) ([]byte, error) {
	c := msgpackChecker{rest: data, size: len(data)}
	if err := c.value(s, 0); err != nil {
		return nil, err
	}
	if len(c.rest) > 0 {
		return nil, DecodeError{Reason: "trailing bytes after the msgpack value"}
	}
	return applyEdits(data, c.edits), nil
}

// msgpackChecker walks msgpack beside a shape without allocating what the message claims.
type msgpackChecker struct {
	rest  []byte
	size  int // of the whole
	edits []edit
}

var errMsgpackCut = DecodeError{Reason: "the msgpack is cut short or damaged"}

// item consumes one value: its code and its bytes without code and length, a small value's code itself. For a list and
// a map it returns the claimed number of elements or pairs, which are not consumed and may be more than there are. It
// rejects a value that is cut off and the unused code 0xc1.
func (c *msgpackChecker) item() (code byte, data []byte, n int, err error) {
	head, err := c.take(1)
	if err != nil {
		return 0, nil, 0, err
	}
	code = head[0]
	size, length := 0, 0 // bytes of the value, or of its length prefix
	switch k := code; {
	case k <= 0x7f, k >= 0xe0, k == 0xc0, k == 0xc2, k == 0xc3:
		data = head
	case k&0xf0 == 0x80, k&0xf0 == 0x90:
		n = int(k & 0x0f)
	case k&0xe0 == 0xa0:
		size = int(k & 0x1f)
	case k == 0xc4, k == 0xc7, k == 0xd9:
		length = 1
	case k == 0xc5, k == 0xc8, k == 0xda, k == 0xdc, k == 0xde:
		length = 2
	case k == 0xc6, k == 0xc9, k == 0xdb, k == 0xdd, k == 0xdf:
		length = 4
	case k == 0xca, k == 0xcb:
		size = 4 << (k - 0xca)
	case k >= 0xcc && k <= 0xcf:
		size = 1 << (k - 0xcc)
	case k >= 0xd0 && k <= 0xd3:
		size = 1 << (k - 0xd0)
	case k >= 0xd4 && k <= 0xd8:
		size = 1<<(k-0xd4) + 1 // its type
	default:
		return 0, nil, 0, errMsgpackCut
	}
	if length > 0 {
		b, err := c.take(length)
		if err != nil {
			return 0, nil, 0, err
		}
		var long [4]byte
		copy(long[4-length:], b)
		size = int(binary.BigEndian.Uint32(long[:]))
		switch {
		case code >= 0xdc:
			n, size = size, 0
		case code >= 0xc7 && code <= 0xc9:
			size++ // its type
		}
	}
	if size > 0 {
		data, err = c.take(size)
	}
	return code, data, n, err
}

// take consumes n bytes, or fails when there are fewer.
func (c *msgpackChecker) take(n int) ([]byte, error) {
	if n > len(c.rest) {
		return nil, errMsgpackCut
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b, nil
}

// value checks one value and everything below it against s. depth counts the lists and maps around it. It rejects
// nesting deeper than maxNesting and a value of another type.
func (c *msgpackChecker) value(s *shape, depth int) error {
	code, data, n, err := c.item()
	if err != nil {
		return err
	}
	if depth == maxNesting && (isMapCode(code) || isListCode(code)) {
		return errNesting
	}
	if !s.fits(code, data) {
		return DecodeError{Reason: "a value is not of its field's type"}
	}
	switch {
	case isMapCode(code):
		return c.pairs(s, n, depth)
	case isListCode(code):
		for range n {
			if err := c.value(s.element(), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs checks the n keys and values of a map. It rejects keys that are no text, unknown fields and duplicate keys; a
// former name and its present one are duplicates.
func (c *msgpackChecker) pairs(s *shape, n, depth int) error {
	var keys keySet
	for range n {
		from := c.size - len(c.rest)
		code, raw, _, err := c.item()
		if err != nil {
			return err
		}
		if !isTextCode(code) {
			return DecodeError{Reason: "a key is not a text"}
		}
		key := string(raw)
		f, known := s.member(key)
		if !known {
			return DecodeError{"unknown field", key}
		}
		if f.renamed != "" {
			name, err := msgpack.Marshal(f.renamed)
			if err != nil {
				return errMsgpackCut
			}
			c.edits = append(c.edits, edit{from, c.size - len(c.rest), name})
		}
		if !keys.add(cmp.Or(f.renamed, key)) {
			return DecodeError{"duplicate key", key}
		}
		if err := c.value(f.shape, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func isMapCode(c byte) bool { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }

func isListCode(c byte) bool { return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd }

func isTextCode(c byte) bool { return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb }

// fits reports whether a msgpack value of this code and these bytes has the type of the shape. Nil fits everywhere: it
// is the zero value. An integer outside the range of an int64 or uint64 field does not fit; an integer fits a float, a
// float64 no float32.
func (s *shape) fits(code byte, data []byte) bool {
	if s == nil || code == 0xc0 {
		return true
	}
	whole := code <= 0x7f || code >= 0xe0 || code >= 0xcc && code <= 0xd3
	negative := code >= 0xe0 || code >= 0xd0 && code <= 0xd3 && data[0] >= 0x80
	switch s.kind {
	case reflect.String:
		return isTextCode(code)
	case reflect.Bool:
		return code == 0xc2 || code == 0xc3
	case reflect.Int, reflect.Int64:
		return whole && (code != 0xcf || data[0] < 0x80)
	case reflect.Uint, reflect.Uint64:
		return whole && !negative
	case reflect.Float32, reflect.Float64:
		return whole || code == 0xca || code == 0xcb && s.kind == reflect.Float64
	case reflect.Slice, reflect.Array:
		return isListCode(code)
	case reflect.Struct, reflect.Map:
		return isMapCode(code)
	}
	return true
}
