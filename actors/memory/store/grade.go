package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"

	"conclave/subjects"
)

// Grade is what somebody thought of an answer. Grades stand under the question and who answered it: one may come before
// its answer.
type Grade struct {
	Query      string
	Respondent string // "" = all answers to the question
	Critic     *int   // 1 to 5
	Feedback   *string
	Pairwise   *string  // who was better; it concerns all answers to the question
	Reward     *float64 // -1 to 1; what the user thinks now takes the place of what they thought before
	Count      int      // of the reward, counting up for one answer: the highest holds. 0 = none was given, it is the latest
	Event      string   // the same event counts once; "" = it always counts
}

// Graded is an entry and what is thought of it now.
type Graded struct {
	ID     string
	Row    uint64
	Grades subjects.Grades
}

func (g Grade) validate() error {
	if err := checkID("the question", g.Query); err != nil {
		return err
	}
	for what, id := range map[string]string{"the respondent": g.Respondent, "the event": g.Event} {
		if id != "" {
			if err := checkID(what, id); err != nil {
				return err
			}
		}
	}
	if g.Critic != nil && (*g.Critic < 1 || *g.Critic > 5) {
		return invalidf("a critic gives 1 to 5, not %d", *g.Critic)
	}
	if g.Reward != nil && !(*g.Reward >= -1 && *g.Reward <= 1) {
		return invalidf("a reward is between -1 and 1, not %v", *g.Reward)
	}
	if g.Count < 0 || g.Count > math.MaxInt32 {
		return invalidf("a reward counts from 1, not %d", g.Count)
	}
	if g.Feedback != nil {
		return checkLength("the feedback", *g.Feedback, maxText)
	}
	return nil
}

