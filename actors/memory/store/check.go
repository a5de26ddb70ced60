package store

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Limits of stored values, in bytes for texts. The actor has narrower ones; these protect the file.
const (
	maxText  = 4 << 20 // corpus, description and feedback
	maxShort = 16 << 10
	maxID    = 256
	maxDims  = 1 << 16
)

// sanitize replaces invalid UTF-8, which DuckDB rejects, and NUL, at which many readers stop, by U+FFFD.
func sanitize(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// sanitizeAll returns a sanitized copy of list.
func sanitizeAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = sanitize(s)
	}
	return out
}

// invalidf returns an [ErrInvalid] with a reason.
func invalidf(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, a...))
}

// checkID rejects an id that is empty, too long or not printable. Ids are not sanitized, because two could become one.
// what names the field in the error.
func checkID(what, id string) error {
	switch {
	case id == "":
		return invalidf("%s is missing", what)
	case len(id) > maxID:
		return invalidf("%s has %d bytes, at most %d", what, len(id), maxID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, func(r rune) bool { return !text.IsVisible(r) }):
		return invalidf("%s %q holds characters that are not printable", what, text.OneLine(id, 40))
	}
	return nil
}

// checkLength rejects a text of more than most bytes. what names the field in the error; "" is accepted.
func checkLength(what, s string, most int) error {
	if len(s) > most {
		return invalidf("%s has %d bytes, at most %d", what, len(s), most)
	}
	return nil
}

// checkOneOf rejects a value that is not in all; "" only passes if it is listed. what names the field in the error.
func checkOneOf(what, v string, all ...string) error {
	if !slices.Contains(all, v) {
		return invalidf("%s is %q and must be one of %s", what, text.OneLine(v, 40), strings.Join(all, ", "))
	}
	return nil
}

// checkTime rejects years before 1 and after 9999, which the file cannot hold.
func checkTime(what string, t time.Time) error {
	if y := t.Year(); y < 1 || y > 9999 {
		return invalidf("%s is in the year %d", what, y)
	}
	return nil
}

// CheckEntry returns the first [ErrInvalid] of an entry that [Store.Put] would reject: ids that are not printable, an
// unknown kind, state, trust or source, texts, times, counts and grades out of range, and a successor without the state
// superseded. Nothing is guessed: an entry of unknown trust is stored neither as trusted nor as untrusted. It does not
// check the name for being empty, nor vectors; Put does.
func CheckEntry(e subjects.MemoryEntry) error {
	checks := []error{
		checkID("id", e.ID),
		checkOneOf("kind", e.Kind, subjects.KindEngram, subjects.KindFact, subjects.KindDocument),
		checkOneOf("state", e.State, subjects.MemoryActive, subjects.MemoryCandidate, subjects.MemorySuperseded),
		checkOneOf("trust", e.Provenance.Trust, subjects.Trusted, subjects.Untrusted),
		checkOneOf("source", string(e.Provenance.Source), subjects.SourceUser, subjects.SourceConversation,
			subjects.SourceAgent, subjects.SourceDocument, subjects.SourceExternal),
		checkLength("corpus", e.Corpus, maxText), checkLength("name", e.Name, maxShort), checkLength("description",
			e.Description, maxText),
		checkTime("created", e.Created), checkTime("updated", e.Updated), checkTime("last accessed", e.Accessed),
	}
	if err := e.CheckContext(); err != nil {
		checks = append(checks, invalidf("%v", err))
	}
	for what, id := range map[string]string{
		"query": e.Provenance.QueryID, "respondent": e.Respondent, "superseded_by": e.SupersededBy,
	} {
		if id != "" {
			checks = append(checks, checkID(what, id))
		}
	}
	for _, id := range slices.Concat(e.Correlating, e.Supersedes) {
		checks = append(checks, checkID("id", id))
	}
	if e.SupersededBy != "" && e.State != subjects.MemorySuperseded {
		checks = append(checks, invalidf("%s has a successor but its state is %s", e.ID, e.State))
	}
	if e.Accesses < 0 || e.Grades.Critic < 0 || e.Grades.Critic > 5 ||
		!(e.Grades.Reward >= -1 && e.Grades.Reward <= 1) || e.Grades.Rewards < 0 {
		checks = append(checks, invalidf("grades or counts of %s are out of range", e.ID))
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

// Vectors are the embeddings of an entry. Corpus is that of its [subjects.MemoryEntry.SearchText] and required; Name
// and Description are nil when their text says nothing that the corpus does not: that means the same as Corpus.
type Vectors struct {
	Model                     string
	Corpus, Name, Description []float32
}

// packedVectors are vectors in the encoding of the file; see packVector.
type packedVectors struct {
	model                     string
	dims                      int
	corpus, name, description []byte
}

// pack validates and encodes the vectors. It rejects a malformed model name ([ErrInvalid]), a Corpus vector of 0 or
// more than maxDims dimensions and a zero, NaN or infinite vector ([ErrVector]), and vectors of different dimensions
// ([ErrDims]). Name and Description may be empty; they are nil in the result then.
func (v Vectors) pack() (*packedVectors, error) {
	if err := checkID("model", v.Model); err != nil {
		return nil, err
	}
	p := &packedVectors{model: v.Model, dims: len(v.Corpus)}
	if p.dims == 0 || p.dims > maxDims {
		return nil, fmt.Errorf("%w: %d dimensions", ErrVector, p.dims)
	}
	var err error
	for _, one := range []struct {
		from []float32
		to   *[]byte
	}{{v.Corpus, &p.corpus}, {v.Name, &p.name}, {v.Description, &p.description}} {
		if len(one.from) == 0 {
			continue
		}
		if len(one.from) != p.dims {
			return nil, fmt.Errorf("%w: %s has %d dimensions, got %d", ErrDims, v.Model, p.dims, len(one.from))
		}
		if *one.to, err = packVector(one.from); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// packVector encodes a vector as little-endian float32. It rejects a vector of zeros, also an empty one, and one with
// NaN or infinity with [ErrVector].
func packVector(v []float32) ([]byte, error) {
	b := make([]byte, 0, 4*len(v))
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return nil, fmt.Errorf("%w: it holds NaN or infinity", ErrVector)
	}
	if sum == 0 {
		return nil, fmt.Errorf("%w: it is zero", ErrVector)
	}
	return b, nil
}

// encodeList sanitizes a list and encodes it as JSON in one column; "" for an empty list.
func encodeList(words []string) (string, error) {
	if len(words) == 0 {
		return "", nil
	}
	b, err := json.Marshal(sanitizeAll(words))
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// decodeList decodes a column of encodeList: nil for "", [ErrDamaged] for anything but a JSON list of strings.
func decodeList(s string) (words []string, err error) {
	if s == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(s), &words); err != nil {
		return nil, fmt.Errorf("%w: a list is not valid JSON", ErrDamaged)
	}
	return words, nil
}

// unique returns a copy of words without duplicates, in order of first occurrence. It is never nil.
func unique(words []string) []string {
	out := make([]string, 0, len(words))
	seen := make(map[string]bool, len(words))
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}
