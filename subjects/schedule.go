package subjects

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Scheduler is the account that says when a schedule is due. It cannot choose what is asked: the router reads that from
// the definition, which the broker writes for the user.
const Scheduler = "scheduler"

// Schedule is a question or task that is asked at set times, as the user defined it. Its id is in the subject.
type Schedule struct {
	When  string `json:"when"`     // as package schedule reads it
	Zone  string `json:"timezone"` // of the IANA database
	Query string `json:"query"`    // the user's own words
	Mode  string `json:"mode"`     // one of [Modes]
	// Grants is what the words permit, as derived when the schedule was made, for the user; Fixed identifies these
	// grants. A grant that is not among them does not hold when the question is asked, also when a later version
	// derives it from the same words.
	Grants []Grant  `json:"grants"`
	Fixed  []string `json:"fixed"`

	Made    time.Time `json:"made"`
	Since   time.Time `json:"since"` // when it was made or resumed: earlier times do not occur
	Paused  bool      `json:"paused,omitempty"`
	Removed bool      `json:"removed,omitempty"`
}

// Actions of a [ScheduleChange].
const (
	ScheduleAdd    = "add"
	SchedulePause  = "pause"
	ScheduleResume = "resume"
	ScheduleRemove = "remove"
)

// ScheduleChange is a change of a schedule by the user. Schedule is for [ScheduleAdd] only; the broker fills in its
// times of making and its grants.
type ScheduleChange struct {
	ID       string    `json:"id"`
	Action   string    `json:"action"`
	Schedule *Schedule `json:"schedule,omitempty"`
}

// ScheduleRun says that a schedule is due. Its id is in the subject.
type ScheduleRun struct {
	Occurrence time.Time `json:"occurrence"`
	Late       bool      `json:"late,omitempty"` // the system was not running at that time
}

// MaxScheduleID bounds the id of a schedule, so that a session id holds it.
const MaxScheduleID = 32

// CheckScheduleID rejects an id that no new schedule may have: one that is no token, is too long, or begins with "-",
// which a command line would read as a flag.
func CheckScheduleID(id string) error {
	if CheckToken(id) != nil || len(id) > MaxScheduleID || id[0] == '-' {
		return fmt.Errorf("the name of the schedule is not valid: use letters, digits, _ and -, at most %d, and no - "+
			"first", MaxScheduleID)
	}
	return nil
}

// Check reports why s cannot be asked, without a look at its times.
func (s Schedule) Check() error {
	switch {
	case s.Removed:
		return nil // the rest may be gone
	case strings.TrimSpace(s.Query) == "":
		return errors.New("the question is empty")
	case Modes[s.Mode] == "":
		return fmt.Errorf("unknown mode %q", s.Mode)
	case s.Since.IsZero():
		return errors.New("the schedule has no beginning")
	}
	return nil
}

// sessionOfSchedule begins the ids of the sessions of scheduled questions: one session for each occurrence, so that
// untrusted content of one does not taint the next.
const sessionOfSchedule = "schedule_"

// ScheduleSession returns the ids of session and query of an occurrence: the same whenever it is delivered.
func ScheduleSession(id string, occurrence time.Time) (session, query string) {
	at := occurrence.UTC().Format("20060102T1504Z")
	return sessionOfSchedule + id + "_" + at, "sq_" + id + "_" + at
}

// NewScheduleSession returns the id of a session of its own for a question that the user asks between the occurrences.
// unique must have at least eight characters.
func NewScheduleSession(id string, at time.Time, unique string) string {
	return sessionOfSchedule + id + "_" + at.UTC().Format("20060102T150405Z") + "-" + unique[:8]
}

// ScheduleOf returns the schedule of a session, false for any other session. It is for display: a session id is no
// identity.
func ScheduleOf(session string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(session, sessionOfSchedule)
	at := strings.LastIndexByte(rest, '_')
	if !ok || at <= 0 {
		return "", false
	}
	return rest[:at], true
}
