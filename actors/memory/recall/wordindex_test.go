package recall

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conclave/pkg/text"
)

// rowText is the text of a row.
type rowText struct {
	name, description string
	tags              []string
	text              string
}

// keyed is an index that knows the number of each key.
type keyed struct {
	*wordIndex
	numbers map[uint64]uint32
}

func newKeyed() keyed { return keyed{newWordIndex(), map[uint64]uint32{}} }

func (x keyed) put(key uint64, w rowText) {
	x.remove(x.numbers[key])
	x.numbers[key] = x.add(&record{key: key, name: w.name, tags: w.tags}, w.description, w.text)
}

func (x keyed) drop(key uint64) {
	x.remove(x.numbers[key])
	delete(x.numbers, key)
}

// keysOf are the rows that a search for words finds, in their order.
func (x keyed) keysOf(query string) string {
	s := x.search(query)
	defer s.release()
	keys := slices.Sorted(maps.Keys(maps.Collect(s.matches())))
	slices.SortStableFunc(keys, func(a, b uint64) int {
		return cmp.Compare(s.match(x.numbers[b]).share, s.match(x.numbers[a]).share)
	})
	return strings.Trim(fmt.Sprint(keys), "[]")
}

// TestWordsRank: which rows come first.
func TestWordsRank(t *testing.T) {
	t.Parallel()
	filler := func(n int) string { return strings.TrimSpace(strings.Repeat("filler ", n)) }
	for _, tt := range []struct {
		name  string
		rows  []rowText // keys from 1
		query string
		want  string
	}{
		{
			"more words of the query",
			[]rowText{{name: "black"}, {name: "black coffee"}, {name: "coffee"}},
			"black coffee", "2 1 3",
		},
		{
			"a rare word before a frequent one",
			[]rowText{
				{name: "coffee one"},
				{name: "coffee two"},
				{name: "coffee three"},
				{name: "zubrowka four"},
				{name: "tea"},
				{name: "milk"},
				{name: "water"},
			},
			"zubrowka coffee", "4 1 2 3",
		},
		{"the name as good as the description", []rowText{
			{name: "x", description: "coffee"},
			{name: "coffee", description: "x"},
		}, "coffee", "1 2"},
		{"a tag as good as the name", []rowText{
			{name: "x", tags: []string{"coffee"}},
			{name: "coffee", tags: []string{"x"}},
		}, "coffee", "1 2"},
		{
			"the description as good as the text",
			[]rowText{{name: "x", text: "coffee"}, {name: "x", description: "coffee"}},
			"coffee", "1 2",
		},
		{
			"a name that is part of the text counts once",
			[]rowText{{name: "Coffee, black", text: "Coffee black is what she drinks"}, {text: "coffee black coffee " +
				"is what she drinks"}},
			"coffee", "2 1",
		},
		{
			"a description that is part of the text counts once",
			[]rowText{
				{description: "coffee black...", text: "coffee black is what she drinks"},
				{text: "coffee black is what she drinks"},
			},
			"coffee", "1 2",
		},
		{"part of a word is another word", []rowText{{name: "tea", text: "the steak was good"}}, "tea", "1"},
		{"forms of a word", []rowText{
			{text: "they were hiking"},
			{text: "she hikes"},
			{text: "a hiker"},
			{text: "tea"},
		}, "hiked", "2 1"},
		{"again and again", []rowText{
			{name: "x", description: "coffee tea"},
			{name: "x", description: "coffee coffee"},
		}, "coffee", "2 1"},
		{"short before long", []rowText{
			{name: "x", description: "coffee " + filler(60)},
			{name: "x", description: "coffee " + filler(3)},
		}, "coffee", "2 1"},
		{"equals by key", []rowText{{name: "coffee"}, {name: "coffee"}, {name: "coffee"}}, "coffee", "1 2 3"},
		{"nothing shared", []rowText{{name: "tea"}}, "coffee", ""},
		{"no words", []rowText{{name: "tea"}}, "", ""},
		{
			"trick: a name of a megabyte",
			[]rowText{{name: strings.Repeat("coffee ", 150_000)}, {name: "coffee"}},
			"coffee", "1 2",
		},
		{
			"trick: beyond what is read",
			[]rowText{{name: "x", text: strings.Repeat(" ", maxTextBytes) + "coffee"}},
			"coffee", "",
		},
		{"trick: a query of more words than bits", []rowText{{name: "coffee"}}, strings.Join(manyWords(100), " ") +
			" coffee", "1"},
		{"trick: one word a thousand times", []rowText{{name: "tea"}, {name: "coffee"}}, strings.Repeat("tea ", 900) +
			"coffee", "1 2"},
		{
			"a word that nearly all have tells nothing",
			[]rowText{
				{name: "ada a1"},
				{name: "ada a2"},
				{name: "ada a3"},
				{name: "ada a4"},
				{name: "ada a5"},
				{name: "ada a6"},
				{name: "ada coffee"},
				{name: "tea"},
			},
			"ada coffee",
			"7",
		},
		{"unless there is no other", []rowText{
			{name: "ada a1"},
			{name: "ada a2"},
			{name: "ada a3"},
			{name: "ada a4"},
			{name: "ada a5"},
			{name: "ada a6"},
			{name: "ada a7"},
			{name: "tea"},
		}, "ada", "1 2 3 4 5 6 7"},
	} {
		x := newKeyed()
		for i, w := range tt.rows {
			x.put(uint64(i+1), w)
		}
		if got := x.keysOf(tt.query); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		s := x.search(tt.query)
		for key := range s.matches() {
			if m := s.match(x.numbers[key]); m.share <= 0 || m.share > 1 {
				t.Errorf("%s: row %d shares %v", tt.name, key, m.share)
			}
		}
	}
}

