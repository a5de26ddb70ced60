package digest

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
)

// TestHeldAttributions: the figures at ParseAttribution are what it reads from texts that were written for this
// measurement and that it was not changed for since.
func TestHeldAttributions(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/held_attributions.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	right, said, wrong, others := 0, 0, 0, 0
	for rows := bufio.NewScanner(f); rows.Scan(); {
		var row struct{ Kind, Text, Speaker string }
		if err := json.Unmarshal(rows.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		speaker, _, _, ok := ParseAttribution(row.Text)
		switch {
		case row.Kind == "none":
			others++
			if ok {
				wrong++
			}
		default:
			said++
			if ok && speaker == row.Speaker {
				right++
			} else if ok {
				wrong++
			}
		}
	}
	if right != 8 || said != 20 || wrong != 1 || others != 20 {
		t.Errorf("%d of %d, %d wrong, %d others", right, said, wrong, others)
	}
}
