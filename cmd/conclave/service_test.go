package main

import (
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
)

// A path cannot add a line to the unit.
func TestServiceUnitRejectsControlCharacters(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]bool{
		"/home/ada/a b%$\"": true,
		"/tmp/a\nExecStartPre=/bin/touch /tmp/pwn\nX=\"": false, "/tmp/\r": false, "/tmp/\u0085": false,
		"/tmp/\xff": false,
	} {
		a := &cli.App{}
		a.Home = bus.Home{Data: data, Config: "/home/ada/c"}
		unit, err := serviceUnit(a)
		if (err == nil) != want || strings.Contains(unit, "\nExecStartPre") {
			t.Errorf("%q: %v\n%s", data, err, unit)
		}
	}
}
