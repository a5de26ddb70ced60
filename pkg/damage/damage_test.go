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
	if accepted, err := damage.Accept(data); err != nil || len(accepted) != 1 || len(texts()) != 1 {
		t.Errorf("accepted %v, %v, left %v", accepted, err, texts())
	}
	isUnknown := func() bool {
		list, err := damage.Read(data)
		return err == nil && len(list) == 1 && list[0].Part == damage.Unknown && list[0].Pending
	}
	for name, replace := range map[string]func() error{
		"no report is added": func() error { return damage.Add(data) },
		"it is accepted":     func() error { _, err := damage.Accept(data); return err },
	} {
		if err := os.WriteFile(filepath.Join(data, "damage.json"), []byte("["), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := replace(); err != nil || !isUnknown() {
			t.Errorf("a list that cannot be read, %s: %v, %v", name, err, texts())
		}
	}
	if err := damage.Resolve(data, damage.Unknown, damage.Report{Text: "ended"}); err != nil {
		t.Fatal(err)
	}
	if _, err := damage.Accept(data); err != nil || len(texts()) != 0 {
		t.Errorf("left %v, %v", texts(), err)
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

// TestLostReportsAreDamage: a list that somebody emptied is one that cannot be read.
func TestLostReportsAreDamage(t *testing.T) {
	t.Parallel()
	isUnknown := func(data string) bool {
		list, err := damage.Read(data)
		return err == nil && len(list) == 1 && list[0].Part == damage.Unknown && list[0].Pending
	}
	for _, list := range []string{"null", "[]", "[{}]", `[{"text":"a"},{}]`} {
		data := t.TempDir()
		if err := os.WriteFile(filepath.Join(data, "damage.json"), []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := damage.Read(data); err == nil {
			t.Errorf("%s is a list", list)
		}
		if err := damage.Add(data); err != nil || !isUnknown(data) {
			t.Errorf("%s counts as no damage: %v", list, err)
		}
	}
}

// TestResolvedReportNamesTheFolder: a report that takes the place of another one keeps where the damaged files are.
func TestResolvedReportNamesTheFolder(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for _, err := range []error{
		damage.Add(data, damage.Report{Text: "flow", Kept: "/damaged/KV_flow", Part: "KV_flow", Pending: true}),
		damage.Resolve(data, "KV_flow", damage.Report{Text: "every session is distrusted"}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	list, err := damage.Read(data)
	if err != nil || len(list) != 1 || list[0].Kept != "/damaged/KV_flow" || list[0].Pending {
		t.Errorf("%+v, %v", list, err)
	}
}
