package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the machine may have no zone files

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed get_datetime.md
var getDatetimeText string

// getDatetime returns the tool get_datetime. It reads nothing private and changes nothing. It rejects everything but an IANA
// time zone.
func getDatetime() *Tool {
	return &Tool{
		schema: subjects.ToolSchema{
			Name: "get_datetime", Version: Version, Description: strings.TrimSpace(getDatetimeText),
			// One required parameter: some models' parsers miss calls without arguments.
			Parameters: json.RawMessage(`{"type":"object","properties":{"timezone":{"type":"string","minLength":1,"maxLength":64,"description":"IANA time zone, e.g. Europe/Berlin or UTC"}},"required":["timezone"],"additionalProperties":false}`),
		},
		facts: policy.Tool{Name: "get_datetime", Zone: "tools", Known: true, Effects: policy.Declare(), Ephemeral: true, Timeout: 5 * time.Second},
		run: func(_ context.Context, c Call) (Output, error) {
			var a struct {
				Timezone string `json:"timezone"`
			}
			if err := actor.DecodeArguments(c.Args, &a); err != nil {
				return Output{}, err
			}
			if !isZoneName(a.Timezone) {
				return Output{}, fmt.Errorf("%w: timezone must be an IANA name such as Europe/Berlin, or UTC", actor.ErrArguments)
			}
			loc, err := loadZone(a.Timezone)
			if err != nil {
				return Output{}, fmt.Errorf("%w: there is no time zone %q; use an IANA name such as Europe/Berlin, or UTC", actor.ErrArguments, text.Clip(a.Timezone, 64))
			}
			t := c.Now.In(loc)
			_, week := t.ISOWeek()
			return Output{Text: fmt.Sprintf("%s (%s, week %d, %s)", t.Format(time.RFC3339), t.Format("Monday"), week, loc)}, nil
		},
	}
}

// isZoneName reports whether name may be looked up. A zone is a file: paths such as Europe//Berlin or ./UTC are rejected, and
// so are "Local" and "localtime", which would reveal the machine's zone.
func isZoneName(name string) bool {
	return name != "" && len(name) <= maxZone && path.Clean(name) == name && name != "Local" && name != "localtime"
}

// maxZone is also in the schema.
const maxZone = 64

// zoneCache holds loaded zones, by name: loading one takes longer than the rest of the call. It is bounded by the number of
// existing zones.
var zoneCache sync.Map // name -> *time.Location

// loadZone returns a time zone from the cache or the zone database. name must be a valid zone name: it is cached for good.
func loadZone(name string) (*time.Location, error) {
	if loc, ok := zoneCache.Load(name); ok {
		return loc.(*time.Location), nil
	}
	loc, err := time.LoadLocation(name)
	if err == nil {
		zoneCache.Store(name, loc)
	}
	return loc, err
}
