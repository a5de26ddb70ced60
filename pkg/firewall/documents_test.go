package firewall

import (
	"os"
	"strings"
	"testing"
)

// documentText is a line of a file of documents with injected texts.
type documentText struct{ kind, document, injected string }

// inserted returns the document with the injected text at its end, at its beginning and in its middle, each on a line
// of its own, and inside of its last value when the document is JSON.
func (d documentText) inserted() []string {
	if strings.HasPrefix(d.document, "{") {
		i := strings.Index(d.document, "Quiet")
		return []string{d.document[:i] + d.injected + d.document[i:]}
	}
	middle := strings.Index(d.document, ". ") + 1
	if middle == 0 {
		middle = strings.IndexByte(d.document, '\n')
	}
	return []string{
		d.document + "\n" + d.injected,
		d.injected + "\n" + d.document,
		d.document[:middle] + "\n" + d.injected + d.document[middle:],
	}
}

func documentTexts(t testing.TB, file string) (all []documentText) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.ReplaceAll(strings.TrimSuffix(line, "\n"), `\n`, "\n"), "\t")
		if len(f) != 3 {
			t.Fatalf("bad line %q", line)
		}
		all = append(all, documentText{f[0], f[1], f[2]})
	}
	return all
}

// TestOrdersInDocuments holds the shares that are found, and that no plain text is flagged: of the texts on which the
// rules were developed, and of those written afterwards, which tell how much of it holds for new words.
func TestOrdersInDocuments(t *testing.T) {
	t.Run("developed on", func(t *testing.T) {
		checkDocuments(t, "testdata/documents.tsv", map[string]float64{"order": 0.8, "task": 0.9, "plain": 0})
	})
	t.Run("held out", func(t *testing.T) {
		checkDocuments(t, "testdata/documents-heldout.tsv", map[string]float64{"order": 0.4, "task": 0.6, "plain": 0})
	})
}

// checkDocuments scans the texts of a file and compares the share that is flagged of each kind with the least allowed.
func checkDocuments(t *testing.T, file string, least map[string]float64) {
	t.Helper()
	found := map[string]*part{"order": {}, "task": {}, "plain": {}}
	for _, d := range documentTexts(t, file) {
		texts := []string{d.document}
		if d.kind != "plain" {
			texts = d.inserted()
		}
		for _, text := range texts {
			r := Scan(text)
			checkReport(t, text, r)
			found[d.kind].count(r.Flagged)
			switch {
			case d.kind == "plain" && r.Flagged:
				t.Errorf("plain text flagged with %d: %s\n%+v", r.Score, text, r.Findings)
			case d.kind != "plain" && !r.Flagged:
				t.Logf("%s missed with %d: %s %+v", d.kind, r.Score, d.injected, r.Findings)
			}
		}
	}
	for kind, least := range least {
		t.Logf("%s: %v", kind, *found[kind])
		if found[kind].rate() < least {
			t.Errorf("%s: %v found, less than %.0f %%", kind, *found[kind], 100*least)
		}
	}
}
