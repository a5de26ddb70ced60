package acceptance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestNearlyFullAuditLogIsAnEvent: when a writer has used 80 % of its part of the audit log, the user gets an event and
// a line in the log, before the writer stops. The other writers are not affected.
func TestNearlyFullAuditLogIsAnEvent(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	var lines syncBuffer
	r, err := settings(t, "system.audit_max", "20MB").Start(t.Context(), home, debugLog(&lines), "broker", "tools")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, r) })
	user := bustest.Dial(t, r.Bus, "user")
	events, err := user.SubscribeSync("audit.capacity")
	if err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	model := bustest.Dial(t, r.Bus, "model")
	const part = 20 << 20 * 24 / 100 // of the model actor
	for i := range 20 {              // 81 % of it
		if m, err := model.Request(fmt.Sprintf("audit.x%d", i), make([]byte, 200<<10), testTimeout); err != nil ||
			strings.Contains(string(m.Data), "error") {
			t.Fatalf("%v, %v", m, err)
		}
	}
	m, err := events.NextMsg(testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	var got subjects.AuditCapacity
	if err := json.Unmarshal(m.Data, &got); err != nil || got.Writer != "model" || got.Bytes < 20*(200<<10) ||
		got.Max != part {
		t.Errorf("%s, %v", m.Data, err)
	}
	if !strings.Contains(lines.String(), "a part of the audit log is nearly full") {
		t.Error("no line in the log")
	}
	// The model actor fills its part; the calls of the broker go on.
	for i := range 10 {
		if _, err := model.Request(fmt.Sprintf("audit.y%d", i), make([]byte, 200<<10), testTimeout); err != nil {
			t.Fatal(err)
		}
	}
	calls(t, r.Bus, 3)
}
