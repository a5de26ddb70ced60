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

// RelationWrite is a relation of the knowledge graph to store.
type RelationWrite struct {
	subjects.Relation
	// Single means that the predicate has one object at a time, such as a place of residence: a newer relation turns
	// the older one into the past tense.
	Single bool
}

// checkedRelation is a validated [RelationWrite].
type checkedRelation struct {
	subjects.Relation
	single                     bool
	subject, predicate, object string // folded
}

// PutRelations stores relations that entries state, all or none. The entry must exist ([ErrNotFound]), and a relation
// is trusted only if its entry is, whatever the relation claims. A relation with the same id, or with the same subject,
// predicate and object of the same entry, is replaced. It rejects an empty subject, predicate or object, malformed ids,
// unknown tenses and trusts, and parts that are too long with [ErrInvalid]; a zero Said means now.
//
// A new "is" of a Single predicate turns the older "is" of the same subject and predicate into a "was"; if the other
// one was said later, the new one is stored as "was". An untrusted relation never ends a trusted one.
func (s *Store) PutRelations(ctx context.Context, rels ...RelationWrite) error {
	checked := make([]checkedRelation, len(rels))
	for i, w := range rels {
		r := checkedRelation{Relation: w.Relation, single: w.Single}
		for _, t := range []*string{&r.Subject, &r.Predicate, &r.Object, &r.Kind, &r.From, &r.Until} {
			*t = strings.TrimSpace(sanitize(*t))
			if err := checkLength("part of a relation", *t, maxShort); err != nil {
				return err
			}
		}
		if r.Said.IsZero() {
			r.Said = s.opts.Now()
		}
		r.subject, r.predicate, r.object = text.NameKey(sanitize(r.Subject)), text.NameKey(sanitize(r.Predicate)),
			text.NameKey(sanitize(r.Object))
		if r.subject == "" || r.predicate == "" || r.object == "" {
			return invalidf("a relation needs a subject, a predicate and an object")
		}
		for _, err := range []error{
			checkID("id of the relation", r.ID), checkID("entry of the relation", r.Entry),
			checkTime("time of the relation", r.Said),
			checkOneOf("tense", r.Tense, subjects.TenseIs, subjects.TenseWas), checkOneOf("trust", r.Trust,
				subjects.Trusted, subjects.Untrusted),
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

// putRelation stores one relation with at most the trust of its entry, and replaces the relation with the same id or
// the same content of that entry. An entry that does not exist is [ErrNotFound].
func (t *tx) putRelation(r checkedRelation) error {
	var row int64
	trust := ""
	err := t.query(func(rows *sql.Rows) error {
		return rows.Scan(&row, &trust)
	}, "SELECT row, trust FROM entries WHERE id = ?", r.Entry)
	if err != nil {
		return err
	}
	if trust == "" {
		return fmt.Errorf("%w: %s, the entry of relation %s", ErrNotFound, r.Entry, r.ID)
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
	// Replaces the relation with the same id, or with the same content of the same entry.
	if _, err := t.exec("DELETE FROM relations WHERE id = ? OR row = ? AND subject = ? AND folded = ? AND object = ?",
		r.ID, row, subject, r.predicate, object); err != nil {
		return err
	}
	endedBy := ""
	if r.single && r.Tense == subjects.TenseIs {
		if endedBy, err = t.orderExclusive(&r, subject, object); err != nil {
			return err
		}
	}
	t.insert("relations", r.ID, row, subject, r.Predicate, r.predicate, object,
		padWords(r.subject+" "+r.predicate+" "+r.object), r.Kind, r.Tense, r.From, r.Until,
		r.Trust, truncateTime(r.Said), endedBy)
	return nil
}

// orderExclusive decides which relation of a Single predicate is the current one, by the time it was said, and makes
// the others past. subject and object are the entities of r, which must have the tense is and not be stored yet. It may
// set Tense and Until of r: endedBy is the id of the relation that its Until is from, "" if r stays current or came
// with an Until. An untrusted relation does not make a trusted one past: both stay current.
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
	}, "SELECT id, since, trust, said FROM relations WHERE subject = ? AND folded = ? AND object <> ? AND tense = "+
		"'is' ORDER BY said, id", subject, r.predicate, object)
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
			_, err := t.exec("UPDATE relations SET tense = 'was', until = CASE until WHEN '' THEN ? ELSE until END, "+
				"ended_by = CASE until WHEN '' THEN ? ELSE '' END WHERE id = ?",
				cmp.Or(r.From, said.Format(time.DateOnly)), r.ID, o.id)
			if err != nil {
				return "", err
			}
		}
	}
	return endedBy, nil
}

