//go:build cgo

package store

import (
	"errors"
	"strings"
	"testing"
)

// TestVerifyFindsViolations violates every invariant once and expects it to be reported.
func TestVerifyFindsViolations(t *testing.T) {
	t.Parallel()
	broken := map[string]string{
		"duplicate row number":                               "UPDATE entries SET row = 1 WHERE id = 'b'",
		"entry without a row number":                         "UPDATE entries SET row = 0 WHERE id = 'e'",
		"entry with an unknown kind, state, trust or source": "UPDATE entries SET trust = '' WHERE id = 'e'",
		"entry superseded by a missing entry": "UPDATE entries SET superseded_by = 'nobody', state = " +
			"'superseded' WHERE id = 'e'",
		"entry with a successor that is not superseded": "UPDATE entries SET superseded_by = 'b' WHERE id = 'e'",
		"entries that supersede each other": "UPDATE entries SET state = 'superseded', " +
			"superseded_by = CASE id WHEN 'a' THEN 'b' ELSE 'a' END WHERE id IN ('a', 'b')",
		"vectors without an entry": "INSERT INTO vectors SELECT 99, model, dims, corpus, " +
			"name, description FROM vectors LIMIT 1",
		"duplicate vectors of an entry":                "INSERT INTO vectors SELECT * FROM vectors WHERE row = 1",
		"vectors with wrong dimensions":                "UPDATE vectors SET name = '\\x01'::BLOB WHERE row = 1",
		"entry with an invalid context":                "UPDATE entries SET position = -1 WHERE id = 'e'",
		"duplicate embedding model":                    "INSERT INTO models SELECT * FROM models",
		"tag without an entry":                         "INSERT INTO tags VALUES (99, 0, 'x')",
		"duplicate tag of an entry":                    "INSERT INTO tags SELECT * FROM tags",
		"link from a missing entry":                    "INSERT INTO links VALUES (99, 'a')",
		"link to a missing entry":                      "INSERT INTO links VALUES (1, 'nobody')",
		"link in one direction only":                   "DELETE FROM links WHERE row = 1",
		"duplicate link":                               "INSERT INTO links SELECT * FROM links",
		"access count without an entry":                "INSERT INTO access VALUES (99, 1, now())",
		"duplicate access count of an entry":           "INSERT INTO access SELECT * FROM access",
		"engram of a query without its row in answers": "DELETE FROM answers WHERE id = 'g'",
		"answer of a missing entry":                    "UPDATE answers SET id = 'nobody' WHERE id IS NULL",
		"grade of a forgotten answer": "INSERT INTO grades SELECT 'x', 'q2', 'gen', critic, " +
			"feedback, pairwise, reward, rewards FROM grades",
		"grade out of range":                        "UPDATE grades SET critic = 7",
		"relation without an entry":                 "UPDATE relations SET row = 99",
		"relation with a missing subject or object": "UPDATE relations SET object = 99",
		"trusted relation of an untrusted entry":    "UPDATE entries SET trust = 'untrusted' WHERE id = 'a'",
		"duplicate relation":                        "INSERT INTO relations SELECT * FROM relations",
		"graph entity without a relation":           "INSERT INTO entities VALUES (99, 'X', 'x', '')",
		"duplicate graph entity":                    "INSERT INTO entities SELECT * FROM entities",
		"missing row in meta":                       "DELETE FROM meta WHERE name = 'high'",
	}
	s := newStore(t)
	a := newFact("a")
	a.Tags, a.Accesses, a.Accessed = []string{"x"}, 1, testTime
	putEntries(t, s, a, newFact("b"), newEngram("g", "q1", "gen"), newEngram("h", "q2", "gen"), newFact("e"))
	if err := s.Merge(t.Context(), "a", Addition{Correlating: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutRelations(t.Context(),
		RelationWrite{Relation: line1("r", "a", "Anna", "lives in", "Berlin")}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Grade(t.Context(), Grade{Query: "q1", Respondent: "gen", Critic: ptr(3)}); err != nil {
		t.Fatal(err)
	}
	forgetEntries(t, s, "h")
	if err := s.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range invariants {
		change := broken[r.violation]
		if change == "" {
			if r.violation != "duplicate entry id" { // the primary key does not let that happen
				t.Errorf("no case violates %q", r.violation)
			}
			continue
		}
		t.Run(r.violation, func(t *testing.T) {
			tx, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.Exec(change); err != nil {
				t.Fatal(err)
			}
			if err := verifyInvariants(t.Context(), snapshot{s, tx}); !errors.Is(err, ErrInconsistent) ||
				!strings.Contains(err.Error(), r.violation) {
				t.Errorf("got %v", err)
			}
		})
	}
}
