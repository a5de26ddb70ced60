package recall_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/pkg/vector"
	"conclave/subjects"
)

// TestFind: what is found, in which order.
func TestFind(t *testing.T) {
	t.Parallel()
	words := func(text string) recall.Query { return recall.Query{Text: text} }
	meaning := recall.Query{Text: "...", Vector: cacheQuery()}
	both := func(text string) recall.Query { return recall.Query{Text: text, Vector: cacheQuery()} }
	for _, tt := range []struct {
		name  string
		plain bool // not hybrid
		fill  func(m mind)
		q     recall.Query
		want  string
		names string // "" = not looked at
	}{
		{name: "nothing is there", fill: func(mind) {}, q: both("coffee"), want: ""},
		{name: "the nearest first", fill: func(m mind) {
			m.put(row(1, "a", "x"), 0.5, 0.5)
			m.put(row(2, "b", "y"), 0.9, 0.9)
			m.put(row(3, "c", "z"), 0.7, 0.7)
		}, q: meaning, want: "m2 m3 m1"},
		{name: "equals in the order of their keys", fill: func(m mind) {
			for _, key := range []uint64{5, 3, 9, 1} {
				m.put(row(key, "n"+strings.Repeat("n", int(key)), "x"+strings.Repeat("x", int(key))), 0.5, 0.5)
			}
		}, q: meaning, want: "m1 m3 m5 m9"},
		{name: "the best of the vectors counts", fill: func(m mind) {
			m.put(row(1, "a", "x"), 0.8, 0.4)
			m.put(row(2, "b", "y"), 0.7, 0.9)
		}, q: meaning, want: "m2 m1", names: "m2 m1"},
		{name: "a good description of a far text is found among many", fill: func(m mind) {
			for key := range uint64(200) {
				m.put(row(key+1, "n"+strings.Repeat("n", int(key)), "x"+strings.Repeat("x", int(key))), 0.6, 0.5)
			}
			m.put(row(201, "far", "near"), 0.1, 0.99)
		}, q: recall.Query{Text: "...", Vector: cacheQuery(), Top: 2}, want: "m201 m1"},
		{name: "a good name of a far text is found among many", fill: func(m mind) {
			for key := range uint64(200) {
				m.put(row(key+1, "n"+strings.Repeat("n", int(key)), "x"+strings.Repeat("x", int(key))), 0.6, 0.6)
			}
			if err := m.Put(201, row(201, "near", "far").MemoryEntry,
				recall.Vectors{Corpus: near(0.1, 3), Name: near(0.9, 3)}); err != nil {
				m.t.Fatal(err)
			}
		}, q: recall.Query{Text: "...", Vector: cacheQuery(), Top: 2}, want: "m201 m1"},
		{name: "two rows of the same name", fill: func(m mind) {
			m.put(row(1, "a chat", "x", text("about the boat")), 0.8, 0.8)
			m.put(row(2, "a chat", "y", text("about the dog")), 0.7, 0.7)
		}, q: meaning, want: "m1 m2"},
		{name: "a neighbour in the conversation is lifted above an unrelated row", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2)), 0.3, 0.3)
			m.put(row(3, "c", "z"), 0.5, 0.5)
			m.put(row(4, "d", "w", said("c", 4)), 0.3, 0.3)
			m.put(row(5, "e", "v", said("other", 3)), 0.3, 0.3)
		}, q: recall.Query{Text: "...", Vector: cacheQuery(), Top: 3}, want: "m1 m2 m3"},
		{name: "a neighbour is lifted over the floor", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2)), 0.1, 0.1)
			m.put(row(3, "c", "z"), 0.1, 0.1)
		}, q: meaning, want: "m1 m2"},
		{name: "rows that count alone are not lifted", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2)), 0.1, 0.1)
		}, q: recall.Query{Text: "...", Vector: cacheQuery(), Alone: true}, want: "m1"},
		{name: "trick: a neighbour that does not count lifts nothing", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1), state(subjects.MemoryCandidate)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2)), 0.1, 0.1)
		}, q: meaning, want: ""},
		{name: "trick: an untrusted neighbour lifts nothing trusted, nor is it lifted", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1), trust(subjects.Untrusted)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2)), 0.1, 0.1)
			m.put(row(3, "c", "z", said("d", 1)), 0.8, 0.8)
			m.put(row(4, "d", "w", said("d", 2), trust(subjects.Untrusted)), 0.1, 0.1)
		}, q: meaning, want: "m1 m3"},
		{name: "an untrusted row between trusted neighbours", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2), trust(subjects.Untrusted)), 0.1, 0.1)
			m.put(row(3, "c", "z", said("c", 3)), 0.1, 0.1)
		}, q: meaning, want: "m1 m3"},
		{name: "trusted rows only", fill: func(m mind) {
			m.put(row(1, "a", "x", trust(subjects.Untrusted)), 0.9, 0.9)
			m.put(row(2, "b", "y"), 0.5, 0.5)
		}, q: recall.Query{Text: "...", Vector: cacheQuery(), Trusted: true}, want: "m2"},
		{name: "rows that do not count between neighbours", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2), state(subjects.MemoryCandidate)), 0.9, 0.9)
			m.put(row(3, "c", "z", said("c", 3)), 0.1, 0.1)
		}, q: meaning, want: "m1 m3"},
		{name: "rows of other days are no neighbours", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1), on("2026-02-01")), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2), on("2026-02-03")), 0.1, 0.1)
			m.put(row(3, "c", "z", said("c", 3)), 0.1, 0.1)
		}, q: meaning, want: "m1"},
		{name: "a removed neighbour lifts nothing", fill: func(m mind) {
			m.put(row(1, "a", "x", said("c", 1)), 0.9, 0.9)
			m.put(row(2, "b", "y", said("c", 2)), 0.1, 0.1)
			m.Remove(1)
		}, q: meaning, want: ""},
		{name: "the speaker whom the question names", fill: func(m mind) {
			m.put(row(1, "a", "x", by("Ben")), 0.6, 0.6)
			m.put(row(2, "b", "y", by("Caroline")), 0.55, 0.55)
		}, q: both("What did CAROLINE do?"), want: "m2 m1"},
		{name: "the beginning of a speaker's name", fill: func(m mind) {
			m.put(row(1, "a", "x", by("Ben")), 0.6, 0.6)
			m.put(row(2, "b", "y", by("Melanie")), 0.55, 0.55)
		}, q: both("What about Mel's kids?"), want: "m2 m1"},
		{name: "trick: the beginning of two names", fill: func(m mind) {
			m.put(row(1, "a", "x", by("Melissa")), 0.6, 0.6)
			m.put(row(2, "b", "y", by("Melanie")), 0.55, 0.55)
			m.put(row(3, "c", "z", by("Ben")), 0.58, 0.58)
		}, q: both("What about Mel?"), want: "m1 m3 m2"},
		{name: "trick: a word that begins like a name", fill: func(m mind) {
			m.put(row(1, "a", "x", by("Ben")), 0.6, 0.6)
			m.put(row(2, "b", "y", by("Arthur")), 0.55, 0.55)
		}, q: both("Which art?"), want: "m1 m2"},
		{name: "the day that the question names", fill: func(m mind) {
			m.put(row(1, "a", "x", on("2026-01-20")), 0.6, 0.6)
			m.put(row(2, "b", "y", on("2026-02-08")), 0.55, 0.55)
		}, q: both("what happened on 8 February 2026?"), want: "m2 m1"},
		{name: "when it was stored, where nothing else is known", fill: func(m mind) {
			m.put(row(1, "a", "x", kind(subjects.KindFact), days(30)), 0.6, 0.6)
			m.put(row(2, "b", "y", kind(subjects.KindFact), days(1)), 0.55, 0.55)
		}, q: both("what was yesterday?"), want: "m2 m1"},
		{name: "below the floor", fill: func(m mind) {
			m.put(row(1, "tea", "green tea"), 0.2, 0.2)
		}, q: both("coffee"), want: ""},
		{name: "below the floor, but with a word", fill: func(m mind) {
			m.put(row(1, "coffee", "black"), 0.2, 0.2)
			m.put(row(2, "tea", "green"), 0.2, 0.2)
		}, q: both("coffee"), want: "m1"},
		{name: "below the floor, with a word that tells nothing", fill: func(m mind) {
			m.put(row(1, "what is it", "that which is"), 0.2, 0.2)
		}, q: both("what is coffee"), want: ""},
		{name: "a good grade does not lift over the floor", fill: func(m mind) {
			m.put(row(1, "tea", "x", graded(subjects.Grades{Critic: 5, Reward: 1}), pinned), 0.2, 0.2)
		}, q: meaning, want: ""},
		{name: "words lift", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.61, 0.61)
			m.put(row(2, "coffee", "black"), 0.6, 0.6)
		}, q: both("black coffee"), want: "m2 m1"},
		{name: "vectors lead", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.8, 0.8)
			m.put(row(2, "coffee", "white", text("with milk and sugar, in the afternoon")), 0.5, 0.5)
		}, q: both("black coffee at night"), want: "m1 m2"},
		{name: "found by words among many nearer names", fill: func(m mind) {
			for key := range uint64(60) {
				m.put(row(key+1, "n"+strings.Repeat("n", int(key)), "x"+strings.Repeat("x", int(key))), 0.5, 0.5)
			}
			m.put(row(61, "Zubrowka", "the recipe of the vodka"), 0.45, 0.45)
		}, q: recall.Query{Text: "zubrowka recipe", Vector: cacheQuery(), Top: 1}, want: "m61"},
		{
			name: "trick: one common word does not push in", fill: func(m mind) {
				for key := range uint64(60) {
					m.put(row(key+1, "n"+strings.Repeat("n", int(key)), "x"+strings.Repeat("x", int(key))), 0.6, 0.6)
				}
				m.put(row(61, "the one of all", "what is it that I like"), 0.3, 0.3)
			}, q: recall.Query{Text: "what do I like about the one mountain", Vector: cacheQuery(), Top: 20, Names: 20},
			want: "m1 m2 m3 m4 m5 m6 m7 m8 m9 m10 m11 m12 m13 m14 m15 m16 m17 m18 m19 m20",
		},
		{name: "without hybrid words do not count", plain: true, fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.61, 0.61)
			m.put(row(2, "coffee", "black"), 0.6, 0.6)
			m.bare(row(3, "coffee again", "black coffee"))
		}, q: both("black coffee"), want: "m1 m2"},
		{name: "without hybrid and without a vector they do", plain: true, fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.61, 0.61)
			m.put(row(2, "coffee", "black"), 0.6, 0.6)
		}, q: words("black coffee"), want: "m2"},
		{name: "a row without vectors beside others", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.5, 0.5)
			m.bare(row(2, "coffee", "black"))
			m.bare(row(3, "bread", "white"))
		}, q: both("black coffee"), want: "m2 m1"},
		{name: "without a vector", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.9, 0.9)
			m.put(row(2, "coffee", "black, in the morning"), 0.1, 0.1)
			m.bare(row(3, "coffee", "with milk, in the afternoon"))
		}, q: words("black coffee"), want: "m2 m3"},
		{name: "without a vector and without a word of it", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.9, 0.9)
		}, q: words("coffee"), want: ""},
		{name: "only signs", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.9, 0.9)
		}, q: words("?!"), want: ""},
		{name: "a vector and no text", fill: func(m mind) {
			m.put(row(1, "tea", "green"), 0.9, 0.9)
		}, q: recall.Query{Vector: cacheQuery()}, want: "m1"},
		{name: "common words count when there are no others", fill: func(m mind) {
			m.bare(row(1, "who I am", "I am Ada"))
			m.bare(row(2, "tea", "green"))
		}, q: words("Who am I?"), want: "m1"},
		{name: "by a tag", fill: func(m mind) {
			m.bare(row(1, "a", "x", tagged("travel", "Japan")))
		}, q: words("japan"), want: "m1"},
		{name: "by the beginning of the corpus", fill: func(m mind) {
			m.bare(row(1, "a", "x", func(r *entry) { r.Corpus = "It was in Kyoto." }))
		}, q: words("kyoto"), want: "m1"},
		{name: "by a plural", fill: func(m mind) {
			m.bare(row(1, "Our dogs", "two stories about boxes"))
		}, q: words("dog story box"), want: "m1"},
		{name: "of a kind", fill: func(m mind) {
			m.put(row(1, "a", "x"), 0.9, 0.9)
			m.put(row(2, "b", "y", kind(subjects.KindFact)), 0.8, 0.8)
			m.put(row(3, "c", "z", kind(subjects.KindDocument)), 0.7, 0.7)
			m.put(row(4, "d", "w", kind("poem")), 0.6, 0.6)
			m.put(row(5, "e", "v", kind("song")), 0.6, 0.6)
		}, q: recall.Query{Vector: cacheQuery(), Kind: subjects.KindFact}, want: "m2"},
		{name: "of a kind that is new", fill: func(m mind) {
			m.put(row(4, "d", "w", kind("poem")), 0.6, 0.6)
			m.put(row(5, "e", "v", kind("song")), 0.6, 0.6)
		}, q: recall.Query{Vector: cacheQuery(), Kind: "poem"}, want: "m4"},
		{name: "of a kind that nothing is", fill: func(m mind) {
			m.put(row(1, "a", "x"), 0.9, 0.9)
		}, q: recall.Query{Vector: cacheQuery(), Kind: "poem"}, want: ""},
		{name: "trick: superseded, candidate and nameless states", fill: func(m mind) {
			m.put(row(1, "coffee", "x", state(subjects.MemorySuperseded)), 0.9, 0.9)
			m.put(row(2, "coffee b", "y", state(subjects.MemoryCandidate)), 0.9, 0.9)
			m.put(row(3, "coffee c", "z", state("")), 0.9, 0.9)
			m.put(row(4, "coffee d", "w", state("Active")), 0.9, 0.9)
			m.bare(row(5, "coffee e", "v", state(subjects.MemoryCandidate)))
		}, q: both("coffee"), want: ""},
		{name: "all states when asked", fill: func(m mind) {
			m.put(row(1, "coffee", "x", state(subjects.MemorySuperseded)), 0.9, 0.9)
			m.put(row(2, "coffee b", "y", state(subjects.MemoryCandidate)), 0.8, 0.8)
			m.put(row(3, "coffee c", "z"), 0.7, 0.7)
		}, q: recall.Query{Text: "...", Vector: cacheQuery(), All: true}, want: "m1 m2 m3"},
		{name: "trick: many that do not count are nearer", fill: func(m mind) {
			for key := range uint64(200) {
				m.put(row(key+1, "n"+strings.Repeat("n", int(key)), "x"+strings.Repeat("x", int(key)),
					state(subjects.MemorySuperseded)), 0.9, 0.9)
			}
			m.put(row(201, "a", "b"), 0.5, 0.5)
		}, q: meaning, want: "m201"},
		{name: "trick: many that do not count have more of its words", fill: func(m mind) {
			for key := range uint64(60) {
				m.bare(row(key+1, fmt.Sprint("black coffee ", key), fmt.Sprint("of day ", key),
					state(subjects.MemoryCandidate)))
			}
			m.bare(row(61, "bread", "with coffee"))
			for key := range uint64(90) { // so that the words tell something
				m.bare(row(key+101, fmt.Sprint("tea ", key), fmt.Sprint("of month ", key)))
			}
		}, q: words("black coffee"), want: "m61"},
		{name: "removed", fill: func(m mind) {
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
			m.put(row(2, "coffee too", "y"), 0.8, 0.8)
			m.bare(row(3, "coffee also", "z"))
			m.Remove(1, 3, 77)
		}, q: both("coffee"), want: "m2"},
		{name: "removed and put again", fill: func(m mind) {
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
			m.Remove(1)
			m.put(row(1, "tea", "x"), 0.8, 0.8)
		}, q: words("tea"), want: "m1"},
		{name: "replaced: the old words do not find it", fill: func(m mind) {
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
			m.put(row(1, "tea", "x"), 0.9, 0.9)
		}, q: words("coffee"), want: ""},
		{name: "replaced: the old vectors do not find it", fill: func(m mind) {
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
			m.bare(row(1, "tea", "x"))
		}, q: recall.Query{Vector: cacheQuery()}, want: ""},
		{name: "replaced: another state", fill: func(m mind) {
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
			m.put(row(1, "coffee", "x", state(subjects.MemoryCandidate)), 0.9, 0.9)
		}, q: both("coffee"), want: ""},
		{name: "superseded later", fill: func(m mind) {
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
			m.put(row(2, "coffee too", "y"), 0.8, 0.8)
			m.put(row(1, "coffee", "x", state(subjects.MemorySuperseded)), 0.9, 0.9)
		}, q: both("coffee"), want: "m2"},
		{name: "decided later", fill: func(m mind) {
			m.put(row(1, "coffee", "x", state(subjects.MemoryCandidate)), 0.9, 0.9)
			m.put(row(1, "coffee", "x"), 0.9, 0.9)
		}, q: both("coffee"), want: "m1"},
		{name: "fewer at the end", fill: func(m mind) {
			m.put(row(1, "a", "x"), 0.9, 0.9)
			m.put(row(2, "b", "y"), 0.8, 0.8)
		}, q: recall.Query{Vector: cacheQuery(), Top: 1}, want: "m1", names: "m1 m2"},
		{name: "Chinese without blanks", fill: func(m mind) {
			m.bare(row(1, "用户喜欢黑咖啡", "早上喝"))
			m.bare(row(2, "用户喜欢绿茶", "晚上喝"))
		}, q: words("咖啡"), want: "m1"},
		{name: "one Chinese character", fill: func(m mind) {
			m.bare(row(1, "黑猫的名字", "它叫小黑"))
			m.bare(row(2, "绿茶", "晚上喝"))
		}, q: words("猫"), want: "m1"},
		{name: "Japanese within a sentence", fill: func(m mind) {
			m.bare(row(1, "京都旅行の計画", "来年の春に行く"))
			m.bare(row(2, "猫の名前", "たま"))
		}, q: words("京都に行くのはいつ"), want: "m1"},
		{name: "Korean with endings", fill: func(m mind) {
			m.bare(row(1, "커피를 좋아한다", "아침마다 마신다"))
			m.bare(row(2, "녹차", "저녁"))
		}, q: words("커피가"), want: "m1"},
		{name: "accents and capitals", fill: func(m mind) {
			m.bare(row(1, "Müller in the CAFÉ", "Straße, Łódź"))
		}, q: words("muller cafe strasse lodz"), want: "m1"},
		{name: "trick: a word with something invisible in it", fill: func(m mind) {
			m.bare(row(1, "cof\u200bf\u00adee", "x"))
		}, q: words("coffee"), want: "m1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMind(t, func(o *recall.Options) { o.Hybrid = !tt.plain })
			tt.fill(m)
			f := m.find(tt.q)
			if got := ids(f.Top); got != tt.want {
				t.Errorf("found %q, want %q\n%+v", got, tt.want, f)
			}
			if got := ids(f.Names); tt.names != "" && got != tt.names {
				t.Errorf("names %q, want %q", got, tt.names)
			}
			for _, c := range slices.Concat(f.Names, f.Top) {
				if !addUp(c) || c.Similarity < -1 || c.Similarity > 1 {
					t.Errorf("%s: similarity %v, score %v, reasons %+v", c.Entry.ID, c.Similarity, c.Score, c.Reasons)
				}
			}
		})
	}
}