func manyWords(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("many%d", i))
	}
	return out
}

// TestWordsModel: after whatever was put and removed, a search finds the rows that have a word of the query, those
// only, and says which words.
func TestWordsModel(t *testing.T) {
	t.Parallel()
	vocabulary := []string{"coffee", "tea", "milk", "water", "bread", "猫", "黑猫", "Éclair"}
	phrase := rapid.Custom(func(rt *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(vocabulary), 0, 3).Draw(rt, "words"), " ")
	})
	rapid.Check(t, func(rt *rapid.T) {
		x, model := newKeyed(), map[uint64][]string{}
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			key := uint64(rapid.IntRange(0, 9).Draw(rt, "key")) * 5000 // on several pages
			if rapid.IntRange(0, 3).Draw(rt, "remove") == 0 {
				x.drop(key)
				delete(model, key)
				continue
			}
			w := rowText{
				phrase.Draw(rt, "name"), phrase.Draw(rt, "about"),
				[]string{phrase.Draw(rt, "tag")},
				phrase.Draw(rt, "begin"),
			}
			x.put(key, w)
			model[key] = strings.Fields(splitTerms(strings.Join([]string{w.name, w.description, w.tags[0], w.text},
				" | ")))
		}
		query := phrase.Draw(rt, "query")
		s := x.search(query)
		defer s.release()
		if s.match(0).found != 0 {
			rt.Error("a row that was never put is found")
		}
		for key, has := range model {
			var want []string
			for i, w := range s.terms {
				if slices.Contains(has, w.word) || slices.Contains(has, w.word+"*") {
					want = append(want, s.terms[i].word)
				}
			}
			got := s.match(x.numbers[key])
			if len(want) == 0 && got.found == 0 {
				continue
			}
			if shown := "words: " + strings.Join(want, ", "); s.explain(got.found) != shown || got.share <= 0 ||
				got.share > 1 {
				rt.Errorf("%q in %q: %+v, want %q", query, has, got, shown)
			}
		}
		if x.live != len(model) {
			rt.Errorf("%d rows, want %d", x.live, len(model))
		}
		for key := range s.matches() {
			if model[key] == nil {
				rt.Errorf("row %d is gone and was found", key)
			}
		}
	})
}

// TestWordsSweep: rows that are written again and again leave nothing behind, and are never found by what they were.
func TestWordsSweep(t *testing.T) {
	t.Parallel()
	x, rng := newKeyed(), rand.New(rand.NewPCG(3, 4))
	const rows = 400
	current := map[uint64]int{}
	most := 0
	for version := range 20_000 {
		key := uint64(rng.IntN(rows))
		if rng.IntN(4) == 0 {
			x.drop(key)
			delete(current, key)
		} else {
			x.put(key, rowText{
				name: fmt.Sprint("version", version), description: "coffee filler",
				tags: []string{fmt.Sprint("row", key)},
			})
			current[key] = version
		}
		if version%1500 == 0 || version > 19_997 {
			most = max(most, len(x.docs), len(x.terms))
			s := x.search("coffee")
			if n := len(slices.Collect(maps.Keys(maps.Collect(s.matches())))); n != len(current) {
				t.Fatalf("after %d: %d rows found, want %d", version, n, len(current))
			}
			s.release()
			for key := range uint64(rows) {
				v, there := current[key]
				if got := x.keysOf(fmt.Sprint("row", key)); there != (got == fmt.Sprint(key)) || !there && got != "" {
					t.Fatalf("after %d: row %d is found as %q", version, key, got)
				}
				if got := x.keysOf(fmt.Sprint("version", v)); there && got != fmt.Sprint(key) {
					t.Fatalf("after %d: version %d of row %d is found as %q", version, v, key, got)
				}
			}
		}
	}
	postings := 0
	for _, list := range x.lists {
		postings += len(list)
	}
	// 400 rows of four words, and what waits to be swept: some thousand removed rows.
	if most > 8_000 || postings > 4*(rows+4*minSweep) {
		t.Errorf("it grew to %d rows or words, and has %d postings", most, postings)
	}
}

// splitTerms joins the terms of in; a * follows a single character that is also part of a pair.
func splitTerms(in string) string {
	var s text.TermSplitter
	var out []string
	s.Each(in, func(term []byte, single bool) {
		if single {
			out = append(out, string(term)+"*")
			return
		}
		out = append(out, string(term))
	})
	return strings.Join(out, " ")
}
