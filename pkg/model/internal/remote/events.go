package remote

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

const maxEventBytes = 4 << 20

// eventReader splits a stream into the data of its events.
type eventReader struct {
	r *bufio.Reader
}

func newEventReader(r io.Reader) *eventReader { return &eventReader{r: bufio.NewReaderSize(r, 16<<10)} }

var errLong = errors.New("event too long")

// nextEvent returns the data of the next event with data; other events are skipped, and an error line counts as an
// event. An event at the end of the stream counts even without its closing blank line; if it was cut, decoding its JSON
// fails. The end is [io.EOF], more than maxEventBytes bytes are errLong.
func (e *eventReader) nextEvent() ([]byte, error) {
	var data []byte
	seen := false
	for {
		line, err := e.readLine()
		if err != nil {
			if seen && errors.Is(err, io.EOF) {
				return data, nil
			}
			return nil, err
		}
		if len(line) == 0 {
			if seen {
				return data, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if seen {
				data = append(data, '\n')
			}
			if len(data)+len(value) > maxEventBytes {
				return nil, errLong
			}
			data, seen = append(data, value...), true
		case "error":
			// llama.cpp writes this line instead of an event.
			return wrapError(value), nil
		}
	}
}

// wrapError converts an error line to the event form of other servers.
func wrapError(value []byte) []byte {
	if !json.Valid(value) {
		value, _ = json.Marshal(string(value))
	}
	return append(append([]byte(`{"error":`), value...), '}')
}

// readLine returns the next line without its terminator; the last one may lack it. The end is [io.EOF], a line of more
// than maxEventBytes bytes is errLong.
func (e *eventReader) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if len(line)+len(part) > maxEventBytes {
			return nil, errLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)):
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}