// TestFindRefuses: what cannot be looked for.
func TestFindRefuses(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "coffee", "x"), 0.9, 0.9)
	nan, inf := cacheQuery(), cacheQuery()
	nan[3], inf[3] = float32(math.NaN()), float32(math.Inf(-1))
	for _, tt := range []struct {
		name string
		q    recall.Query
		is   error
		text string
	}{
		{"nothing", recall.Query{}, recall.ErrEmpty, "give some words"},
		{"blanks", recall.Query{Text: " \n\t"}, recall.ErrEmpty, "give some words"},
		{
			"a vector of another model",
			recall.Query{Text: "coffee", Vector: make([]float32, 7)},
			vector.ErrDims,
			"7, not 64",
		},
		{"an empty vector", recall.Query{Text: "coffee", Vector: []float32{}}, vector.ErrDims, "0, not 64"},
		{"no number", recall.Query{Text: "coffee", Vector: nan}, vector.ErrNotFinite, ""},
		{"infinite", recall.Query{Text: "coffee", Vector: inf}, vector.ErrNotFinite, ""},
		{"points nowhere", recall.Query{Text: "coffee", Vector: make([]float32, dims)}, vector.ErrZero, ""},
		{"fewer than none", recall.Query{Text: "coffee", Top: -1}, nil, "at least 1"},
		{"fewer names than none", recall.Query{Text: "coffee", Names: -3}, nil, "at least 1"},
	} {
		f, err := m.Find(tt.q)
		if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) ||
			len(f.Top)+len(f.Names) > 0 {
			t.Errorf("%s: %+v, %v", tt.name, f, err)
		}
	}
}

