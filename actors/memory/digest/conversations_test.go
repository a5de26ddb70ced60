//go:build measure

package digest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/text"
)

// turn is a line of the file of conversations: a turn, or a question with the turns that answer it.
type turn struct {
	Kind, Conv, ID, Date, Speaker, Text string
	Question                            string
	Evidence                            []string
}

func (r turn) stored() string { return fmt.Sprintf(`(%s) %s said, "%s"`, r.Date, r.Speaker, r.Text) }

// readConversations returns the lines of recall-dev.jsonl of one kind, by conversation.
func readConversations(t *testing.T, kind string) map[string][]turn {
	t.Helper()
	folder := os.Getenv("CONCLAVE_TEXTS")
	if folder == "" {
		t.Fatal("CONCLAVE_TEXTS is empty: set it to the folder with recall-dev.jsonl")
	}
	f, err := os.Open(filepath.Join(folder, "recall-dev.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]turn{}
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var r turn
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == kind {
			all[r.Conv] = append(all[r.Conv], r)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("recall-dev.jsonl holds no line of the kind %s", kind)
	}
	return all
}

// TestSegmentsShowTheEvidence counts how often the segment of a text for a question holds the whole turn that answers
// it, with each turn stored alone and with pieces of about 1,500 bytes, by plain rules and with a model that quotes the
// first sentence.
func TestSegmentsShowTheEvidence(t *testing.T) {
	turns := readConversations(t, "turn")
	first := func(_ context.Context, _, user string, _ json.RawMessage) (string, error) {
		_, body, _ := strings.Cut(user, "[TEXT 1 ")
		_, body, _ = strings.Cut(body, "]\n")
		quote := append(text.SentenceTexts(body, 1), "")[0]
		reply, err := json.Marshal(map[string]any{"segments": []any{map[string]any{"n": 1, "quote": quote}}})
		return string(reply), err
	}
	alone, piece, model, all := 0, 0, 0, 0
	for conv, questions := range readConversations(t, "question") {
		pieces := cutPieces(turns[conv], 1500)
		for _, q := range questions {
			for _, id := range q.Evidence {
				at := slices.IndexFunc(turns[conv], func(r turn) bool { return r.ID == id })
				if at < 0 {
					continue
				}
				shows := func(o Options, body string) int {
					got, _, err := New(o).Segments(t.Context(), q.Question, []string{body})
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(got[0], cleanText(turns[conv][at].Text)) {
						return 1
					}
					return 0
				}
				all++
				alone += shows(Options{}, turns[conv][at].stored())
				piece += shows(Options{}, pieces[id])
				model += shows(Options{Ask: first}, pieces[id])
			}
		}
	}
	t.Logf("%d pairs of question and evidence; the segment holds the evidence: turns %.1f %%, pieces %.1f %%, pieces "+
		"with a model %.1f %%", all, 100*float64(alone)/float64(all),
		100*float64(piece)/float64(all), 100*float64(model)/float64(all))
}

// cutPieces joins turns to pieces of about size bytes and returns the piece of each turn.
func cutPieces(turns []turn, size int) map[string]string {
	out := map[string]string{}
	for from := 0; from < len(turns); {
		var b strings.Builder
		to := from
		for ; to < len(turns) && (b.Len() < size || to == from); to++ {
			b.WriteString(turns[to].stored() + "\n")
		}
		for _, r := range turns[from:to] {
			out[r.ID] = b.String()
		}
		from = to
	}
	return out
}
