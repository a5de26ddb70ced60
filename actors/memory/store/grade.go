package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"

	"conclave/subjects"
)

// Grade is a grade of an answer. It is stored under the query and the respondent, so it may arrive before its answer.
// Fields that are nil are unchanged.
type Grade struct {
	Query      string
	Respondent string // "" = all answers to the query
	Critic     *int   // 1 to 5
	Feedback   *string
	Pairwise   *string  // the better respondent; applies to all answers to the query
	Reward     *float64 // of the user, -1 to 1; replaces the former reward
	Count      int      // sequence number of the reward of one answer: the highest wins. 0 = the latest
	Event      string   // event id for deduplication; "" = never a duplicate
}

// Graded is an entry and its grades after a change.
type Graded struct {
	ID     string
	Row    uint64
	Grades subjects.Grades
}

// validate rejects with [ErrInvalid] a grade without a query, malformed ids, a critic grade outside 1 to 5, a reward
// outside -1 to 1 or NaN, a count that is negative or beyond 32 bits, and feedback of more than maxText bytes. A grade
// without any value passes. Pairwise is not checked.
func (g Grade) validate() error {
	if err := checkID("query", g.Query); err != nil {
		return err
	}
	for what, id := range map[string]string{"respondent": g.Respondent, "event": g.Event} {
		if id != "" {
			if err := checkID(what, id); err != nil {
				return err
			}
		}
	}
	if g.Critic != nil && (*g.Critic < 1 || *g.Critic > 5) {
		return invalidf("critic grade %d is not between 1 and 5", *g.Critic)
	}
	if g.Reward != nil && !(*g.Reward >= -1 && *g.Reward <= 1) {
		return invalidf("reward %v is not between -1 and 1", *g.Reward)
	}
	if g.Count < 0 || g.Count > math.MaxInt32 {
		return invalidf("reward count %d is out of range", g.Count)
	}
	if g.Feedback != nil {
		return checkLength("feedback", *g.Feedback, maxText)
	}
	return nil
}

// Grade stores a grade and returns the entries it applies to with all their grades; the list is empty, not nil, while
// the answer is not stored yet. It returns nil when the grade changes nothing: a repeated value, an older reward that
// arrives late, or a forgotten answer. A redelivered event that changed something returns the entries again. A pairwise
// grade returns all answers to the query. Values out of range are [ErrInvalid].
func (s *Store) Grade(ctx context.Context, g Grade) (all []Graded, err error) {
	if err := g.validate(); err != nil {
		return nil, err
	}
	told := false
	err = s.write(ctx, func(t *tx) (err error) {
		told, err = t.applyGrade(g) // a retried write overwrites told
		return err
	})
	if err != nil || !told {
		return nil, err
	}
	respondent := g.Respondent
	if g.Pairwise != nil {
		respondent = ""
	}
	return s.readGraded(ctx, g.Query, respondent)
}

// readGraded reads the stored answers to a query with their grades, oldest row first; respondent "" selects all.
// Without an error the result is never nil.
func (s *Store) readGraded(ctx context.Context, query, respondent string) (_ []Graded, err error) {
	all := []Graded{}
	err = s.readSnapshot(ctx, func(m snapshot) error {
		var grades []gradeTarget
		err := m.query(ctx, func(r *sql.Rows) error {
			var g Graded
			var by string
			err := r.Scan(&g.Row, &g.ID, &by)
			all = append(all, g)
			grades = append(grades, gradeTarget{query: query, respondent: by})
			return err
		},
			`SELECT e.row, e.id, e.respondent FROM entries e JOIN answers a ON a.id = e.id `+
				`WHERE a.query = ? AND (? = '' OR a.respondent = ?) ORDER BY e.row`,
			query, respondent, respondent)
		for i := range grades {
			grades[i].to = &all[i].Grades
		}
		if err != nil {
			return err
		}
		return readGrades(ctx, m, grades)
	})
	if err != nil {
		return nil, fmt.Errorf("reading grades: %w", err)
	}
	return all, nil
}