// TestPutRefuses: what cannot be put changes nothing.
func TestPutRefuses(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "coffee", "black"), 0.9, 0.9)
	nan := near(0.5, 1)
	nan[0] = float32(math.NaN())
	good := near(0.9, 1)
	tea := row(1, "tea", "green")
	for _, tt := range []struct {
		name            string
		row             entry
		corpus, another []float32
		is              error
	}{
		{"no id", entry{1, subjects.MemoryEntry{Name: "tea"}}, good, good, recall.ErrRow},
		{"a key that no database counts to", row(1<<32, "tea", "green"), good, good, recall.ErrRow},
		{"the largest key", row(math.MaxUint64, "tea", "green"), good, good, recall.ErrRow},
		{"no vector of the corpus", tea, nil, good, recall.ErrVectors},
		{"too short", tea, good, good[:10], vector.ErrDims},
		{"empty", tea, []float32{}, []float32{}, vector.ErrDims},
		{"no number", tea, good, nan, vector.ErrNotFinite},
		{"nowhere", tea, make([]float32, dims), good, vector.ErrZero},
	} {
		for _, v := range []recall.Vectors{
			{Corpus: tt.corpus, Description: tt.another},
			{Corpus: tt.corpus, Name: tt.another},
		} {
			if err := m.Put(tt.row.Key, tt.row.MemoryEntry, v); !errors.Is(err, tt.is) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		f := m.find(recall.Query{Text: "coffee", Vector: cacheQuery()})
		if s := m.Stats(); ids(f.Top) != "m1" || f.Top[0].Entry.Name != "coffee" || s.Rows != 1 || s.Vectors != 1 ||
			s.Words != 1 {
			t.Errorf("%s: %+v, %+v", tt.name, f.Top, s)
		}
	}
}

