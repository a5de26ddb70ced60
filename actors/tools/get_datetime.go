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
	_ "time/tzdata" // the machine may have no zone files; a wrong hour would be worse than 450 kB

	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed get_datetime.md
var getDatetimeText string

// getDatetime tells the time. It reads nothing private and changes nothing.
func getDatetime() *Tool {
	return &Tool{
		schema: subjects.ToolSchema{
			Name: "get_datetime", Version: Version, Description: strings.TrimSpace(getDatetimeText),
			// One required parameter: some models' parsers miss calls without arguments.
			Parameters: json.RawMessage(`{"type":"object","properties":{"timezone":{"type":"string","minLength":1,"maxLength":64,"description":"IANA time zone, e.g. Europe/Berlin or UTC"}},"required":["timezone"],"additionalProperties":false}`),
		},
		facts: policy.Tool{Name: "get_datetime", Zone: "tools", Known: true, Effects: policy.Declare(), Timeout: 5 * time.Second},
		run: func(_ context.Context, c Call) (Output, error) {
			var a struct {
				Timezone string `json:"timezone"`
			}
			if err := args(c.Args, &a); err != nil {
				return Output{}, err
			}
			if !zoneName(a.Timezone) {
				return Output{}, fmt.Errorf("%w: timezone must be an IANA name such as Europe/Berlin, or UTC", ErrArgs)
			}
			loc, err := zone(a.Timezone)
			if err != nil {
				return Output{}, fmt.Errorf("%w: there is no time zone %q; use an IANA name such as Europe/Berlin, or UTC", ErrArgs, text.Clip(a.Timezone, 64))
			}
			t := c.Now.In(loc)
			_, week := t.ISOWeek()
			return Output{Text: fmt.Sprintf("%s (%s, week %d, %s)", t.Format(time.RFC3339), t.Format("Monday"), week, loc)}, nil
		},
	}
}

// zoneName reports whether name may be looked up. A zone is a file below some folder: only the plain spelling of its
// name counts, not Europe//Berlin or ./UTC. "Local" and "localtime" would tell the machine's own zone.
func zoneName(name string) bool {
	return name != "" && len(name) <= maxZone && path.Clean(name) == name && name != "Local" && name != "localtime"
}

// maxZone stands in the schema too.
const maxZone = 64

// zones keeps what was loaded: reading a zone takes longer than the rest of the call. Only real zones under their plain
// names are kept, so it cannot grow beyond the some two thousand there are.
var zones sync.Map // name -> *time.Location

func zone(name string) (*time.Location, error) {
	if loc, ok := zones.Load(name); ok {
		return loc.(*time.Location), nil
	}
	loc, err := time.LoadLocation(name)
	if err == nil {
		zones.Store(name, loc)
	}
	return loc, err
}
