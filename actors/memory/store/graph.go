package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/text"
	"conclave/subjects"
)

// RelationWrite is a line of the knowledge graph to be written.
type RelationWrite struct {
	subjects.Relation
	// Single says that the subject can have one object of this kind at a time, such as where it lives: a new one makes
	// the older one past.
	Single bool
}

// checkedRelation is one that was checked.
type checkedRelation struct {
	subjects.Relation
	single                     bool
	subject, predicate, object string // folded
}

// PutRelations writes what entries say of people, places and things. The entry must be there, and a line is trusted only
// if its entry is, whatever the line says. A line that an entry said before is written over.
//
// A new "is" that can be one only makes the older "is" of the same subject and predicate a "was". A line that is not
// trusted never ends one that is. When the other one was said later, the new line is the past one.
func (s *Store) PutRelations(ctx context.Context, rels ...RelationWrite) error {
	checked := make([]checkedRelation, len(rels))
	for i, w := range rels {
		r := checkedRelation{Relation: w.Relation, single: w.Single}
		for _, t := range []*string{&r.Subject, &r.Predicate, &r.Object, &r.Kind, &r.From, &r.Until} {
			*t = strings.TrimSpace(sanitize(*t))
			if err := checkLength("a word", *t, maxShort); err != nil {
				return err
			}
		}
		if r.Said.IsZero() {
			r.Said = s.opts.Now()
		}
		r.subject, r.predicate, r.object = text.NameKey(sanitize(r.Subject)), text.NameKey(sanitize(r.Predicate)), text.NameKey(sanitize(r.Object))
		if r.subject == "" || r.predicate == "" || r.object == "" {
			return invalidf("a line of the graph needs a subject, a predicate and an object")
		}
		for _, err := range []error{
			checkID("the line's id", r.ID), checkID("the line's entry", r.Entry), checkTime("the time", r.Said),
			checkOneOf("tense", r.Tense, subjects.TenseIs, subjects.TenseWas), checkOneOf("trust", r.Trust, subjects.Trusted, subjects.Untrusted),
		} {
			if err != nil {
				return err
			}
		}
		checked[i] = r
	}
	if len(checked) == 0 {
		return nil
	}
	return s.write(ctx, func(t *tx) error {
		for _, r := range checked {
			if err := t.putRelation(r); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) putRelation(r checkedRelation) error {
	var row int64
	trust := ""
	err := t.query(func(rows *sql.Rows) error { return rows.Scan(&row, &trust) }, "SELECT row, trust FROM entries WHERE id = ?", r.Entry)
	if err != nil {
		return err
	}
	if trust == "" {
		return fmt.Errorf("%w: %s, which is to say %q", ErrNotFound, r.Entry, r.Predicate)
	}
	if trust != subjects.Trusted {
		r.Trust = trust
	}
	subject, err := t.findOrAddEntity(r.Subject, r.subject, "")
	if err != nil {
		return err
	}
	object, err := t.findOrAddEntity(r.Object, r.object, r.Kind)
	if err != nil {
		return err
	}
	// Said again: by the same entry, or under the same id.
	if _, err := t.exec("DELETE FROM relations WHERE id = ? OR row = ? AND subject = ? AND folded = ? AND object = ?", r.ID, row, subject, r.predicate, object); err != nil {
		return err
	}
	endedBy := ""
	if r.single && r.Tense == subjects.TenseIs {
		if endedBy, err = t.orderExclusive(&r, subject, object); err != nil {
			return err
		}
	}
	t.insert("relations", r.ID, row, subject, r.Predicate, r.predicate, object, padWords(r.subject+" "+r.predicate+" "+r.object), r.Kind, r.Tense, r.From, r.Until,
		r.Trust, truncateTime(r.Said), endedBy)
	return nil
}

// orderExclusive decides which of several that cannot be at once is the one that is. It returns the line that says until when the
// new one was.
func (t *tx) orderExclusive(r *checkedRelation, subject, object int64) (endedBy string, err error) {
	type other struct {
		id, since, trust string
		said             time.Time
	}
	var others []other
	err = t.query(func(rows *sql.Rows) error {
		var o other
		err := rows.Scan(&o.id, &o.since, &o.trust, &o.said)
		others = append(others, o)
		return err
	}, "SELECT id, since, trust, said FROM relations WHERE subject = ? AND folded = ? AND object <> ? AND tense = 'is' ORDER BY said, id", subject, r.predicate, object)
	if err != nil {
		return "", err
	}
	said := truncateTime(r.Said)
	for _, o := range others {
		switch {
		case o.said.After(said) && (o.trust == subjects.Trusted || r.Trust != subjects.Trusted):
			r.Tense = subjects.TenseWas
			if r.Until == "" {
				r.Until, endedBy = cmp.Or(o.since, o.said.UTC().Format(time.DateOnly)), o.id
			}
		case !o.said.After(said) && (r.Trust == subjects.Trusted || o.trust != subjects.Trusted):
			_, err := t.exec("UPDATE relations SET tense = 'was', until = CASE until WHEN '' THEN ? ELSE until END, ended_by = CASE until WHEN '' THEN ? ELSE '' END WHERE id = ?",
				cmp.Or(r.From, said.Format(time.DateOnly)), r.ID, o.id)
			if err != nil {
				return "", err
			}
		}
	}
	return endedBy, nil
}

// findOrAddEntity finds somebody or something by the folded name, or takes it in.
func (t *tx) findOrAddEntity(name, folded, kind string) (id int64, err error) {
	known := ""
	err = t.query(func(r *sql.Rows) error { return r.Scan(&id, &known) }, "SELECT id, kind FROM entities WHERE folded = ?", folded)
	if err != nil {
		return 0, err
	}
	if id == 0 {
		id = t.nextEntity
		t.nextEntity++
		t.insert("entities", id, name, folded, kind)
		return id, nil
	}
	if known == "" && kind != "" {
		_, err = t.exec("UPDATE entities SET kind = ? WHERE id = ?", kind, id)
	}
	return id, err
}

// deleteRelations removes what entries said. A line that one of theirs made past stays past, like an entry whose successor
// is gone; since when is no longer known.
func (t *tx) deleteRelations(rows []int64) error {
	in, numbers := inList(rows)
	_, err := t.exec("UPDATE relations SET until = '', ended_by = '' WHERE ended_by IN (SELECT id FROM relations WHERE row IN "+in+")", numbers...)
	if err != nil {
		return err
	}
	n, err := t.exec("DELETE FROM relations WHERE row IN "+in, numbers...)
	if err != nil || n == 0 {
		return err
	}
	_, err = t.exec("DELETE FROM entities WHERE id NOT IN (SELECT subject FROM relations) AND id NOT IN (SELECT object FROM relations)")
	return err
}

// GraphQuery says which lines are looked for. With nothing in it the newest are found.
type GraphQuery struct {
	People, Places []string // names; a part of a longer name is enough when it is whole words
	Words          string   // what is asked, in words
	Limit          int      // at most; 0 = 50, never more than 1000
}

// minWordLength is how many letters a word must have to be looked for by itself.
const minWordLength = 3

// Relations finds lines: those about the people and places named, and those that share names or words with the question.
// What fits best comes first, then what is before what was, then the newest. Neither case nor accents count.
func (s *Store) Relations(ctx context.Context, q GraphQuery) ([]subjects.Relation, error) {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultPageSize
	}
	limit = min(limit, maxPageSize)
	// A line earns two points for a name that was given, two for a name of its own that is in the words, and one for each
	// other word.
	score, args := []string{"0"}, []any{}
	for _, name := range slices.Concat(q.People, q.Places) {
		if f := text.NameKey(sanitize(name)); f != "" {
			score = append(score, "CASE WHEN contains(' ' || s.folded || ' ', ?) OR contains(' ' || o.folded || ' ', ?) THEN 2 ELSE 0 END")
			args = append(args, padWords(f), padWords(f))
		}
	}
	if f := text.NameKey(sanitize(q.Words)); f != "" {
		score = append(score, "CASE WHEN contains(?, ' ' || s.folded || ' ') OR contains(?, ' ' || o.folded || ' ') THEN 2 ELSE 0 END")
		args = append(args, padWords(f), padWords(f))
		words := unique(strings.Fields(f))
		for _, w := range words[:min(len(words), maxQueryWords)] {
			if utf8.RuneCountInString(w) >= minWordLength {
				score = append(score, "CASE WHEN contains(r.words, ?) THEN 1 ELSE 0 END")
				args = append(args, padWords(w))
			}
		}
	}
	some := ""
	if len(score) > 1 {
		some = "WHERE score > 0"
	}
	query := fmt.Sprintf(`SELECT id, subject, predicate, object, kind, tense, since, until, entry, trust, said FROM (
		SELECT r.id, s.name AS subject, r.predicate, o.name AS object, r.kind, CASE WHEN e.state = 'superseded' THEN 'was' ELSE r.tense END AS tense,
			r.since, r.until, e.id AS entry, r.trust, r.said, %s AS score
		FROM relations r JOIN entities s ON s.id = r.subject JOIN entities o ON o.id = r.object JOIN entries e ON e.row = r.row
	) %s ORDER BY score DESC, tense = 'is' DESC, said DESC, id LIMIT %d`, strings.Join(score, " + "), some, limit)
	var out []subjects.Relation
	err := s.readSnapshot(ctx, func(m snapshot) error {
		return m.queryOnce(ctx, func(r *sql.Rows) error {
			var l subjects.Relation
			err := r.Scan(&l.ID, &l.Subject, &l.Predicate, &l.Object, &l.Kind, &l.Tense, &l.From, &l.Until, &l.Entry, &l.Trust, &l.Said)
			l.Said = l.Said.UTC()
			out = append(out, l)
			return err
		}, query, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the graph: %w", err)
	}
	return out, nil
}

// maxQueryWords bounds how many words of a question are looked for.
const maxQueryWords = 32

// padWords has a blank at both ends, so that whole words are found in it.
func padWords(folded string) string { return " " + folded + " " }
