package tools

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the machine may have no zone files

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
)

//go:embed get_datetime.md
var getDatetimeText string

// getDatetime returns the tool get_datetime. It reads nothing private and changes nothing. Without a time zone it
// answers in the machine's. It rejects everything but an IANA time zone.
func getDatetime() *Tool {
	return newTool("get_datetime", getDatetimeText, "", `
		"timezone": {"type": "string", "minLength": 1, "maxLength": 64,
			"description": "IANA time zone, e.g. Europe/Berlin or UTC; the user's own when left out"}`, policy.Tool{
		Effects: policy.Declare(), Ephemeral: true, Timeout: 5 * time.Second, MaxResult: 1 << 10,
	}, withArgs(func(_ context.Context, c Call, a struct {
		Timezone *string `json:"timezone"`
	},
	) (Output, error) {
		if a.Timezone == nil {
			return Output{Text: formatTime(c.Now.In(time.Local), machineZone(c.Now))}, nil
		}
		if !isZoneName(*a.Timezone) {
			return Output{}, fmt.Errorf("%w: timezone must be an IANA name such as Europe/Berlin, or UTC",
				actor.ErrArguments)
		}
		loc, err := loadZone(*a.Timezone)
		if err != nil {
			return Output{}, fmt.Errorf("%w: there is no time zone %q; use an IANA name such as Europe/Berlin, "+
				"or UTC", actor.ErrArguments, text.Clip(*a.Timezone, 64))
		}
		return Output{Text: formatTime(c.Now.In(loc), loc.String())}, nil
	}))
}

// formatTime is the result for a time in a zone.
func formatTime(t time.Time, zone string) string {
	_, week := t.ISOWeek()
	return fmt.Sprintf("%s (%s, week %d, %s)", t.Format(time.RFC3339), t.Format("Monday"), week, zone)
}

// machineZone is the IANA name of the machine's time zone, or its abbreviation at now where the name is not known.
func machineZone(now time.Time) string {
	name, ok := os.LookupEnv("TZ")
	if link, err := os.Readlink("/etc/localtime"); !ok && err == nil {
		_, name, _ = strings.Cut(link, "zoneinfo/")
	}
	if name = strings.TrimPrefix(name, ":"); isZoneName(name) {
		if _, err := loadZone(name); err == nil {
			return name
		}
	}
	name, _ = now.In(time.Local).Zone()
	return name
}

// isZoneName reports whether name may be looked up. A zone is a file: paths such as Europe//Berlin or ./UTC are
// rejected, and so are "Local" and "localtime", which are not names of the zone database.
func isZoneName(name string) bool {
	return name != "" && len(name) <= maxZone && path.Clean(name) == name && name != "Local" && name != "localtime"
}

// maxZone is also in the schema.
const maxZone = 64

// zoneCache holds loaded zones, by name: loading one takes longer than the rest of the call. It is bounded by the
// number of existing zones.
var zoneCache sync.Map // name -> *time.Location

// loadZone returns a time zone from the cache or the zone database. name must be a valid zone name: it is cached for
// good.
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