// TestRow: what was put comes out, as far as it is kept.
func TestRow(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	in := row(7, "Ωmega — name", "descr\x00iption \xff", kind(subjects.KindFact),
		tagged("", "a", strings.Repeat("long ", 100), "日本"), pinned, days(3),
		graded(subjects.Grades{Critic: 4, Feedback: "well said", Pairwise: "b", Reward: -0.25, Rewards: 3}))
	in.Corpus, in.Conversation, in.Position, in.Speaker, in.Happened = "words", "c1", 3, "Ana", now.AddDate(0, 0, -5)
	m.put(in, 0.9, 0.9)
	want := in.MemoryEntry
	want.Corpus, want.Description, want.Grades.Feedback = "", "", ""
	got := m.find(recall.Query{Vector: cacheQuery()}).Top[0].Entry
	if !slices.Equal(got.Tags, want.Tags) {
		t.Errorf("tags %q", got.Tags)
	}
	got.Tags, want.Tags = nil, nil
	if !got.Created.Equal(want.Created) {
		t.Errorf("created %v", got.Created)
	}
	got.Created = want.Created
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if m.Grade(8, subjects.Grades{Critic: 1}) {
		t.Error("a row that is not there was changed")
	}
	if !m.Grade(7, subjects.Grades{}) {
		t.Error("no row")
	}
	got = m.find(recall.Query{Vector: cacheQuery()}).Top[0].Entry
	if got.Grades != (subjects.Grades{}) || got.Name != want.Name || got.Respondent != "a" {
		t.Errorf("after changes: %+v", got)
	}
}

