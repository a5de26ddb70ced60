package main

import (
	"io"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/config"
)

// TestDoctorReportsWaitingApprovals checks the doctor and the banner.
func TestDoctorReportsWaitingApprovals(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	a := cli.New(nil, io.Discard, io.Discard)
	a.Home.Data = c.b.Dir
	cfg, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	cfg.WebSearch.Provider = "none"
	find := func(name string) doctor.Check {
		t.Helper()
		for _, c := range doctor.Run(t.Context(), a, cfg, nil) {
			if c.Name == name {
				return c
			}
		}
		return doctor.Check{}
	}
	if got := find("actors"); got.Level != doctor.LevelFail || !strings.Contains(got.Text, "broker") {
		t.Errorf("without a broker: %+v", got)
	}
	k := newFakeBroker(c)
	if got := find("approvals"); got.Level != doctor.LevelOK {
		t.Errorf("no call waits: %+v", got)
	}
	k.pose(open("0123456789abcdef0123456789abcdef"))
	if got := find("approvals"); got.Level != doctor.LevelWarn || got.Text != "1 call waits for your approval" ||
		!strings.Contains(got.Fix, "conclave approve") {
		t.Errorf("one call waits: %+v", got)
	}
	k.pose(open("0123457777777777"))
	if got := find("approvals"); got.Text != "2 calls wait for your approval" {
		t.Errorf("two calls wait: %+v", got)
	}
	if _, _, waiting := queryBannerFacts(t.Context(), &config.Instance{Bus: c.b.Bus}); waiting != 2 {
		t.Errorf("the banner: %d calls wait", waiting)
	}
	if got := toolProblems(t.Context(), a, cfg); len(got) != 0 {
		t.Errorf("problems of a system that lacks nothing: %+v", got)
	}
}