// applyGrade stores a valid grade and reports whether it changed something, now or when its event was first delivered.
// An event that was stored before is not applied again.
func (t *tx) applyGrade(g Grade) (told bool, err error) {
	if g.Event != "" {
		err := t.query(func(*sql.Rows) error {
			told = true
			return nil
		}, "SELECT 1 FROM graded WHERE event = ?", g.Event)
		if err != nil || told {
			return told, err
		}
	}
	if g.Critic != nil || g.Feedback != nil || g.Reward != nil {
		own := g
		own.Pairwise = nil
		told, err = t.updateGrades(g.Query, g.Respondent, own)
	}
	if err == nil && g.Pairwise != nil {
		var more bool
		more, err = t.updateGrades(g.Query, "", Grade{Pairwise: g.Pairwise})
		told = told || more
	}
	if err == nil && told && g.Event != "" { // an event that changed nothing changes nothing when redelivered
		t.insert("graded", g.Event)
	}
	return told, err
}

// updateGrades applies the values of g to the stored grades of a query and a respondent ("" = those of all answers),
// and reports whether they changed. False also means that the answer, or every answer to the query, was forgotten. An
// answer that is not stored yet is graded. Query, Respondent and Event of g are ignored.
func (t *tx) updateGrades(query, respondent string, g Grade) (changed bool, err error) {
	// A forgotten answer has no grades, nor has a query all of whose answers were forgotten.
	answers, forgotten := 0, 0
	err = t.query(func(r *sql.Rows) error { return r.Scan(&answers, &forgotten) },
		"SELECT count(*), count(*) FILTER (id IS NULL) FROM answers WHERE query = ? AND (? = '' OR respondent = ?)",
		query, respondent, respondent)
	if err != nil || answers > 0 && answers == forgotten {
		return false, err
	}
	var was gradeRow
	there := false
	err = t.query(func(r *sql.Rows) error {
		there = true
		return was.scan(r)
	}, "SELECT "+gradeColumns+" FROM grades WHERE answer = ?", answerKey(query, respondent))
	if err != nil {
		return false, err
	}
	is := was
	if is.merge(g); is == was {
		return false, nil
	}
	if !there {
		t.insertGrades(query, respondent, is)
		return true, nil
	}
	_, err = t.exec("UPDATE grades SET critic = ?, feedback = ?, pairwise = ?, reward = ?, rewards = ? "+
		"WHERE answer = ?", append(is.values(), answerKey(query, respondent))...)
	return true, err
}

// insertGrades stores the grades of a query and a respondent that has none.
func (t *tx) insertGrades(query, respondent string, g gradeRow) {
	t.insert("grades", append([]any{answerKey(query, respondent), query, respondent}, g.values()...)...)
}

// restoreGrades stores the grades of an imported answer, which isAnswer must accept. Grades that are stored already, of
// the answer or of all answers to its query, are kept instead. A reward without a count is counted as one.
func (t *tx) restoreGrades(e subjects.MemoryEntry) error {
	g := e.Grades
	if g == (subjects.Grades{}) {
		return nil
	}
	put := func(respondent string, l gradeRow) error {
		there := false
		err := t.query(func(*sql.Rows) error { there = true; return nil }, "SELECT 1 FROM grades WHERE answer = ?",
			answerKey(e.Provenance.QueryID, respondent))
		if err == nil && !there && l != (gradeRow{}) {
			t.insertGrades(e.Provenance.QueryID, respondent, l)
		}
		return err
	}
	own := gradeRow{
		critic: newNull(int32(g.Critic)), feedback: newNull(g.Feedback), reward: g.Reward, rewards: int32(g.Rewards),
	}
	if own.rewards == 0 && own.reward != 0 {
		own.rewards = 1
	}
	return errors.Join(put("", gradeRow{pairwise: newNull(g.Pairwise)}), put(e.Respondent, own))
}

// gradeTarget is an answer whose grades are read into to.
type gradeTarget struct {
	query, respondent string
	to                *subjects.Grades
}

