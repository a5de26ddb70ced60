//go:build cgo

package store

import (
	"errors"
	"strings"
	"testing"
)

// Every rule is broken once, and is the one that says so.
func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	broken := map[string]string{
		"two entries have one number":                                     "UPDATE entries SET row = 1 WHERE id = 'b'",
		"an entry has no number":                                          "UPDATE entries SET row = 0 WHERE id = 'e'",
		"an entry has a kind, state, trust or source that does not exist": "UPDATE entries SET trust = '' WHERE id = 'e'",
		"an entry is superseded by one that is not there":                 "UPDATE entries SET superseded_by = 'nobody', state = 'superseded' WHERE id = 'e'",
		"an entry is not superseded although another took its place":      "UPDATE entries SET superseded_by = 'b' WHERE id = 'e'",
		"entries took each other's place":                                 "UPDATE entries SET state = 'superseded', superseded_by = CASE id WHEN 'a' THEN 'b' ELSE 'a' END WHERE id IN ('a', 'b')",
		"vectors belong to no entry":                                      "INSERT INTO vectors SELECT 99, model, dims, name, description, corpus FROM vectors LIMIT 1",
		"an entry has its vectors twice":                                  "INSERT INTO vectors SELECT * FROM vectors WHERE row = 1",
		"vectors have the wrong size":                                     "UPDATE vectors SET corpus = '\\x01'::BLOB WHERE row = 1",
		"a model has two sizes":                                           "INSERT INTO models SELECT * FROM models",
		"a tag belongs to no entry":                                       "INSERT INTO tags VALUES (99, 0, 'x')",
		"an entry has a tag twice":                                        "INSERT INTO tags SELECT * FROM tags",
		"a link begins nowhere":                                           "INSERT INTO links VALUES (99, 'a')",
		"a link leads nowhere":                                            "INSERT INTO links VALUES (1, 'nobody')",
		"a link leads one way":                                            "DELETE FROM links WHERE row = 1",
		"a link is there twice":                                           "INSERT INTO links SELECT * FROM links",
		"a count belongs to no entry":                                     "INSERT INTO access VALUES (99, 1, now())",
		"an entry is counted twice":                                       "INSERT INTO access SELECT * FROM access",
		"an answer is not known as one":                                   "DELETE FROM answers WHERE id = 'g'",
		"a known answer is not there":                                     "UPDATE answers SET id = 'nobody' WHERE id IS NULL",
		"a forgotten answer has grades":                                   "INSERT INTO grades SELECT 'x', 'q2', 'gen', critic, feedback, pairwise, reward, rewards FROM grades",
		"a grade makes no sense":                                          "UPDATE grades SET critic = 7",
		"a line of the graph belongs to no entry":                         "UPDATE relations SET row = 99",
		"a line of the graph is about nobody":                             "UPDATE relations SET object = 99",
		"a line of the graph is trusted and its entry is not":             "UPDATE entries SET trust = 'untrusted' WHERE id = 'a'",
		"a line of the graph is there twice":                              "INSERT INTO relations SELECT * FROM relations",
		"somebody is in the graph and nothing is said of him":             "INSERT INTO entities VALUES (99, 'X', 'x', '')",
		"somebody is in the graph twice":                                  "INSERT INTO entities SELECT * FROM entities",
		"a number is missing":                                             "DELETE FROM meta WHERE name = 'high'",
	}
	s := newStore(t)
	a := newFact("a")
	a.Tags, a.Accesses, a.Accessed = []string{"x"}, 1, testTime
	putEntries(t, s, a, newFact("b"), newEngram("g", "q1", "gen"), newEngram("h", "q2", "gen"), newFact("e"))
	if err := s.Link(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := s.PutRelations(t.Context(), RelationWrite{Relation: line1("r", "a", "Anna", "lives in", "Berlin")}); err != nil {
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
			if r.violation != "two entries have one id" { // the primary key does not let that happen
				t.Errorf("nothing breaks the rule %q", r.violation)
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
			if err := verifyInvariants(t.Context(), snapshot{s, tx}); !errors.Is(err, ErrInconsistent) || !strings.Contains(err.Error(), r.violation) {
				t.Errorf("got %v", err)
			}
		})
	}
}
