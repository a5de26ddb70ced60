package recall_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// TestGrades: what others thought turns the order of answers that are about equally similar. m1 is always a bit nearer.
func TestGrades(t *testing.T) {
	t.Parallel()
	grade := func(g subjects.Grades) func(*entry) { return graded(g) }
	nothing := func(*entry) {}
	for _, tt := range []struct {
		name          string
		first, second func(*entry) // of m1 and m2
		want          string
		reason        string // the text of m2's only shift, "" = it has none
	}{
		{"nobody said anything", nothing, nothing, "m1 m2", ""},
		{"a high grade rises", nothing, grade(subjects.Grades{Critic: 5}), "m2 m1", "critic: critic gave 5 of 5"},
		{"a low grade sinks", grade(subjects.Grades{Critic: 1}), nothing, "m2 m1", ""},
		{
			"3 is neither", grade(subjects.Grades{Critic: 3}), grade(subjects.Grades{Critic: 3}), "m1 m2",
			"critic: critic gave 3 of 5",
		},
		{
			"trick: a grade above 5", grade(subjects.Grades{Critic: 5}), grade(subjects.Grades{Critic: 1000}), "m1 m2",
			"critic: critic gave 5 of 5",
		},
		{"trick: a grade below 1 is none", nothing, grade(subjects.Grades{Critic: -7}), "m1 m2", ""},
		{"the better of two", nothing, grade(subjects.Grades{Pairwise: "a"}), "m2 m1", "pairwise: the better of two " +
			"answers"},
		{"the other was better", grade(subjects.Grades{Pairwise: "b"}), nothing, "m2 m1", ""},
		{"neither was better", nothing, grade(subjects.Grades{Pairwise: "tie"}), "m1 m2", "pairwise: as good as " +
			"another answer"},
		{"trick: a winner, and nobody knows who answered", nothing, func(r *entry) {
			r.Respondent, r.Grades.Pairwise = "", "a"
		}, "m1 m2", ""},
		{"rewarded", nothing, grade(subjects.Grades{Reward: 1, Rewards: 1}), "m2 m1", "reward: reward +1.00"},
		{"punished", grade(subjects.Grades{Reward: -1, Rewards: 2}), nothing, "m2 m1", ""},
		{
			"the mean of several", nothing, grade(subjects.Grades{Reward: 0.5, Rewards: 4}), "m2 m1",
			"reward: reward +0.50, the mean of 4",
		},
		{
			"trick: a reward above 1", grade(subjects.Grades{Reward: 1, Rewards: 1}),
			grade(subjects.Grades{Reward: 1e300, Rewards: 1}), "m1 m2", "reward: reward +1.00",
		},
		{
			"trick: a reward that is no number", nothing, grade(subjects.Grades{Reward: math.NaN(), Rewards: 1}),
			"m1 m2",
			"reward: reward +0.00",
		},
		{"pinned", nothing, pinned, "m2 m1", "pinned: pinned"},
		{"older", days(400), nothing, "m2 m1", ""},
		{"both old", days(400), days(400), "m1 m2", "age: asked 400 days ago"},
		{"a day old", nothing, days(1), "m1 m2", "age: asked yesterday"},
		{"trick: from the future", nothing, days(-400), "m1 m2", ""},
		// a duration does not reach farther
		{"trick: from before all time", days(300_000), days(700_000), "m1 m2", "age: asked 106751 days ago"},
		{"a fact does not age", nothing, func(r *entry) { days(400)(r); r.Kind = subjects.KindFact }, "m1 m2", ""},
		{"a document does not age", nothing, func(r *entry) {
			days(400)(r)
			r.Kind = subjects.KindDocument
		}, "m1 m2", ""},
		{"what is pinned does not age", days(400), func(r *entry) {
			days(400)(r)
			r.Pinned = true
		}, "m2 m1", "pinned: pinned"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMind(t)
			m.put(row(1, "one", "x", tt.first), 0.71, 0.71)
			m.put(row(2, "two", "y", tt.second), 0.7, 0.7)
			f := m.find(recall.Query{Text: "...", Vector: cacheQuery()})
			if got := ids(f.Top); got != tt.want {
				t.Errorf("%s, want %s: %+v", got, tt.want, f.Top)
			}
			var shifts []string
			at := slices.IndexFunc(f.Top, func(c subjects.MemoryHit) bool { return c.Entry.ID == "m2" })
			for _, r := range f.Top[at].Reasons[1:] {
				shifts = append(shifts, r.What+": "+r.Text)
			}
			if got := strings.Join(shifts, "; "); got != tt.reason {
				t.Errorf("reasons %q, want %q", got, tt.reason)
			}
			if got := ids(f.Names); got != tt.want {
				t.Errorf("the names are in another order: %s", got)
			}
		})
	}
}

