package damage_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/damage"
)

// TestReports: reports of many writers at once are all kept, each once; those of a part are replaced by its
// repair, a list that cannot be read by one that says so, and accepted ones are returned.
func TestReports(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := damage.Report{Found: time.Now(), Text: fmt.Sprint("block ", i%20)}
			if err := damage.Add(data, r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	texts := func() (out []string) {
		list, err := damage.Read(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			out = append(out, r.Text)
		}
		return out
	}
	if got := texts(); len(got) != 20 {
		t.Errorf("%d reports: %v", len(got), got)
	}
	if err := damage.Add(data, damage.Report{Text: "gone", Part: damage.Memory}); err != nil {
		t.Fatal(err)
	}
	repair := damage.Report{Text: "memory was damaged", Restored: "it came back", Kept: "/data/damaged"}
	if err := damage.Resolve(data, damage.Memory, repair); err != nil {
		t.Fatal(err)
	}
	if got := texts(); slices.Contains(got, "gone") || got[len(got)-1] != repair.Text {
		t.Errorf("after the repair: %v", got)
	}
	const want = "memory was damaged; it came back; the damaged files are kept in /data/damaged"
	if got := repair.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(data, "damage.json"), []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := damage.Add(data, damage.Report{Text: fmt.Sprint("place ", i), Kept: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := damage.Add(data, damage.Report{Text: "rules", Part: "KV_rules", Pending: true}); err != nil {
		t.Fatal(err)
	}
	if got := texts(); got[len(got)-1] != "rules" {
		t.Errorf("a full list has no room for a pending report: %v", got)
	}
	if err := os.WriteFile(filepath.Join(data, "damage.json"), []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := damage.Add(data, damage.Report{Text: "more"}); err != nil {
		t.Fatal(err)
	}
	if got := texts(); len(got) != 2 || !strings.Contains(got[0], "cannot be read") {
		t.Errorf("after a list that cannot be read: %v", got)
	}
	if accepted, err := damage.Accept(data); err != nil || len(accepted) != 2 || len(texts()) != 0 {
		t.Errorf("accepted %v, %v", accepted, err)
	}
	pending := damage.Report{Text: "a", Part: "KV_rules", Pending: true}
	if err := damage.Add(data, pending, damage.Report{Text: "b"}); err != nil {
		t.Fatal(err)
	}
	if accepted, err := damage.Accept(data); err != nil || len(accepted) != 1 || !slices.Equal(texts(), []string{"a"}) {
		t.Errorf("accepted %v, left %v, %v", accepted, texts(), err)
	}
	if accepted, err := damage.Accept(filepath.Join(data, "none")); err != nil || len(accepted) != 0 {
		t.Errorf("without data: %v, %v", accepted, err)
	}
}
