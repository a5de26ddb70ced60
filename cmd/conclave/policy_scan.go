package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/pkg/firewall"
	"conclave/pkg/strict"
)

// scanReport is what the firewall found in a file of texts.
type scanReport struct {
	Texts      int            `json:"texts"`
	Flagged    int            `json:"flagged"`
	FlaggedIDs []string       `json:"flagged_ids"`
	Techniques map[string]int `json:"techniques"` // texts in which each was found, flagged or not
	Truncated  int            `json:"truncated"`  // texts of which only a part was looked at
	Bytes      int64          `json:"bytes"`
	PerTenKB   float64        `json:"ms_per_10kb"`
}

// policyScanCommand shows what the firewall makes of texts.
func (a *app) policyScanCommand() *cobra.Command {
	var all strings.Builder
	for _, t := range firewall.Catalog {
		fmt.Fprintf(&all, "  %-14s %s\n", t.Name, t.Sentence)
	}
	return &cobra.Command{
		Use:   "scan <texts.jsonl>...",
		Short: "What the firewall finds in texts",
		Long: `Looks at each text as the broker looks at what a tool returned. A line of a file is a JSON object with the text in the field
"text"; "id" names it, or else its line does. "-" reads standard input.

The firewall labels and never drops, and it does not see everything: what a flagged text may lead to is decided by where
information flows, and so is what an unflagged one may.

Techniques:
` + strings.TrimRight(all.String(), "\n"),
		Example: `  conclave policy scan texts.jsonl
  conclave policy scan texts.jsonl --json | jq .flagged_ids`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, files []string) error {
			r := scanReport{FlaggedIDs: []string{}, Techniques: map[string]int{}}
			var spent time.Duration
			for _, file := range files {
				if err := a.scanFile(file, &r, &spent); err != nil {
					return err
				}
			}
			if r.Bytes > 0 {
				r.PerTenKB = float64(spent.Microseconds()) / 1000 * 10240 / float64(r.Bytes)
			}
			if a.json {
				return a.document(r)
			}
			fmt.Fprintf(a.stdout, "texts     %d\n", r.Texts)
			fmt.Fprintf(a.stdout, "flagged   %d\n", r.Flagged)
			for _, name := range strict.SortedKeys(r.Techniques) {
				fmt.Fprintf(a.stdout, "  %-14s %d\n", name, r.Techniques[name])
			}
			if r.Truncated > 0 {
				fmt.Fprintf(a.stdout, "longer than %d KB, looked at in part: %d\n", firewall.MaxScan>>10, r.Truncated)
			}
			for _, id := range r.FlaggedIDs {
				fmt.Fprintf(a.stdout, "flagged: %s\n", plain(id))
			}
			return nil
		},
	}
}

// maxTextLine bounds a line of a file of texts.
const maxTextLine = 16 << 20

// scanFile adds what is found in one file. A line that is not a text is an error and not left out: nothing is dropped
// silently.
func (a *app) scanFile(file string, r *scanReport, spent *time.Duration) error {
	var in io.Reader = a.stdin
	if file != "-" {
		f, err := openFile("texts", file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, maxTextLine)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var t struct {
			ID   string  `json:"id"`
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(line, &t); err != nil {
			return fmt.Errorf("%s:%d: not a JSON object (%w): write {\"id\": ..., \"text\": ...} on each line", file, n, err)
		}
		if t.Text == nil {
			return fmt.Errorf("%s:%d: no field \"text\": write {\"id\": ..., \"text\": ...} on each line", file, n)
		}
		if t.ID == "" {
			t.ID = "line " + strconv.Itoa(n)
		}
		began := time.Now()
		found := firewall.Scan(*t.Text)
		*spent += time.Since(began)
		r.add(t.ID, len(*t.Text), found)
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("reading %s: a line is longer than %d MB; split its text", file, maxTextLine>>20)
	case err != nil:
		return fmt.Errorf("reading %s: %w", file, err)
	}
	return nil
}

func (r *scanReport) add(id string, size int, found firewall.Report) {
	r.Texts++
	r.Bytes += int64(size)
	if found.Truncated {
		r.Truncated++
	}
	if found.Flagged {
		r.Flagged++
		r.FlaggedIDs = append(r.FlaggedIDs, id)
	}
	seen := map[string]bool{}
	for _, f := range found.Findings {
		if !seen[f.Technique] {
			seen[f.Technique] = true
			r.Techniques[f.Technique]++
		}
	}
}