// TestGradeLater: a grade counts from the moment it is given.
func TestGradeLater(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "one", "x"), 0.71, 0.71)
	m.put(row(2, "two", "y"), 0.7, 0.7)
	for _, tt := range []struct {
		name string
		do   func()
		want string
	}{
		{"nothing yet", func() {}, "m1 m2"},
		{"a low grade", func() { m.Grade(1, subjects.Grades{Critic: 1}) }, "m2 m1"},
		{"a better one after all", func() { m.Grade(1, subjects.Grades{Critic: 4}) }, "m1 m2"},
		{"pinned", func() {
			pinned := row(2, "two", "y")
			pinned.Pinned = true
			m.put(pinned, 0.7, 0.7)
		}, "m2 m1"},
		{"unpinned", func() { m.put(row(2, "two", "y"), 0.7, 0.7) }, "m1 m2"},
	} {
		tt.do()
		if got := ids(m.find(recall.Query{Vector: cacheQuery()}).Top); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestReasons: what a user reads.
func TestReasons(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "Coffee", "Black, never with milk", said("c", 1), by("Ana"), on("2026-01-20"), days(40),
		graded(subjects.Grades{Critic: 2})), 0.8, 0.6)
	m.put(row(2, "Coffee", "Black", said("c", 2), text("black coffee, taken black")), 0.95, 0.95)
	m.bare(row(3, "tea", "green"))
	c := m.find(recall.Query{Text: "did Ana take BLACK coffees on 22 January 2026?", Vector: cacheQuery()}).Top[0]
	var got []string
	for _, r := range c.Reasons {
		got = append(got, r.What+": "+r.Text)
	}
	const want = "corpus: the text is near by 0.80\nwords: words: ana, black, coffees, january, 2026\n" +
		"neighbours: next to a better match in the conversation\n" +
		"speaker: said by Ana\nwhen: of 2026-01-20\ncritic: critic gave 2 of 5\nage: asked 40 days ago"
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("%s", s)
	}
	w := recall.DefaultWeights()
	for what, want := range map[string]float64{
		"corpus": 0.8, "speaker": w.Speaker, "when": w.When * 5 / 7, "critic": -w.Critic / 2,
		"age": -w.Age * (1 - math.Exp2(-40.0/90)),
	} {
		if r, ok := reason(c, what); !ok || math.Abs(r.Value-want) > 1e-4 {
			t.Errorf("%s counts %v, want %v", what, r.Value, want)
		}
	}
	if r, _ := reason(c, "words"); r.Value <= 0 || r.Value > w.Words {
		t.Errorf("words count %v", r.Value)
	}
	if math.Abs(c.Similarity-0.8) > 1e-4 || !addUp(c) {
		t.Errorf("similarity %v, score %v", c.Similarity, c.Score)
	}
}

// anyRow is a row with whatever grades and whatever age.
func anyRow(rt *rapid.T, key uint64) entry {
	r := row(key, "n"+strings.Repeat("n", int(key)), "d"+strings.Repeat("d", int(key)))
	r.Kind = rapid.SampledFrom([]string{subjects.KindEngram, subjects.KindFact, subjects.KindDocument, "", "poem"}).
		Draw(rt, "kind")
	r.Created = now.AddDate(0, 0, -rapid.IntRange(-10, 5000).Draw(rt, "days"))
	r.Pinned = rapid.Bool().Draw(rt, "pinned")
	r.Respondent = rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "respondent")
	r.Grades = subjects.Grades{
		Critic: rapid.IntRange(-1, 7).Draw(rt, "critic"), Pairwise: rapid.SampledFrom([]string{"", "a", "b", "tie"}).
			Draw(rt, "pairwise"),
		Reward: rapid.Float64Range(-3, 3).Draw(rt, "reward"), Rewards: rapid.IntRange(-1, 9).Draw(rt, "rewards"),
	}
	if rapid.IntRange(0, 3).Draw(rt, "word") == 0 {
		r.Description += " coffee"
	}
	return r
}

// anyWeights are sensible or wild.
func anyWeights(rt *rapid.T) recall.Weights {
	w := recall.DefaultWeights()
	if rapid.Bool().Draw(rt, "usual") {
		return w
	}
	part := rapid.Float64Range(0, 1)
	w.Words, w.Alone = part.Draw(rt, "words"), part.Draw(rt, "alone")
	w.Critic, w.Pairwise, w.Reward, w.Age, w.Pinned, w.Bound = part.Draw(rt, "c"), part.Draw(rt, "p"), part.Draw(rt,
		"r"), part.Draw(rt, "a"), part.Draw(rt, "pin"), part.Draw(rt, "bound")
	return w
}

