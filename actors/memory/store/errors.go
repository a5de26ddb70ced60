package store

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"conclave/pkg/text"
)

// What can be wrong with the file.
var (
	// ErrNoDuckDB means that there can be no memory in this program.
	ErrNoDuckDB = errors.New("this conclave was built without a C compiler, so it has no memory; install g++ and build again")
	// ErrLocked means that somebody else has the file.
	ErrLocked = errors.New("the memory is open elsewhere")
	// ErrNewer means that a newer program wrote the file.
	ErrNewer = errors.New("the memory was written by a newer version")
	// ErrDamaged means that the file cannot be read. It is left as it is.
	ErrDamaged = errors.New("the memory is damaged")
	// ErrBroken means that the database gave up, such as when the disk is full. What was acknowledged is safe.
	ErrBroken = errors.New("the database of the memory has stopped; look whether the disk is full and start conclave again")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("the memory is closed")
)

// What can be wrong with what is asked for.
var (
	// ErrExists means that there is an entry with this id.
	ErrExists = errors.New("there is an entry with this id")
	// ErrKnown means that this answer to this question was stored before.
	ErrKnown = errors.New("this answer was stored before")
	// ErrForgotten means that this answer was stored before and forgotten since. It is an [ErrKnown].
	ErrForgotten = fmt.Errorf("%w and was forgotten", ErrKnown)
	// ErrNotFound means that there is no such entry.
	ErrNotFound = errors.New("there is no such entry")
	// ErrChanged means that the entry is no longer as it was.
	ErrChanged = errors.New("the entry has changed since")
	// ErrDims means that a vector has another length than those of its model before.
	ErrDims = errors.New("the vector has another length than others of its model")
	// ErrVector means that a vector points nowhere or holds something that is no number.
	ErrVector = errors.New("the vector cannot be used")
	// ErrTrust means that something untrusted wants the place of something trusted.
	ErrTrust = errors.New("what is not trusted cannot take the place of what is")
	// ErrInvalid means that what is to be written makes no sense.
	ErrInvalid = errors.New("this cannot be stored")
	// ErrCursor means that a page was asked for after something that is not where a page ended.
	ErrCursor = errors.New("this is not where a page ended")
	// ErrInconsistent means that [Store.Verify] found what must not be.
	ErrInconsistent = errors.New("the memory contradicts itself")
	// ErrNoVSS means that there is no approximate search.
	ErrNoVSS = errors.New("approximate search is not there; name the file of DuckDB's vss extension in memory.vss")
)

// duckError is an error of the database, not one of ours: what failed may be tried again alone.
type duckError struct{ err error }

func (e *duckError) Error() string { return text.OneLine(e.err.Error(), maxErrorText) }
func (e *duckError) Unwrap() error { return e.err }

// maxErrorText bounds what is repeated of the database's words.
const maxErrorText = 400

// DuckDB tells what happened in words only.
var (
	lockHolder = regexp.MustCompile(`Conflicting lock is held in (.*?) ?\(PID (\d+)\)`)
	brokenLog  = regexp.MustCompile(`Corrupt WAL file: .*?at byte position (\d+)`)
)

// explainError turns an error of the database into one that says what to do, where there is something to do.
func explainError(err error) error {
	if err == nil {
		return nil
	}
	said := err.Error()
	contains := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(said, p) {
				return true
			}
		}
		return false
	}
	switch {
	case contains("has been invalidated", "FATAL Error"):
		return fmt.Errorf("%w: %w", ErrBroken, &duckError{err})
	case contains("Corrupt database file", "Could not read enough bytes", "Failed to load metadata pointer"):
		return fmt.Errorf("%w: %w", ErrDamaged, &duckError{err})
	case contains("Out of Memory Error"):
		return fmt.Errorf("%w; raise memory.memory_limit", &duckError{err})
	}
	return &duckError{err}
}

// explainOpenError says why a file cannot be opened, and what to do.
func explainOpenError(path string, err error) error {
	said := err.Error()
	switch {
	case strings.Contains(said, "Could not set lock on file"):
		if m := lockHolder.FindStringSubmatch(said); m != nil {
			return fmt.Errorf("%w: process %s (%s) has %s; stop it, or use the commands of the running conclave", ErrLocked, m[2], m[1], path)
		}
		return fmt.Errorf("%w: another process has %s; stop it, or use the commands of the running conclave", ErrLocked, path)
	case strings.Contains(said, "Trying to read a database file with version number"), strings.Contains(said, "was written with a storage version greater"):
		return fmt.Errorf("%w of DuckDB: %s stays as it is; use the conclave that wrote it (%w)", ErrNewer, path, &duckError{err})
	case strings.Contains(said, "Permission denied"), strings.Contains(said, "No space left"), strings.Contains(said, "Too many open files"):
		return fmt.Errorf("opening the memory at %s: %w", path, &duckError{err})
	case strings.Contains(said, "replaying WAL"):
		return fmt.Errorf("%w: the log %s cannot be read (%w). Nothing was changed. Keep a copy of both files; without the log the memory opens as it was when the log began",
			ErrDamaged, path+walSuffix, &duckError{err})
	}
	return damagedError(path, &duckError{err})
}

// damagedError says what to do about a file that cannot be read.
func damagedError(path string, why error) error {
	return fmt.Errorf("%w: %s: %w. It was not changed: move it away and begin a new memory, into which conclave memory import reads an export back", ErrDamaged, path, why)
}
