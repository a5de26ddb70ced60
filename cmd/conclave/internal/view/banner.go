package view

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// Banner is what conclave up prints when it is ready. Empty rows are left out.
type Banner struct {
	Took                      time.Duration
	API, URL                  string
	Login                     string // link for a browser, valid once
	Model, RespondentB        string
	Data, Config, Keys, Audit string
	Contexts                  string // folder of the nats contexts
	Ready                     []string
	Actors                    int // that should be ready
	Tools                     []string
	Problems                  []subjects.DoctorCheck
	Flags                     string // to be repeated in the suggested commands
}

// Print prints the banner: addresses and folders, problems with their fixes if any, and commands to try. Values are not
// sanitized.
func (b Banner) Print(w io.Writer) {
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "  %s %s\n", term.Paint(w, term.Dim, fmt.Sprintf("%-12s", name)), text)
		}
	}
	head := func(s string) { fmt.Fprintf(w, "\n%s\n", term.Paint(w, term.Bold, s)) }
	fmt.Fprintln(w, term.Paint(w, term.Bold, fmt.Sprintf("Conclave is ready after %d ms.", b.Took.Milliseconds())))
	row("http", b.API)
	if b.Login != "" {
		row("login", b.Login+" (once, within ten minutes; later: conclave open"+b.Flags+")")
	}
	row("bus", b.URL)
	row("model", b.Model)
	row("respondent B", b.RespondentB)
	row("data", b.Data)
	row("config", b.Config)
	row("keys", b.Keys)
	row("audit", b.Audit)
	if b.Contexts != "" {
		row("nats", "contexts conclave and conclave-audit in "+b.Contexts)
	}
	row("actors", fmt.Sprintf("%d of %d ready: %s", len(b.Ready), b.Actors, strings.Join(b.Ready, ", ")))
	row("tools", strings.Join(b.Tools, ", "))
	if len(b.Problems) > 0 {
		head("Missing")
		for _, p := range b.Problems {
			row("", p.Name+": "+p.Text+": "+p.Fix)
		}
	}
	head("Try")
	row("", "conclave ask 'What time is it in Tokyo?'"+b.Flags)
	row("", "conclave call get_datetime '{\"timezone\":\"UTC\"}'"+b.Flags)
	row("", "conclave tap"+b.Flags)
	nats := "nats --context conclave micro ls"
	if config := filepath.Dir(filepath.Dir(b.Contexts)); config == b.Data {
		nats = "XDG_CONFIG_HOME=" + term.ShellQuote(config) + " " + nats
	}
	row("", nats)
	fmt.Fprintln(w)
}