// TestScores: whatever is there, the reasons add up to the score, the shifts stay within their bound, and two rows
// whose scores without shifts lie more than twice the bound apart are in the order of these, whatever anybody thinks of
// them.
func TestScores(t *testing.T) {
	t.Parallel()
	similar := []string{"corpus", "description", "words"}
	plain := func(c subjects.MemoryHit) (sum float64) {
		for _, r := range c.Reasons {
			if slices.Contains(similar, r.What) {
				sum += r.Value
			}
		}
		return sum
	}
	turned := 0 // rows that a shift brought before one that is nearer
	rapid.Check(t, func(rt *rapid.T) {
		w := anyWeights(rt)
		m := newMind(t, func(o *recall.Options) { o.Weights = w })
		defer m.Close()
		n := rapid.IntRange(1, 12).Draw(rt, "rows")
		for key := range uint64(n) {
			r := anyRow(rt, key+1)
			if rapid.IntRange(0, 4).Draw(rt, "bare") == 0 {
				m.bare(r)
				continue
			}
			cosine := rapid.Float64Range(-1, 1)
			m.put(r, cosine.Draw(rt, "name cosine"), cosine.Draw(rt, "description cosine"))
		}
		q := recall.Query{Text: "coffee", Vector: cacheQuery(), Top: 20}
		if rapid.IntRange(0, 4).Draw(rt, "only words") == 0 {
			q.Vector = nil
		}
		f := m.find(q)
		for i, c := range f.Top {
			shift := 0.0
			for _, r := range c.Reasons {
				if r.Text == "" {
					rt.Errorf("%s has no words", r.What)
				}
				if !slices.Contains(similar, r.What) {
					shift += r.Value
				}
			}
			switch {
			case !addUp(c):
				rt.Errorf("%v do not add up to %v", c.Reasons, c.Score)
			case math.Abs(shift) > w.Bound+1e-9:
				rt.Errorf("shifted by %v, and the bound is %v", shift, w.Bound)
			case math.Abs(c.Score-plain(c)-shift) > 1e-9:
				rt.Errorf("%v and shift %v make %v", plain(c), shift, c.Score)
			case c.Similarity < -1-1e-6 || c.Similarity > 1+1e-6:
				rt.Errorf("similarity %v", c.Similarity)
			}
			for _, after := range f.Top[i+1:] {
				if after.Score > c.Score || plain(after) > plain(c)+2*w.Bound+1e-9 {
					rt.Errorf("%v with %v comes before %v with %v", plain(c), c.Score, plain(after), after.Score)
				}
				if plain(after) > plain(c) {
					turned++
				}
			}
		}
	})
	if turned == 0 {
		t.Error("no grade ever turned the order of two rows")
	}
}

// TestUnrelated: with the usual weights nothing brings a stranger before what the question is about.
func TestUnrelated(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := newMind(t)
		defer m.Close()
		right, wrong := anyRow(rt, 1), anyRow(rt, 2)
		right.Description, wrong.Description = "d", "e"
		m.put(right, rapid.Float64Range(0.6, 1).Draw(rt, "right name"), rapid.Float64Range(0.6, 1).Draw(rt, "right"))
		m.put(wrong, rapid.Float64Range(-1, 0.39).Draw(rt, "wrong name"),
			rapid.Float64Range(-1, 0.39).Draw(rt, "wrong"))
		got := m.find(recall.Query{Text: "coffee", Vector: cacheQuery()}).Top
		if len(got) == 0 || got[0].Entry.ID != "m1" {
			rt.Errorf("%+v", got)
		}
	})
}

// TestHashedVectorsCountLess: of vectors made of letters only a part of the cosine counts, and words decide.
func TestHashedVectorsCountLess(t *testing.T) {
	t.Parallel()
	for hashed, first := range map[bool]string{false: "m1", true: "m2"} {
		m := newMind(t, func(o *recall.Options) { o.Hashed = hashed })
		m.put(row(1, "a walk", "in the hills", text("a walk in the hills")), 0.9, 0.9)
		m.put(row(2, "the boat", "of Ana", text("the boat of Ana")), 0.5, 0.5)
		m.put(row(3, "a song", "for Ben", text("a song for Ben")), 0.3, 0.3)
		found := m.find(recall.Query{Text: "boat in a garden", Vector: near(1, 0)})
		if ids(found.Top[:1]) != first {
			t.Errorf("hashed %t: %s is first", hashed, ids(found.Top))
		}
		for _, c := range found.Top {
			want := c.Similarity
			if hashed {
				want *= recall.DefaultWeights().Hashed
			}
			if r, _ := reason(c, "corpus"); math.Abs(r.Value-want) > 1e-9 || !addUp(c) {
				t.Errorf("hashed %t: %s has %+v", hashed, c.Entry.ID, c.Reasons)
			}
		}
	}
}
