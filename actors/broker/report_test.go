package broker

import (
	"fmt"
	"testing"
	"time"

	"conclave/subjects"
)

// TestChangedDefinitionsReportedOnce: a tool whose definition changes all the time is reported once in a while, and
// another tool at once.
func TestChangedDefinitionsReportedOnce(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	tools := []string{"forecast", "tides"}
	h.table.replaceZones(map[string][]string{"weather": tools},
		map[string]subjects.Principal{"weather": {Name: "weather", Tools: tools}})
	reported := map[string]int{}
	for i := range 100 {
		for _, tool := range tools {
			s := subjects.ToolSchema{
				Name: tool, Description: fmt.Sprint("version ", i),
				Parameters: []byte(`{"type":"object"}`), Version: "1",
			}
			if err := h.acceptAnnounced(t.Context(), h.rec.Out(), "weather", s); err != nil {
				reported[tool]++
			}
		}
	}
	if reported["forecast"] != 1 || reported["tides"] != 1 {
		t.Errorf("reported %v", reported)
	}
	at := zoneTool{"weather", "forecast"}
	if now := h.rec.Out().Now(); h.table.mayReport(at, now) ||
		!h.table.mayReport(at, now.Add(reportPause+time.Second)) {
		t.Error("a later change is not reported, or an early one is")
	}
}
