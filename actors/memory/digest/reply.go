package digest

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Bounds of a reply.
const (
	maxReply     = 64 << 10
	maxRead      = 64 // elements of a list that are looked at
	maxEntities  = 16
	maxRelations = 12
	maxThing     = 80 // bytes of the name of an entity
	maxPredicate = 40
	maxDate      = 30
)

var (
	errLong   = errors.New("reply too long")
	errNoJSON = errors.New("reply is not one valid JSON object")
)

// reply is the object that a model replied with, field by field.
type reply map[string]json.RawMessage

// readReply decodes the one JSON object of a model's reply. Thoughts before it and a code fence around it are skipped.
// It rejects a reply of more than maxReply bytes, no object or more than one, what [strict.CheckObject] rejects, and
// invalid UTF-8.
func readReply(said string) (reply, error) {
	if len(said) > maxReply {
		return nil, errLong
	}
	if i := strings.LastIndex(said, "</think>"); i >= 0 {
		said = said[i:]
	}
	from, to := strings.IndexByte(said, '{'), strings.LastIndexByte(said, '}')
	if from < 0 || to < from || !utf8.ValidString(said) {
		return nil, errNoJSON
	}
	data := []byte(said[from : to+1])
	var rejected strict.DecodeError
	if errors.As(strict.CheckObject(data), &rejected) {
		return nil, errors.New("reply rejected: " + rejected.Reason) // its detail quotes the reply
	}
	var r reply
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, errNoJSON
	}
	return r, nil
}

// text returns a field that holds a string, "" when it holds anything else.
func (r reply) text(field string) string {
	s, _ := decodeAs[string](r[field])
	return s
}

// decodeAs decodes raw when it is of type T. It is not ok when raw is empty, null or of another type.
func decodeAs[T any](raw json.RawMessage) (T, bool) {
	var v T
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &v) != nil {
		var none T
		return none, false
	}
	return v, true
}

// listOf returns the elements of a list field that are of type T; others are skipped. It is not ok when the field is
// missing or holds no list.
func listOf[T any](r reply, field string) ([]T, bool) {
	raw, ok := decodeAs[[]json.RawMessage](r[field])
	if !ok {
		return nil, false
	}
	out := make([]T, 0, len(raw))
	for _, e := range raw {
		if v, ok := decodeAs[T](e); ok {
			out = append(out, v)
		}
	}
	return out, true
}

// entities returns the entities that the texts really name, each once, at most maxEntities. The user, names that are
// too long and names that are not in the texts are dropped. It is not ok when there is no list, or none of a list that
// is not empty can be used.
func (r reply) entities(m material) (out []string, ok bool) {
	list, ok := listOf[string](r, "entities")
	if !ok {
		return nil, false
	}
	ground := newWordIndex(m.allText())
	for _, name := range list[:min(len(list), maxRead)] {
		name = shortLine(name, maxThing+1)
		switch {
		case len(out) == maxEntities:
		case name == "" || len(name) > maxThing || isUser(text.Fold(name)) || !ground.holds(name):
		case slices.ContainsFunc(out, func(o string) bool { return text.Fold(o) == text.Fold(name) }):
		default:
			out = append(out, name)
		}
	}
	return out, len(out) > 0 || len(list) == 0
}

// relations returns the relations whose ends the texts really name, at most maxRelations. It drops those with an
// unknown tense or predicate, clears dates that the texts do not hold, and decides itself which predicates are single.
// It is not ok when there is no list, or none of a list that is not empty can be used.
func (r reply) relations(m material) ([]Relation, bool) {
	list, ok := listOf[struct{ Subject, Predicate, Object, Kind, Tense, From, Until string }](r, "relations")
	if !ok {
		return nil, false
	}
	all, ours := newWordIndex(m.allText()), newWordIndex(m.trustedText())
	var out []Relation
	for _, e := range list[:min(len(list), maxRead)] {
		rel := Relation{
			Tense: e.Tense, Kind: strings.ToLower(strings.TrimSpace(e.Kind)),
			Predicate: canonicalPredicate(e.Predicate),
		}
		rel.Subject, rel.Object = relationEnd(e.Subject, e.Object, all, ours), relationEnd(e.Object, e.Subject, all,
			ours)
		if len(out) == maxRelations || rel.Subject == "" || rel.Object == "" || rel.Predicate == "" ||
			rel.Subject == rel.Object ||
			!slices.Contains(tenses, rel.Tense) {
			continue
		}
		if !slices.Contains(relationKinds, rel.Kind) {
			rel.Kind = kindOther
		}
		rel.From, rel.Until = all.holdsDate(e.From), all.holdsDate(e.Until)
		rel.Single = isSingle(rel.Predicate)
		if !slices.ContainsFunc(out, rel.isSame) {
			out = append(out, rel)
		}
	}
	return out, len(out) > 0 || len(list) == 0
}

// relationEnd returns the end s of a relation whose other end is other: the user, a possession of the user, or a name
// in the texts all; "" when it is none of these or too long. Untrusted content knows nothing about the user: those ends
// count only when the text that backs them is in ours, the words of the user and the assistant.
func relationEnd(s, other string, all, ours wordIndex) string {
	s = shortLine(s, maxThing+1)
	if s == "" || len(s) > maxThing {
		return ""
	}
	rest, of := cutUserPossessive(s)
	switch {
	case isUser(text.Fold(s)):
		if _, both := cutUserPossessive(other); both || ours.holds(shortLine(other, maxThing)) {
			return UserEntity
		}
	case of:
		if ours.holds(rest) {
			return UserEntity + "'s " + rest
		}
	case all.holds(s):
		return s
	}
	return ""
}

// holdsDate returns s when it is a short date that the text holds, else "".
func (l wordIndex) holdsDate(s string) string {
	s = shortLine(s, maxDate+1)
	if len(s) > maxDate || !strings.ContainsAny(s, "0123456789") || !l.holds(s) {
		return ""
	}
	return s
}