// findOrAddEntity returns the id of the graph entity with this folded name, which it adds under name if there is none.
// kind is stored if none is known; "" is unknown.
func (t *tx) findOrAddEntity(name, folded, kind string) (id int64, err error) {
	known := ""
	err = t.query(func(r *sql.Rows) error {
		return r.Scan(&id, &known)
	}, "SELECT id, kind FROM entities WHERE folded = ?", folded)
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

// deleteRelations deletes the relations of the entries with these rows, and graph entities without a relation left. A
// relation that a deleted one had ended stays past, without its end date. rows must not be empty.
func (t *tx) deleteRelations(rows []int64) error {
	in, numbers := inList(rows)
	_, err := t.exec("UPDATE relations SET until = '', ended_by = '' WHERE ended_by IN (SELECT id FROM relations "+
		"WHERE row IN "+in+")", numbers...)
	if err != nil {
		return err
	}
	n, err := t.exec("DELETE FROM relations WHERE row IN "+in, numbers...)
	if err != nil || n == 0 {
		return err
	}
	_, err = t.exec("DELETE FROM entities WHERE id NOT IN (SELECT subject FROM relations) AND id NOT IN (SELECT " +
		"object FROM relations)")
	return err
}

// GraphQuery selects relations. The zero value selects the newest.
type GraphQuery struct {
	People, Places []string // names; whole words of a longer name match too
	Words          string   // the question
	Limit          int      // 0 = 50, capped at 1000
}

// minWordLength is how many characters a word of the question must have to be matched by itself.
const minWordLength = 3

// Relations returns the relations that name one of the people or places, or share names or words with the question; an
// empty query selects all. They are ordered by score, then current before past, then newest first. Case and accents are
// ignored. A relation of a superseded entry is returned as past. Words shorter than minWordLength and those after the
// first maxQueryWords only count as part of a name.
func (s *Store) Relations(ctx context.Context, q GraphQuery) ([]subjects.Relation, error) {
	// The score is 2 for each given name, 2 if the question contains the subject or object, and 1 for each other word.
	score, args := []string{"0"}, []any{}
	for _, name := range slices.Concat(q.People, q.Places) {
		if f := text.NameKey(sanitize(name)); f != "" {
			score = append(score, "CASE WHEN contains(' ' || s.folded || ' ', ?) OR contains(' ' || o.folded || ' ', "+
				"?) THEN 2 ELSE 0 END")
			args = append(args, padWords(f), padWords(f))
		}
	}
	if f := text.NameKey(sanitize(q.Words)); f != "" {
		score = append(score, "CASE WHEN contains(?, ' ' || s.folded || ' ') OR contains(?, ' ' || o.folded || ' ') "+
			"THEN 2 ELSE 0 END")
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
		SELECT r.id, s.name AS subject, r.predicate, o.name AS object, r.kind,
			CASE WHEN e.state = 'superseded' THEN 'was' ELSE r.tense END AS tense,
			r.since, r.until, e.id AS entry, r.trust, r.said, %s AS score
		FROM relations r JOIN entities s ON s.id = r.subject JOIN entities o ON o.id = r.object
			JOIN entries e ON e.row = r.row
	) %s ORDER BY score DESC, tense = 'is' DESC, said DESC, id LIMIT %d`, strings.Join(score, " + "), some,
		pageLimit(q.Limit))
	var out []subjects.Relation
	err := s.readSnapshot(ctx, func(m snapshot) error {
		return m.queryOnce(ctx, func(r *sql.Rows) error {
			var l subjects.Relation
			err := r.Scan(&l.ID, &l.Subject, &l.Predicate, &l.Object, &l.Kind, &l.Tense, &l.From, &l.Until, &l.Entry,
				&l.Trust, &l.Said)
			l.Said = l.Said.UTC()
			out = append(out, l)
			return err
		}, query, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("reading relations: %w", err)
	}
	return out, nil
}

// maxQueryWords bounds how many words of a question are matched.
const maxQueryWords = 32

// padWords returns folded between blanks, so that a substring match between blanks matches whole words only.
func padWords(folded string) string { return " " + folded + " " }
