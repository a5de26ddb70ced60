package view

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// MaxBatch bounds the calls of a [Batch]: more cannot be read at once.
const MaxBatch = 20

// GatherTime is how long calls are awaited that belong to a waiting one, before the user is asked about all of them.
const GatherTime = 300 * time.Millisecond

// Batch is waiting calls that the user is asked about together: those of one tool, caller and question, with the same
// untrusted content and grants, which are shown once. Each has a request of its own and is decided by itself.
type Batch []subjects.ApprovalRequest

// NextBatch returns the first of the waiting calls and those that are asked about with it, at most [MaxBatch]; more is
// how many belong to it besides. A question of a running call, and a call of no question, is asked about alone.
func NextBatch(waiting []subjects.ApprovalRequest) (b Batch, more int) {
	for _, r := range waiting {
		switch {
		case len(b) > 0 && !isTogether(b[0], r):
		case len(b) == MaxBatch:
			more++
		default:
			b = append(b, r)
		}
	}
	return b, more
}

func isTogether(a, b subjects.ApprovalRequest) bool {
	return a.QueryID != "" && a.Form == nil && b.Form == nil && a.QueryID == b.QueryID && a.SessionID == b.SessionID &&
		a.Caller == b.Caller && a.Type == b.Type && a.Tool == b.Tool && reflect.DeepEqual(a.Taint, b.Taint) &&
		reflect.DeepEqual(a.Grants, b.Grants)
}

// Print prints the calls of a batch, which all wait: those of several numbered, each with its id, its exact arguments
// and its reason. more is how many others are asked about afterwards.
func (b Batch) Print(w io.Writer, more int, now time.Time) {
	if len(b) == 1 {
		PrintApproval(w, subjects.Approval{ApprovalRequest: b[0], State: subjects.ApprovalPending}, now)
		return
	}
	first := slices.MinFunc(b, func(a, c subjects.ApprovalRequest) int { return a.Expires.Compare(c.Expires) })
	fmt.Fprintf(w, "%s requests %s of %s\n", term.Visible(b[0].Caller), term.Count(len(b), "call"),
		term.Paint(w, term.Bold, term.Visible(b[0].Tool)))
	state := "expired"
	if now.Before(first.Expires) {
		state = "expires in " + formatRemaining(first.Expires.Sub(now))
	}
	printAsked(w, b[0], state, now)
	for i, r := range b {
		fmt.Fprintf(w, "%3d  %s\n", i+1, term.Paint(w, term.Yellow, term.Visible(r.ID)))
		printCall(w, r)
	}
	printSources(w, b[len(b)-1], now)
	if more > 0 {
		printField(w, "more", fmt.Sprintf("%s not shown: asked about afterwards", term.Count(more, "call")))
	}
}

// Prompt is the question about a batch; see [AskDecision] for a single call. remember adds the answers that remember
// the decision about one.
func (b Batch) Prompt(word string, remember bool) string {
	if len(b) == 1 {
		return AskDecision(b[0], word, remember)
	}
	question := fmt.Sprintf("run these %d calls of %s?", len(b), term.Visible(b[0].Tool))
	if word == "" {
		return question + " [y = all / N = none / numbers such as 1,3-5] "
	}
	return fmt.Sprintf("%s type %s for all, %[2]s 1,3-5 for some, Enter to deny all: ", question, word)
}

// Word is the word that a line begins with to approve calls of a batch, see the function Word.
func (b Batch) Word() string { return Word(b[0]) }

// Decision is what the user decided about the request with an id.
type Decision struct {
	ID string
	subjects.ApprovalDecision
}

// Parse reads the answer to [Batch.Prompt]: a decision for each call, in their order. Numbers approve those calls and
// deny the others; an empty line and a clear no deny all. complaint is not empty for a line that decides nothing: one
// that would approve without the word, or numbers that are none of the batch.
func (b Batch) Parse(line, word string) (out []Decision, complaint string) {
	if len(b) == 1 {
		d, ok := ParseAnswer(line, b[0].Form, word)
		if !ok {
			return nil, term.NeedsWord(word)
		}
		return []Decision{{b[0].ID, d}}, ""
	}
	approved := make([]bool, len(b))
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "" && answer != "none" && !isDenial(answer) {
		rest, found := term.CutWord(answer, word)
		if !found {
			return nil, term.NeedsWord(word)
		}
		if word != "" && rest == "" || rest == "all" || term.IsYes(rest) {
			rest = fmt.Sprintf("1-%d", len(b))
		}
		if !markNumbers(approved, rest) {
			return nil, fmt.Sprintf("nothing was decided: answer with numbers from 1 to %d such as 1,3-5, for all, or "+
				"for none", len(b))
		}
	}
	for i, r := range b {
		out = append(out, Decision{r.ID, subjects.ApprovalDecision{Approve: approved[i]}})
	}
	return out, ""
}

// markNumbers marks the numbers and ranges of a list such as "1,3-5", which count from 1. It reports whether the list
// has nothing else.
func markNumbers(marks []bool, list string) bool {
	for _, part := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		low, err := strconv.Atoi(from)
		high, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || low < 1 || high > len(marks) || low > high {
			return false
		}
		for i := low; i <= high; i++ {
			marks[i-1] = true
		}
	}
	return slices.Contains(marks, true)
}