// readGrades reads the grades of answers into their targets: those of all answers to the query, replaced by those of
// the respondent where it has any. Targets without grades are unchanged.
func readGrades(ctx context.Context, m querier, all []gradeTarget) error {
	rows := map[string]gradeRow{}
	var keys []string
	for _, a := range all {
		keys = append(keys, answerKey(a.query, ""), answerKey(a.query, a.respondent))
	}
	for chunk := range slices.Chunk(unique(keys), maxListed) {
		in, named := inList(chunk)
		err := m.query(ctx, func(r *sql.Rows) error {
			var key string
			var g gradeRow
			err := g.scan(r, &key)
			rows[key] = g
			return err
		}, "SELECT answer, "+gradeColumns+" FROM grades WHERE answer IN "+in, named...)
		if err != nil {
			return err
		}
	}
	for _, a := range all {
		rows[answerKey(a.query, "")].applyTo(a.to)
		if a.respondent != "" {
			rows[answerKey(a.query, a.respondent)].applyTo(a.to)
		}
	}
	return nil
}

// gradeColumns are the columns of a gradeRow, in its order.
const gradeColumns = "critic, feedback, pairwise, reward, rewards"

// gradeRow is a row of the table grades.
type gradeRow struct {
	critic             sql.Null[int32]
	feedback, pairwise sql.Null[string]
	reward             float64 // the latest
	rewards            int32   // the count of that reward
}

// newNull returns v as a value of a column that is NULL for the zero value.
func newNull[T comparable](v T) sql.Null[T] {
	var zero T
	return sql.Null[T]{V: v, Valid: v != zero}
}

// scan reads gradeColumns behind the columns of first.
func (g *gradeRow) scan(r *sql.Rows, first ...any) error {
	return r.Scan(append(first, &g.critic, &g.feedback, &g.pairwise, &g.reward, &g.rewards)...)
}

// values returns the values of gradeColumns. The appender takes no [sql.Null].
func (g gradeRow) values() []any {
	out := []any{nil, nil, nil, g.reward, g.rewards}
	if g.critic.Valid {
		out[0] = g.critic.V
	}
	if g.feedback.Valid {
		out[1] = g.feedback.V
	}
	if g.pairwise.Valid {
		out[2] = g.pairwise.V
	}
	return out
}

// merge merges a grade into the row; nil fields change nothing. Of counted rewards the highest count wins, in whatever
// order they arrive: one with a count up to the stored one is ignored. A reward with count 0 always wins and increments
// the count.
func (g *gradeRow) merge(from Grade) {
	if from.Critic != nil {
		g.critic = sql.Null[int32]{V: int32(*from.Critic), Valid: true}
	}
	if from.Feedback != nil {
		g.feedback = sql.Null[string]{V: sanitize(*from.Feedback), Valid: true}
	}
	if from.Pairwise != nil {
		g.pairwise = sql.Null[string]{V: sanitize(*from.Pairwise), Valid: true}
	}
	switch {
	case from.Reward == nil || from.Count > 0 && int32(from.Count) <= g.rewards:
	case from.Count > 0:
		g.reward, g.rewards = *from.Reward, int32(from.Count)
	case g.rewards < math.MaxInt32:
		g.reward, g.rewards = *from.Reward, g.rewards+1
	default:
		g.reward = *from.Reward
	}
}

// applyTo copies the values of the row that are set; a critic grade without feedback clears the feedback. The row of
// all answers must be applied first, so that the respondent's own replaces it.
func (g gradeRow) applyTo(to *subjects.Grades) {
	if g.critic.Valid {
		to.Critic, to.Feedback = int(g.critic.V), ""
	}
	if g.feedback.Valid {
		to.Feedback = g.feedback.V
	}
	if g.pairwise.Valid {
		to.Pairwise = g.pairwise.V
	}
	if g.rewards > 0 {
		to.Reward, to.Rewards = g.reward, int(g.rewards)
	}
}

// ReadGrades sets the grades of engrams, with the feedback of the critic. Entries of other kinds, and answers without a
// query, are left unchanged.
func (s *Store) ReadGrades(ctx context.Context, entries ...*subjects.MemoryEntry) error {
	var all []gradeTarget
	for _, e := range entries {
		if e.Kind == subjects.KindEngram && e.Provenance.QueryID != "" {
			all = append(all, gradeTarget{e.Provenance.QueryID, e.Respondent, &e.Grades})
		}
	}
	if len(all) == 0 {
		return nil
	}
	if err := s.readSnapshot(ctx, func(m snapshot) error { return readGrades(ctx, m, all) }); err != nil {
		return fmt.Errorf("reading grades: %w", err)
	}
	return nil
}
