package firewall

import (
	"os"
	"strings"
	"testing"
)

// languageText is a line of testdata/languages.tsv.
type languageText struct {
	language string
	isOrder  bool
	text     string
}

func languageTexts(t testing.TB, file string) (all []languageText) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 || f[1] != "order" && f[1] != "plain" {
			t.Fatalf("bad line %q", line)
		}
		all = append(all, languageText{f[0], f[1] == "order", f[2]})
	}
	return all
}

// TestOrdersInManyLanguages scans each order of testdata/languages.tsv alone and within an English document, and each
// plain text alone.
func TestOrdersInManyLanguages(t *testing.T) {
	for _, text := range languageTexts(t, "testdata/languages.tsv") {
		if !text.isOrder {
			if r := Scan(text.text); r.Flagged {
				t.Errorf("%s: plain text flagged with %d: %s\n%+v", text.language, r.Score, text.text, r.Findings)
			}
			continue
		}
		for _, document := range []string{text.text, "The museum is open from ten to six. Tickets are sold at the " +
			"desk.\n" + text.text + "\nThe cafe closes at five."} {
			r := Scan(document)
			checkReport(t, document, r)
			if !r.Flagged {
				t.Errorf("%s: order not flagged, score %d: %s\n%+v", text.language, r.Score, text.text, r.Findings)
			}
		}
	}
}
