package main

import (
	"io"
	"slices"
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
	_, problems := doctor.CheckStart(t.Context(), a, cfg, c.b.Bus)
	if !slices.ContainsFunc(problems, func(c doctor.Check) bool { return c.Text == "2 calls wait for your approval" }) {
		t.Errorf("the banner: %+v", problems)
	}
	for _, c := range problems {
		if c.Name == "secrets" || c.Name == "web_search" {
			t.Errorf("a problem of a system that lacks nothing: %+v", c)
		}
	}
}
