package actor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// Deliver runs one message through a route as the runtime does, without a bus: same envelope, deadline, strict decoding
// and rejections. body is encoded with the route's codec unless it is a []byte; empty headers are left out. It returns
// the reply as JSON ("" for an event; streamed pieces one per line), also with the handler's error. A rejection calls
// the route's reject hook and returns "" and the fault. A panic is not recovered.
func Deliver(ctx context.Context, route Route, subject string, header map[string]string, body any, out Out) (string,
	error,
) {
	data, ok := body.([]byte)
	if !ok {
		var err error
		if data, err = encode(route.spec.Codec, body); err != nil {
			return "", err
		}
	}
	h := nats.Header{}
	if !ok {
		h.Set(subjects.HeaderType, route.spec.Codec.String())
	}
	for k, v := range header {
		if v != "" {
			h.Set(k, v)
		}
	}
	in, fault := route.readMessage(subject, h, data, out.Now())
	if fault == nil {
		if !in.deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, in.deadline.Sub(in.time))
			defer cancel()
		}
		var pieces []string
		in.piece = func(data []byte) error {
			pieces = append(pieces, FormatJSON(subjects.Spec{Codec: replyCodec(in.codec)}, data))
			return nil
		}
		reply, err := route.handle(ctx, in, out)
		var undecoded errMalformed
		switch {
		case errors.As(err, &undecoded):
		case route.stream:
			return strings.Join(pieces, "\n"), err
		default:
			return FormatJSON(subjects.Spec{Codec: replyCodec(in.codec)}, reply), err
		}
		fault = undecoded.fault
	}
	if route.reject != nil {
		route.reject(ctx, Rejection{in.subject, in.tokens, in.query, in.session, fault}, out)
	}
	return "", fault
}

// FormatJSON returns a body as JSON for display: msgpack is decoded without a schema, and any other codec returned as
// it is, as is a body that [strict.CheckMsgpack] rejects. The result need not be valid JSON.
func FormatJSON(spec subjects.Spec, body []byte) string {
	if spec.Codec != subjects.Msgpack || len(body) == 0 {
		return string(body)
	}
	var v any
	if strict.CheckMsgpack(body) != nil || msgpack.Unmarshal(body, &v) != nil {
		return string(body)
	}
	b, err := json.Marshal(showBytes(v))
	if err != nil {
		return string(body)
	}
	return string(b)
}

// showBytes replaces the byte strings in a decoded value that hold JSON by that JSON.
func showBytes(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = showBytes(v[k])
		}
	case []any:
		for i := range v {
			v[i] = showBytes(v[i])
		}
	case []byte:
		if json.Valid(v) {
			return json.RawMessage(v)
		}
	}
	return v
}
