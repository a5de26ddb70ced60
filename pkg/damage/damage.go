// Package damage keeps the list of damage that was found in the data folder until the user accepts it. The log of each
// start, /health, the page and conclave doctor show it.
package damage

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/pkg/file"
	"conclave/pkg/text"
)

// Report is damage that was found.
type Report struct {
	Found time.Time `json:"found"`
	Text  string    `json:"text"`           // the damaged part, and what is lost at least
	Kept  string    `json:"kept,omitempty"` // folder of the damaged files as they were, "" = there are none
	// Part is the damaged stream, [Memory] when memory cannot be opened, or [Unknown]; "" = another part.
	Part string `json:"part,omitempty"`
	// Pending says that what the records of the part permitted has not been ended yet.
	// The next start does it.
	Pending bool `json:"pending,omitempty"`
	// Restored says what came back, from where, and what did not; "" = nothing could come back.
	Restored string `json:"restored,omitempty"`
}

// String describes the damage in one line.
func (r Report) String() string {
	out := r.Text
	if r.Restored != "" {
		out += "; " + r.Restored
	}
	if r.Kept != "" {
		out += "; the damaged files are kept in " + r.Kept
	}
	return out
}

// Parts of the data besides streams.
const (
	Memory  = "memory"  // restored as a whole
	Unknown = "unknown" // any stream may be damaged
)

// Remedy is what the user can do about reports.
const Remedy = "what did not come back may be in an older backup (conclave restore <backup> --data <another " +
	"folder>); conclave doctor --accept-damage ends this message"

// maxReports bounds the list. Further reports are dropped but for pending ones, of which there is one for each stream;
// their damaged files are kept nevertheless.
const maxReports = 100

// lockTimeout bounds the wait for another process that changes the list.
const lockTimeout = 10 * time.Second

func listFile(data string) string { return filepath.Join(data, "damage.json") }

// Folder returns a new name for a folder of damaged files that are found now.
func Folder(data string, now time.Time) string {
	return filepath.Join(data, "damaged", now.UTC().Format("20060102T150405.000000Z"))
}

// Read returns the reports of a data folder, oldest first. A list that cannot be read is an error, and damage too.
func Read(data string) (out []Report, err error) {
	b, err := os.ReadFile(listFile(data))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if isEmpty := func(r Report) bool { return r.Text == "" }; err == nil &&
		(len(out) == 0 || slices.ContainsFunc(out, isEmpty)) {
		err = errors.New("it has no reports, or one that says nothing")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the list of damage: %w", err)
	}
	return out, nil
}

// NoticeKey is the key in the metadata of an actor under which it says what is damaged in its data folder, for readers
// that have another one.
const NoticeKey = "damage"

// maxNotice bounds a notice, in bytes.
const maxNotice = 2000

// Notice returns the metadata of an actor with the reports of its data folder, a line each; none without damage.
func Notice(data string) map[string]string {
	reports, err := Read(data)
	if err != nil {
		return map[string]string{NoticeKey: err.Error()}
	}
	var lines []string
	for _, r := range reports {
		lines = append(lines, text.OneLine(r.String(), maxNotice))
	}
	if len(lines) == 0 {
		return nil
	}
	return map[string]string{NoticeKey: text.Clip(strings.Join(lines, "\n"), maxNotice)}
}

// Add adds reports, each once whenever it was found, and is on disk when it returns. A list that cannot be read is
// replaced by one that says so, also without reports: which parts were damaged is unknown then.
func Add(data string, reports ...Report) error { return change(data, "", reports) }

// Resolve is [Add] of a report that takes the place of all those of a part. One without a folder gets theirs.
func Resolve(data, part string, r Report) error { return change(data, part, []Report{r}) }

// change removes the reports of a part, "" = none, and adds others.
func change(data, part string, reports []Report) error {
	unlock, err := file.LockFolder(data, lockTimeout)
	if err != nil {
		return fmt.Errorf("writing the list of damage: %w", err)
	}
	defer unlock()
	list, err := readOrReplace(data)
	if err == nil && len(reports) == 0 {
		return nil
	}
	list = slices.DeleteFunc(list, func(r Report) bool {
		if part == "" || r.Part != part {
			return false
		}
		reports[0].Kept = cmp.Or(reports[0].Kept, r.Kept)
		return true
	})
	for _, r := range reports {
		known := slices.ContainsFunc(list, func(e Report) bool {
			e.Found = r.Found
			return e == r
		})
		if (len(list) < maxReports || r.Pending || part != "") && !known {
			list = append(list, r)
		}
	}
	if err := file.ReplaceJSON(listFile(data), list); err != nil {
		return fmt.Errorf("writing the list of damage: %w", err)
	}
	return nil
}

// readOrReplace is [Read]; the list that comes with an error is to replace one that cannot be read.
func readOrReplace(data string) ([]Report, error) {
	list, err := Read(data)
	if err != nil {
		list = []Report{{
			Found: time.Now(), Text: "earlier reports of damage cannot be read", Part: Unknown,
			Pending: true,
		}}
	}
	return list, err
}

// Accept removes all reports but the pending ones and returns those that it removed. The damaged files that were kept
// stay. Without a data folder it does nothing.
func Accept(data string) ([]Report, error) {
	unlock, err := file.LockFolder(data, lockTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("accepting the damage: %w", err)
	}
	defer unlock()
	list, _ := readOrReplace(data)
	isPending := func(r Report) bool { return r.Pending }
	if slices.ContainsFunc(list, isPending) {
		err = file.ReplaceJSON(listFile(data), slices.DeleteFunc(slices.Clone(list), func(r Report) bool {
			return !r.Pending
		}))
	} else if err = os.Remove(listFile(data)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("accepting the damage: %w", err)
	}
	return slices.DeleteFunc(list, isPending), nil
}
