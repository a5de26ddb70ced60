package policy

import (
	"bytes"
	"encoding/json"
	"slices"

	"conclave/subjects"
)

// flowRecord is the stored form of a Flow.
type flowRecord struct {
	Words    []question       `json:"words,omitempty"`
	Turn     uint64           `json:"turn,omitempty"`
	Sources  []subjects.Taint `json:"sources,omitempty"`
	Private  bool             `json:"private,omitempty"`
	Searches []searchLinks    `json:"searches,omitempty"`
	Listings []listing        `json:"listings,omitempty"`
	Public   []string         `json:"public,omitempty"`
	Strange  []string         `json:"strange,omitempty"`
	Found    []found          `json:"people,omitempty"`
	Overflow bool             `json:"overflow,omitempty"`
	Dropped  bool             `json:"dropped_private,omitempty"`
	Labels   []idLabel        `json:"labels,omitempty"`

	// Links and the fields after it are in records of older versions. They permit nothing now.
	OldFound   json.RawMessage `json:"found,omitempty"`
	TrustedIDs []string        `json:"trusted_ids,omitempty"`
	OldIDs     []string        `json:"ids,omitempty"`
	Links      []string        `json:"links,omitempty"`
	Values     []string        `json:"values,omitempty"`
}

// MarshalJSON implements [json.Marshaler] with the stored form.
func (f *Flow) MarshalJSON() ([]byte, error) {
	data, err := json.Marshal(flowRecord{
		Words: f.questions, Turn: f.lastTurn, Sources: f.sources, Private: f.private, Searches: f.searches,
		Listings: f.listings, Found: f.found, Overflow: f.overflow, Dropped: f.dropped,
		Labels: f.labels,
	})
	if err != nil {
		return nil, err
	}
	data = slices.Grow(data, listBytes(f.publicWords)+listBytes(f.untrusted)+64)
	data = appendList(data, "public", f.publicWords)
	return appendList(data, "strange", f.untrusted), nil
}

// appendList appends a field with a list of texts to an encoded JSON object; an empty list is left out. Most of the
// texts of a long session are plain words, which are copied: encoding them one by one took longer than storing them.
func appendList(object []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return object
	}
	object = object[:len(object)-1] // without the brace
	if len(object) > 1 {
		object = append(object, ',')
	}
	object = append(append(append(object, '"'), name...), `":[`...)
	for i, s := range list {
		if i > 0 {
			object = append(object, ',')
		}
		if isPlainJSON(s) {
			object = append(append(append(object, '"'), s...), '"')
		} else {
			quoted, _ := json.Marshal(s) // a text has no error
			object = append(object, quoted...)
		}
	}
	return append(object, "]}"...)
}

// isPlainJSON reports whether a text is its own JSON string: printable ASCII without characters that are escaped.
func isPlainJSON(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// UnmarshalJSON implements [json.Unmarshaler]. It rejects unknown fields: a record of a newer version may mark taint in
// one. null decodes to an empty, untainted flow, so a caller must reject it before.
func (f *Flow) UnmarshalJSON(data []byte) error {
	var r flowRecord
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return err
	}
	*f = Flow{
		questions: r.Words, lastTurn: r.Turn, sources: r.Sources, private: r.Private, searches: r.Searches,
		listings:    r.Listings,
		publicWords: r.Public, untrusted: r.Strange, found: r.Found, overflow: r.Overflow, dropped: r.Dropped,
		labels: r.Labels,
	}
	f.index()
	return nil
}
