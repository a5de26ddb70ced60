package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// Bounds of what is kept. Whoever writes has narrower ones; these keep the file in order.
const (
	maxText  = 4 << 20 // of a corpus
	maxShort = 16 << 10
	maxID    = 256
	maxDims  = 1 << 16
)

// sanitize is s as the file can hold it: DuckDB refuses what is no text, and much that reads it stops at a NUL.
func sanitize(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// sanitizeAll cleans each.
func sanitizeAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = sanitize(s)
	}
	return out
}

func invalidf(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, a...))
}

// checkID refuses what cannot name something. It is not cleaned: two ids could become one.
func checkID(what, id string) error {
	switch {
	case id == "":
		return invalidf("%s is missing", what)
	case len(id) > maxID:
		return invalidf("%s has %d bytes, at most %d", what, len(id), maxID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, func(r rune) bool { return !text.IsVisible(r) }):
		return invalidf("%s %q holds something that is not printed", what, text.OneLine(id, 40))
	}
	return nil
}

func checkLength(what, s string, most int) error {
	if len(s) > most {
		return invalidf("%s has %d bytes, at most %d", what, len(s), most)
	}
	return nil
}

func checkOneOf(what, v string, all ...string) error {
	if !slices.Contains(all, v) {
		return invalidf("%s is %q and must be one of %s", what, text.OneLine(v, 40), strings.Join(all, ", "))
	}
	return nil
}

// checkTime refuses what the file could not hold, and no calendar.
func checkTime(what string, t time.Time) error {
	if y := t.Year(); y < 1 || y > 9999 {
		return invalidf("%s is in the year %d", what, y)
	}
	return nil
}

// checkEntry refuses an entry that makes no sense. Nothing is guessed: an entry of unknown trust is not stored as either.
func checkEntry(e subjects.MemoryEntry) error {
	checks := []error{
		checkID("the id", e.ID),
		checkOneOf("kind", e.Kind, subjects.KindEngram, subjects.KindFact, subjects.KindDocument),
		checkOneOf("state", e.State, subjects.MemoryActive, subjects.MemoryCandidate, subjects.MemorySuperseded),
		checkOneOf("trust", e.Provenance.Trust, subjects.Trusted, subjects.Untrusted),
		checkOneOf("source", string(e.Provenance.Source), subjects.SourceUser, subjects.SourceConversation, subjects.SourceAgent, subjects.SourceDocument, subjects.SourceExternal),
		checkLength("the corpus", e.Corpus, maxText), checkLength("the name", e.Name, maxShort), checkLength("the description", e.Description, maxText),
		checkTime("created", e.Created), checkTime("updated", e.Updated), checkTime("last accessed", e.Accessed),
	}
	for what, id := range map[string]string{
		"the question": e.Provenance.QueryID, "the respondent": e.Respondent, "superseded_by": e.SupersededBy,
	} {
		if id != "" {
			checks = append(checks, checkID(what, id))
		}
	}
	for _, id := range slices.Concat(e.Correlating, e.Supersedes) {
		checks = append(checks, checkID("an id", id))
	}
	if e.SupersededBy != "" && e.State != subjects.MemorySuperseded {
		checks = append(checks, invalidf("%s is %s although another took its place", e.ID, e.State))
	}
	if e.Accesses < 0 || e.Grades.Critic < 0 || e.Grades.Critic > 5 || !(e.Grades.Reward >= -1 && e.Grades.Reward <= 1) || e.Grades.Rewards < 0 {
		checks = append(checks, invalidf("the grades or counts of %s make no sense", e.ID))
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

// Vectors are what a model made of an entry. Name and Description are needed, Corpus may be missing.
type Vectors struct {
	Model                     string
	Name, Description, Corpus []float32
}

// packedVectors are vectors as the file keeps them.
type packedVectors struct {
	model                     string
	dims                      int
	name, description, corpus []byte
}

func (v Vectors) pack() (*packedVectors, error) {
	if err := checkID("the model", v.Model); err != nil {
		return nil, err
	}
	p := &packedVectors{model: v.Model, dims: len(v.Name)}
	if p.dims == 0 || p.dims > maxDims {
		return nil, fmt.Errorf("%w: %d numbers", ErrVector, p.dims)
	}
	var err error
	for _, one := range []struct {
		from []float32
		to   *[]byte
		may  bool
	}{{v.Name, &p.name, false}, {v.Description, &p.description, false}, {v.Corpus, &p.corpus, true}} {
		if one.may && len(one.from) == 0 {
			continue
		}
		if len(one.from) != p.dims {
			return nil, fmt.Errorf("%w: %s made %d and %d numbers", ErrDims, v.Model, p.dims, len(one.from))
		}
		if *one.to, err = packVector(one.from); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// packVector writes a vector as little-endian float32. It refuses what has no direction.
func packVector(v []float32) ([]byte, error) {
	b := make([]byte, 0, 4*len(v))
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return nil, fmt.Errorf("%w: it holds something that is no number", ErrVector)
	}
	if sum == 0 {
		return nil, fmt.Errorf("%w: it points nowhere", ErrVector)
	}
	return b, nil
}

// hashText is how a piece of a document is known again: the hash of its text as it is kept.
func hashText(corpus string) string {
	sum := sha256.Sum256([]byte(sanitize(corpus)))
	return hex.EncodeToString(sum[:])
}

// pieceHash is the hash that is kept with an entry.
func pieceHash(kind, corpus string) string {
	if kind != subjects.KindDocument {
		return ""
	}
	return hashText(corpus)
}

// encodeList is a list of words as one value; nothing for none.
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

func decodeList(s string) (words []string, err error) {
	if s == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(s), &words); err != nil {
		return nil, fmt.Errorf("%w: a list is none", ErrDamaged)
	}
	return words, nil
}

// unique are the words without those that came before.
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
