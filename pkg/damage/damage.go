// Package damage keeps the list of damage that was found in the data folder until the user accepts it. The log of each
// start, /health, the page and conclave doctor show it.
package damage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"conclave/pkg/file"
)

// Report is damage that was found.
type Report struct {
	Found time.Time `json:"found"`
	Text  string    `json:"text"`           // the damaged part, and what is lost at least
	Kept  string    `json:"kept,omitempty"` // folder of the damaged files as they were, "" = there are none
}

// String describes the damage in one line.
func (r Report) String() string {
	if r.Kept == "" {
		return r.Text
	}
	return r.Text + "; the damaged files are kept in " + r.Kept
}

// Remedy is what the user can do about reports.
const Remedy = "restore a backup into another folder (conclave restore <backup> --data <folder>), or accept the loss " +
	"with conclave doctor --accept-damage"

// maxReports bounds the list. Further reports are dropped; their damaged files are kept nevertheless.
const maxReports = 100

var mu sync.Mutex // held while the list is changed

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
	if err != nil {
		return nil, fmt.Errorf("reading the list of damage: %w", err)
	}
	return out, nil
}

// Add adds reports, each text once, and is on disk when it returns. A list that cannot be read is replaced by one that
// says so.
func Add(data string, reports ...Report) error {
	if len(reports) == 0 {
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	list, err := Read(data)
	if err != nil {
		list = []Report{{Found: reports[0].Found, Text: "earlier reports of damage cannot be read"}}
	}
	for _, r := range reports {
		if len(list) < maxReports && !slices.ContainsFunc(list, func(e Report) bool { return e.Text == r.Text }) {
			list = append(list, r)
		}
	}
	if err := file.ReplaceJSON(listFile(data), list); err != nil {
		return fmt.Errorf("writing the list of damage: %w", err)
	}
	return nil
}

// Accept removes all reports. The damaged files that were kept stay.
func Accept(data string) error {
	mu.Lock()
	defer mu.Unlock()
	if err := os.Remove(listFile(data)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("accepting the damage: %w", err)
	}
	return nil
}
