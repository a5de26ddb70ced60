package embedhash

import (
	"math"
	"slices"
	"testing"
)

func cosine(a, b []float32) float64 {
	var dot float64
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
	}
	return dot
}

func embed(s string) []float32 { return Embed(s, Dimensions) }

func TestNearTextsAreNearer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, near, far string }{
		{"same words", "the cat sat on the mat", "a cat on a mat", "quarterly revenue of the steel industry"},
		{
			"inflection", "deploying servers to production", "deployed the server in production",
			"my grandmother's apple pie",
		},
		{
			"question and fact", "What is my sister's name?", "The user's sister is named Clara",
			"The printer needs toner",
		},
		{"other letters", "столица Франции", "Париж столица Франции", "рецепт яблочного пирога"},
		{"grammar does not count", "what is the weather in Oslo", "weather of Oslo", "what is the name of the dog"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			near, far := cosine(embed(c.text), embed(c.near)), cosine(embed(c.text), embed(c.far))
			if near < far+0.2 {
				t.Errorf("near %.2f, far %.2f", near, far)
			}
		})
	}
}

func TestTaskPrefixDoesNotDominate(t *testing.T) {
	t.Parallel()
	query, doc := embed("search_query: where is my car"), embed("search_document: the car is in the garage")
	other := embed("search_query: how old is the universe")
	if near, far := cosine(query, doc), cosine(query, other); near < far+0.1 {
		t.Errorf("the same subject has %.2f, the same prefix %.2f", near, far)
	}
	if !slices.Equal(embed("search_query: tea"), embed("search_document: tea")) {
		t.Error("the prefix changes what a text is about")
	}
	if slices.Equal(embed("note: tea"), embed("tea")) {
		t.Error("a word before a colon is lost although it is no task")
	}
}

func TestVectorsAreOfLengthOne(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "!?", "a", "one two three", "\xff\xfe", "日本語"} {
		for _, dims := range []int{1, 3, 768} {
			v := Embed(s, dims)
			if len(v) != dims {
				t.Fatalf("%q: %d dimensions, want %d", s, len(v), dims)
			}
			if n := cosine(v, v); math.Abs(n-1) > 1e-5 {
				t.Errorf("%q in %d dimensions has length %f", s, dims, math.Sqrt(n))
			}
		}
	}
}

// Vectors are stored: another hash would make every kept vector worthless.
func TestVectorsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	v := embed("hello")
	var at []int
	for i, x := range v {
		if x != 0 {
			at = append(at, i)
		}
	}
	want := []int{285, 348, 552, 556, 702, 763}
	if !slices.Equal(at, want) {
		t.Errorf("hello lies on %v, want %v", at, want)
	}
}

func BenchmarkEmbed(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		embed("search_document: a note of some twenty words that says where the car was parked on Monday evening " +
			"after work")
	}
}
