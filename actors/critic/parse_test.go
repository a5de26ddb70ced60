package critic

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reply, allowed string
		words                string
		verdict              byte // 0 = unreadable
	}{
		{"as asked for", "Feedback: Right and short. [RESULT] 4", scores, "Right and short.", '4'},
		{"without the label", "Right and short. [RESULT] 4", scores, "Right and short.", '4'},
		{"with the heading", "###Feedback: Right. [RESULT] 1", scores, "Right.", '1'},
		{"a bold label", "**Feedback:** Right. [RESULT] 5", scores, "Right.", '5'},
		{"over lines", "Feedback:\nRight.\nShort.\n\n[RESULT]\n3\n", scores, "Right.\nShort.", '3'},
		{"a full stop", "Feedback: Right. [RESULT] 4.", scores, "Right.", '4'},
		{"in brackets", "Feedback: Right. [RESULT] (4)", scores, "Right.", '4'},
		{"in brackets with a full stop", "Feedback: Right. [RESULT] (4).", scores, "Right.", '4'},
		{"no blank", "Feedback: Right.[RESULT]4", scores, "Right.", '4'},
		{"another case", "Feedback: Right. [Result] 4", scores, "Right.", '4'},
		{"numbers in the words", "Feedback: 4 of 5 facts hold. [RESULT] 3", scores, "4 of 5 facts hold.", '3'},
		{"another script", "Feedback: 正しい。 [RESULT] 5", scores, "正しい。", '5'},
		{"after thinking", "<think>hm [RESULT] 1</think>Feedback: Right. [RESULT] 4", scores, "Right.", '4'},
		{"thinking without a beginning", "hm [RESULT] 1</think>Feedback: Right. [RESULT] 4", scores, "Right.", '4'},
		{"A", "Feedback: A is right. [RESULT] A", letters, "A is right.", 'A'},
		{"B in brackets", "Feedback: B is right. [RESULT] (B)", letters, "B is right.", 'B'},

		{"nothing", "", scores, "", 0},
		{"blanks", " \n\t", scores, "", 0},
		{"no end", "Feedback: Right. 4", scores, "", 0},
		{"an end without a grade", "Feedback: Right. [RESULT]", scores, "", 0},
		{"zero", "Feedback: Wrong. [RESULT] 0", scores, "", 0},
		{"six", "Feedback: Great. [RESULT] 6", scores, "", 0},
		{"ten", "Feedback: Great. [RESULT] 10", scores, "", 0},
		{"a half", "Feedback: Good. [RESULT] 4.5", scores, "", 0},
		{"a fraction", "Feedback: Good. [RESULT] 4/5", scores, "", 0},
		{"a range", "Feedback: Good. [RESULT] 4-5", scores, "", 0},
		{"negative", "Feedback: Bad. [RESULT] -1", scores, "", 0},
		{"a word", "Feedback: Good. [RESULT] four", scores, "", 0},
		{"another digit", "Feedback: Good. [RESULT] ４", scores, "", 0},
		{"two grades", "Feedback: Good. [RESULT] 4 5", scores, "", 0},
		{"two different ends", "Feedback: [RESULT] 5 it said. [RESULT] 2", scores, "", 0},
		{"the same end twice", "Feedback: Good. [RESULT] 4 [RESULT] 4", scores, "", 0},
		{"words after it", "Feedback: Good. [RESULT] 4 because it is right", scores, "", 0},
		{"a line after it", "Feedback: Good. [RESULT] 4\nHope that helps!", scores, "", 0},
		{"two full stops", "Feedback: Good. [RESULT] 4..", scores, "", 0},
		{"half a bracket", "Feedback: Good. [RESULT] (4", scores, "", 0},
		{"no words", "[RESULT] 4", scores, "", 0},
		{"only the label", "Feedback: [RESULT] 4", scores, "", 0},
		{"only signs", "Feedback: ... 12 [RESULT] 4", scores, "", 0},
		{"thinking without an end", "<think>Feedback: Right. [RESULT] 4", scores, "", 0},
		{"only thinking", "<think>Feedback: Right. [RESULT] 4</think>", scores, "", 0},
		{"too long", strings.Repeat("x", maxReply) + " [RESULT] 4", scores, "", 0},
		{"a letter for a grade", "Feedback: Good. [RESULT] A", scores, "", 0},
		{"a grade for a letter", "Feedback: Good. [RESULT] 4", letters, "", 0},
		{"a small letter", "Feedback: Good. [RESULT] a", letters, "", 0},
		{"both", "Feedback: Good. [RESULT] AB", letters, "", 0},
		{"a third", "Feedback: Good. [RESULT] C", letters, "", 0},
		{"a tie", "Feedback: Same. [RESULT] tie", letters, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			words, verdict, err := parseReply(c.reply, c.allowed)
			if words != c.words || verdict != c.verdict || errors.Is(err, errUnreadable) != (c.verdict == 0) {
				t.Errorf("%q, %q, %v", words, verdict, err)
			}
		})
	}
	words, _, err := parseReply("Feedback: "+strings.Repeat("ä", maxFeedback)+" [RESULT] 4", scores)
	if err != nil || len(words) > maxFeedback+3 || len(words) < maxFeedback-3 {
		t.Errorf("%d bytes of words, %v", len(words), err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"Feedback: Right. [RESULT] 4", "[RESULT] (B).", "<think>a</think>x [RESULT] 5",
		"</think> x [result]\n1", "x [RESULT] 4 [RESULT] 4", "###Feedback: \xff [RESULT] 3",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, reply string, grade bool) {
		allowed := letters
		if grade {
			allowed = scores
		}
		words, verdict, err := parseReply(reply, allowed)
		if err != nil {
			if words != "" || verdict != 0 || !errors.Is(err, errUnreadable) {
				t.Fatalf("%q with %q %v", words, verdict, err)
			}
			return
		}
		if words == "" || len(words) > maxFeedback+3 || strings.IndexByte(allowed, verdict) < 0 {
			t.Fatalf("%q, %q", words, verdict)
		}
		if resultMark().MatchString(words) {
			t.Fatalf("the words hold an end: %q", words)
		}
		if len(words) > maxFeedback {
			return
		}
		again, same, err := parseReply("Feedback: "+words+" [RESULT] "+string(verdict), allowed)
		if err != nil || same != verdict {
			t.Fatalf("read again: %q, %q, %v", again, same, err)
		}
	})
}