// Grade writes a grade down and returns the entries that it concerns now, with all that is thought of them: none while its
// answer is not here yet. It returns nil when the grade changes nothing: it says what is known, an older reward comes late,
// or the answer was forgotten. An event that was taken before is told as it was told then.
func (s *Store) Grade(ctx context.Context, g Grade) (all []Graded, err error) {
	if err := g.validate(); err != nil {
		return nil, err
	}
	g.Feedback, g.Pairwise = sanitizeOptional(g.Feedback), sanitizeOptional(g.Pairwise)
	if g.Critic != nil {
		n := *g.Critic
		g.Critic = &n
	}
	if g.Reward != nil {
		r := *g.Reward
		g.Reward = &r
	}
	told := false
	err = s.write(ctx, func(t *tx) (err error) {
		told, err = t.applyGrade(g) // it may run again: what it found the last time holds
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

// readGraded reads the entries that answer a question.
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
		}, `SELECT e.row, e.id, e.respondent FROM entries e JOIN answers a ON a.id = e.id WHERE a.query = ? AND (? = '' OR a.respondent = ?) ORDER BY e.row`,
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

// applyGrade reports whether there is something to tell: the grade changed something, now or when its event came first.
func (t *tx) applyGrade(g Grade) (told bool, err error) {
	if g.Event != "" {
		err := t.query(func(*sql.Rows) error { told = true; return nil }, "SELECT 1 FROM graded WHERE event = ?", g.Event)
		if err != nil || told {
			return told, err
		}
	}
	if g.Critic != nil || g.Feedback != nil || g.Reward != nil {
		told, err = t.updateGrades(g.Query, g.Respondent, Grade{Critic: g.Critic, Feedback: g.Feedback, Reward: g.Reward, Count: g.Count})
	}
	if err == nil && g.Pairwise != nil {
		var more bool
		more, err = t.updateGrades(g.Query, "", Grade{Pairwise: g.Pairwise})
		told = told || more
	}
	if err == nil && told && g.Event != "" { // one that changes nothing would change nothing again: it need not be known
		t.insert("graded", g.Event)
	}
	return told, err
}

// updateGrades changes the one line of a question and a respondent, and reports whether that made a difference.
func (t *tx) updateGrades(query, respondent string, g Grade) (changed bool, err error) {
	// An answer that was forgotten, or a question all of whose answers were, keeps nothing.
	answers, forgotten := 0, 0
	err = t.query(func(r *sql.Rows) error { return r.Scan(&answers, &forgotten) },
		"SELECT count(*), count(*) FILTER (id IS NULL) FROM answers WHERE query = ? AND (? = '' OR respondent = ?)", query, respondent, respondent)
	if err != nil || answers > 0 && answers == forgotten {
		return false, err
	}
	var was gradeColumns
	there := false
	err = t.query(func(r *sql.Rows) error {
		there = true
		return r.Scan(&was.critic, &was.feedback, &was.pairwise, &was.reward, &was.rewards)
	}, "SELECT critic, feedback, pairwise, reward, rewards FROM grades WHERE answer = ?", answerKey(query, respondent))
	if err != nil {
		return false, err
	}
	is := was
	if is.apply(g); is == was {
		return false, nil
	}
	if !there {
		t.insert("grades", answerKey(query, respondent), query, respondent, is.critic, is.feedback, is.pairwise, is.reward, is.rewards)
		return true, nil
	}
	_, err = t.exec("UPDATE grades SET critic = ?, feedback = ?, pairwise = ?, reward = ?, rewards = ? WHERE answer = ?",
		is.critic, is.feedback, is.pairwise, is.reward, is.rewards, answerKey(query, respondent))
	return true, err
}

// gradeColumns is a row of grades.
type gradeColumns struct {
	critic             any     // int32 or nothing
	feedback, pairwise any     // string or nothing
	reward             float64 // what the user thinks now
	rewards            int32   // the count of that reward: how often the user said so
}

// apply takes a grade in. Of rewards that are counted the highest count holds, in whatever order they come.
func (l *gradeColumns) apply(g Grade) {
	if g.Critic != nil {
		l.critic = int32(*g.Critic)
	}
	if g.Feedback != nil {
		l.feedback = *g.Feedback
	}
	if g.Pairwise != nil {
		l.pairwise = *g.Pairwise
	}
	switch {
	case g.Reward == nil || g.Count > 0 && int32(g.Count) <= l.rewards:
	case g.Count > 0:
		l.reward, l.rewards = *g.Reward, int32(g.Count)
	case l.rewards < math.MaxInt32:
		l.reward, l.rewards = *g.Reward, l.rewards+1
	default:
		l.reward = *g.Reward
	}
}

// restoreGrades writes the grades that an entry of an export brings, where there are none yet.
func (t *tx) restoreGrades(e subjects.MemoryEntry) error {
	g := e.Grades
	if g == (subjects.Grades{}) {
		return nil
	}
	put := func(respondent string, l gradeColumns) error {
		there, key := false, answerKey(e.Provenance.QueryID, respondent)
		err := t.query(func(*sql.Rows) error { there = true; return nil }, "SELECT 1 FROM grades WHERE answer = ?", key)
		if err == nil && !there {
			t.insert("grades", key, e.Provenance.QueryID, respondent, l.critic, l.feedback, l.pairwise, l.reward, l.rewards)
		}
		return err
	}
	if g.Pairwise != "" {
		if err := put("", gradeColumns{pairwise: g.Pairwise}); err != nil {
			return err
		}
	}
	own := gradeColumns{reward: g.Reward, rewards: int32(g.Rewards)}
	if own.rewards == 0 && own.reward != 0 {
		own.rewards = 1
	}
	if g.Critic != 0 {
		own.critic = int32(g.Critic)
	}
	if g.Feedback != "" {
		own.feedback = g.Feedback
	}
	if own == (gradeColumns{}) {
		return nil
	}
	return put(e.Respondent, own)
}

// gradeTarget is an answer whose grades are read.
type gradeTarget struct {
	query, respondent string
	to                *subjects.Grades
}

// readGrades reads what is thought of answers: of the one, and of all answers to its question.
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
			err := r.Scan(&key, &g.critic, &g.feedback, &g.pairwise, &g.reward, &g.rewards)
			rows[key] = g
			return err
		}, "SELECT answer, critic, feedback, pairwise, reward, rewards FROM grades WHERE answer IN "+in, named...)
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

// gradeRow is a row of grades as it is read.
type gradeRow struct {
	critic             sql.NullInt32
	feedback, pairwise sql.NullString
	reward             float64
	rewards            int
}

// applyTo puts a row into what is thought of an answer. The one for all answers comes first: what is said of this one replaces
// it.
func (g gradeRow) applyTo(to *subjects.Grades) {
	if g.critic.Valid {
		to.Critic, to.Feedback = int(g.critic.Int32), ""
	}
	if g.feedback.Valid {
		to.Feedback = g.feedback.String
	}
	if g.pairwise.Valid {
		to.Pairwise = g.pairwise.String
	}
	if g.rewards > 0 {
		to.Reward, to.Rewards = g.reward, g.rewards
	}
}