// TestNew: what no recall is made of.
func TestNew(t *testing.T) {
	t.Parallel()
	good := recall.Options{Dims: 8, Now: clock}
	for _, tt := range []struct {
		name   string
		change func(*recall.Options)
		text   string
	}{
		{"no clock", func(o *recall.Options) { o.Now = nil }, "clock"},
		{"no dimensions", func(o *recall.Options) { o.Dims = 0 }, "dimensions"},
		{"a weight below zero", func(o *recall.Options) {
			o.Weights = recall.DefaultWeights()
			o.Weights.Critic = -0.1
		}, "between 0 and 1"},
		{"a weight that is no number", func(o *recall.Options) {
			o.Weights = recall.DefaultWeights()
			o.Weights.Bound = math.NaN()
		}, "between 0 and 1"},
		{"no half-life", func(o *recall.Options) {
			o.Weights = recall.DefaultWeights()
			o.Weights.HalfLife = 0
		}, "half_life"},
	} {
		o := good
		tt.change(&o)
		if r, err := recall.New(o); err == nil || !strings.Contains(err.Error(), tt.text) || r != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestClosed: nobody finds or writes any more.
func TestClosed(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "coffee", "x"), 0.9, 0.9)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	err := m.Put(2, row(2, "tea", "x").MemoryEntry, recall.Vectors{Corpus: cacheQuery()})
	if !errors.Is(err, vector.ErrClosed) {
		t.Errorf("put: %v", err)
	}
	m.Remove(1)
	if _, err := m.Find(recall.Query{Vector: cacheQuery()}); !errors.Is(err, vector.ErrClosed) {
		t.Errorf("find: %v", err)
	}
}
