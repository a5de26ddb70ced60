package store

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"conclave/pkg/text"
)

// Errors of the file.
var (
	// ErrNoDuckDB means that this program was built without DuckDB.
	ErrNoDuckDB = errors.New("this conclave was built without a C compiler, so it has no memory; install g++ and " +
		"build again")
	// ErrLocked means that another process, or another store of this one, has the file open.
	ErrLocked = errors.New("the memory is open elsewhere")
	// ErrNewer means that a newer program wrote the file.
	ErrNewer = errors.New("the memory was written by a newer version")
	// ErrDamaged means that the file cannot be read. It is left as it is.
	ErrDamaged = errors.New("the memory is damaged")
	// ErrBroken means that the database has stopped, for example on a full disk. Acknowledged writes are safe.
	ErrBroken = errors.New("the database of the memory has stopped; look whether the disk is full and start conclave " +
		"again")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("the memory is closed")
)

// Errors of a request.
var (
	// ErrExists means that there is an entry with this id.
	ErrExists = errors.New("there is an entry with this id")
	// ErrKnown means that the answer of this respondent to this query was stored before.
	ErrKnown = errors.New("this answer was stored before")
	// ErrForgotten is an [ErrKnown] for an answer that was forgotten since.
	ErrForgotten = fmt.Errorf("%w and was forgotten", ErrKnown)
	// ErrNotFound means that there is no such entry.
	ErrNotFound = errors.New("there is no such entry")
	// ErrChanged means that the entry was changed since the caller read it.
	ErrChanged = errors.New("the entry has changed since")
	// ErrDims means that a vector has another number of dimensions than others of its model.
	ErrDims = errors.New("the vector has other dimensions than others of its model")
	// ErrVector means that a vector is zero or holds NaN or infinity.
	ErrVector = errors.New("unusable vector")
	// ErrTrust means that an untrusted entry would supersede a trusted one.
	ErrTrust = errors.New("untrusted entry cannot supersede a trusted one")
	// ErrInvalid means that a value is missing, malformed or out of range.
	ErrInvalid = errors.New("invalid entry")
	// ErrCursor means that a page was requested with a cursor that no page returned.
	ErrCursor = errors.New("invalid cursor")
	// ErrInconsistent means that [Store.Verify] found a violated invariant.
	ErrInconsistent = errors.New("the memory is inconsistent")
)

// duckError is an error of DuckDB, as opposed to a rejected request: a write of a batch that failed with it is retried
// alone.
type duckError struct{ err error }

func (e *duckError) Error() string { return text.OneLine(e.err.Error(), maxErrorText) }
func (e *duckError) Unwrap() error { return e.err }

// maxErrorText bounds the text of a DuckDB error that is repeated, in bytes.
const maxErrorText = 400

// DuckDB has no error codes, so its texts are matched.
var (
	lockHolder = regexp.MustCompile(`Conflicting lock is held in (.*?) ?\(PID (\d+)\)`)
	brokenLog  = regexp.MustCompile(`Corrupt WAL file: .*?at byte position (\d+)`)
)

// explainError classifies an error of DuckDB as [ErrBroken] or [ErrDamaged], or names the remedy if it ran out of
// memory. Every other error becomes a duckError with the same text on one line; nil stays nil.
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

// explainOpenError classifies an error of opening a file as [ErrLocked], [ErrNewer] or [ErrDamaged] and names the
// remedy. A missing permission, a full disk, too many open files and too little memory are none of the three; an error
// that is not recognized is [ErrDamaged]. err must not be nil.
func explainOpenError(path string, err error) error {
	said := err.Error()
	switch {
	case strings.Contains(said, "Could not set lock on file"):
		if m := lockHolder.FindStringSubmatch(said); m != nil {
			return fmt.Errorf("%w: process %s (%s) has %s open; stop it, or use the commands of the running conclave",
				ErrLocked, m[2], m[1], path)
		}
		return fmt.Errorf("%w: another process has %s; stop it, or use the commands of the running conclave", ErrLocked,
			path)
	case strings.Contains(said, "Trying to read a database file with version number"), strings.Contains(said,
		"was written with a storage version greater"):
		return fmt.Errorf("%w of DuckDB: %s is unchanged; use the version that wrote it (%w)", ErrNewer, path,
			&duckError{err})
	case strings.Contains(said, "Permission denied"), strings.Contains(said, "No space left"),
		strings.Contains(said, "Too many open files"), strings.Contains(said, "Out of Memory Error"):
		return fmt.Errorf("opening the memory at %s: %w", path, &duckError{err})
	case strings.Contains(said, "replaying WAL"):
		return fmt.Errorf("%w: the log %s cannot be read (%w). Nothing was changed. Keep a copy of both files; "+
			"without the log the memory opens as it was when the log began",
			ErrDamaged, path+walSuffix, &duckError{err})
	}
	return damagedError(path, &duckError{err})
}

// damagedError returns an [ErrDamaged] with the remedy.
func damagedError(path string, why error) error {
	return fmt.Errorf("%w: %s: %w. It was not changed: restore a backup, or move it away together with %s to start a "+
		"new memory, then restore an export with conclave memory import", ErrDamaged, path, why, path+countSuffix)
}
