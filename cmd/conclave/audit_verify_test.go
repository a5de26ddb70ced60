package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// reseal writes the messages as a well-formed export.
func reseal(t *testing.T, file string, msgs []audit.Stored) audit.Summary {
	t.Helper()
	var b bytes.Buffer
	sum, err := audit.Export(t.Context(),
		audit.Source{
			StreamRange: audit.StreamRange{First: 1, Last: uint64(len(msgs))},
			Messages: func(yield func(audit.Stored, error) bool) {
				for _, m := range msgs {
					if !yield(m, nil) {
						return
					}
				}
			},
		}, &b)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o400); err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestVerifySealed: a sealed file is vouched for by the current audit and what it leads to. A file that somebody put
// beside it vouches for nothing.
func TestVerifySealed(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	rotate := func() string {
		up := p.begin("conclave", "up")
		p.must(up.stdout, `"pid"`)
		p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
		if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
			t.Fatalf("it ended with %d, %v: %s", code, err, up.stderr)
		}
		out := p.run(cli.ExitOK, "conclave", "audit", "rotate")
		return strings.TrimSpace(strings.TrimPrefix(strings.SplitN(out, "\n", 2)[0], "sealed"))
	}
	older := rotate()
	newer := rotate()

	if out := p.run(cli.ExitOK, "conclave", "audit", "verify", "--file", newer); !strings.Contains(out,
		"anchored by the current audit") {
		t.Errorf("the newer one: %s", out)
	}
	if out := p.run(cli.ExitOK, "conclave", "audit", "verify", "--file", older); !strings.Contains(out, "anchored by "+
		filepath.Base(newer)) {
		t.Errorf("the older one: %s", out)
	}
	// A copy under another name is the same file.
	b, err := os.ReadFile(older)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(p.dir, "copy.jsonl")
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := p.run(cli.ExitOK, "conclave", "audit", "verify", "--file", copied); !strings.Contains(out, "anchored by "+
		filepath.Base(newer)) {
		t.Errorf("a copy: %s", out)
	}

	// Cut, sealed again, and a successor beside it that names the new hash.
	src, err := audit.OpenExport(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var msgs []audit.Stored
	for m, err := range src.Messages {
		if err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, m)
	}
	sum := reseal(t, older, msgs[:2])
	data, _, err := audit.EncodeGenesis(time.Now(), subjects.AuditGenesis{
		Sealed: filepath.Base(older),
		SHA256: sum.SHA256, OldHeads: sum.Heads,
	})
	if err != nil {
		t.Fatal(err)
	}
	reseal(t, filepath.Join(filepath.Dir(older), "audit-0.jsonl"),
		[]audit.Stored{{Seq: 1, Subject: audit.GenesisSubject, Data: data}})
	check := p.begin("conclave", "audit", "verify", "--file", older)
	if code, err := check.wait(); code != cli.ExitAudit || err != nil ||
		!strings.Contains(check.stderr.String(), "is not the file that was sealed") {
		t.Errorf("a forged successor: %d, %v, %s%s", code, err, check.stdout, check.stderr)
	}
	if out := p.run(cli.ExitAudit, "conclave", "audit", "verify"); !strings.Contains(out, "the sealed audit log "+
		filepath.Base(older)+" is not the one that was sealed") {
		t.Errorf("the audit with an altered predecessor: %s", out)
	}

	// With the newer one gone nothing leads to the older one any more.
	if err := os.Rename(newer, newer+".away"); err != nil {
		t.Fatal(err)
	}
	check = p.begin("conclave", "audit", "verify", "--file", copied)
	if code, err := check.wait(); code != cli.ExitOK || err != nil ||
		!strings.Contains(check.stderr.String(), copied+" is not anchored") ||
		!strings.Contains(check.stderr.String(), "is missing from") {
		t.Errorf("a path with a hole: %d, %v, %s%s", code, err, check.stdout, check.stderr)
	}
}
