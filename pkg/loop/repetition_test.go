package loop

import (
	"strings"
	"testing"

	"conclave/pkg/model"
)

// TestCutRepetition: what a text repeats at its end stands in it once; lines that look alike are no repetition.
func TestCutRepetition(t *testing.T) {
	t.Parallel()
	block := "A bicycle is cheaper in the long run, and a car is faster. The Inner Child prefers the bicycle.\n\n"
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"once", "Yes. " + block, "Yes. " + block},
		{"ten times, as a user may want it", strings.Repeat(block, 10), strings.Repeat(block, 10)},
		{"twelve times", "Yes. " + strings.Repeat(block, 12), "Yes. " + block},
		{"many times", "Yes. " + strings.Repeat(block, 40), "Yes. " + block},
		{"a rule of dashes", strings.Repeat("-", 2000), strings.Repeat("-", 2000)},
	} {
		got, repeats := cutRepetition([]byte(tt.text))
		if string(got) != tt.want || repeats != (tt.want != tt.text) {
			t.Errorf("%s: %q, %t", tt.name, got, repeats)
		}
	}
}

// A reply that repeats itself is ended, with a note, and the partial answer has the text once.
func TestRepeatingReplyIsEnded(t *testing.T) {
	t.Parallel()
	block := "The committee has deliberated about the question, and each member has said what there is to say. "
	chunks := make([]model.Chunk, 200)
	for i := range chunks {
		chunks[i].Content = block
	}
	a, _ := newAgent(t, scriptedReply{chunks: chunks, wait: true})
	s, err := RunTurn(t.Context(), a, question("Should I?"), Hooks{})
	wantAnswer(t, s, err, strings.TrimSpace(block), true)
	wantNotes(t, s, NoteCut)
}
