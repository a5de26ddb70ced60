// Package undo keeps the state that files had before a tool changed them, and restores it.
//
// A [Store] is a folder with contents by their SHA-256, and a journal with one entry for each change. It is used by all
// processes of a machine in which tools change files. A change goes through these steps, each on disk before the next:
//
//	capture   the content before is stored, and the entry is in the state captured
//	begin     the new content is on disk beside the file, under a name that the entry has; state begun
//	replace   the new content gets the name of the file
//	end       state done
//
// A crash before replace leaves the file as it was, a crash after it leaves a change that can be undone. Whether a file
// was replaced is decided by the name of the new content. Whether one was removed, and what a program changed, is
// decided by comparing the files with the kept state (see [Store.Changes]).
package undo

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// Limits bound a store.
type Limits struct {
	// Days is how long a change can be undone; 0 = nothing is kept.
	Days int `yaml:"days"`
	// Size bounds all kept contents. Nothing is dropped early to make room: when it is full, later changes are not
	// kept.
	Size strict.Size `yaml:"size"`
	// MaxFile is the size of the largest file that is kept.
	MaxFile strict.Size `yaml:"max_file"`
}

// maxDays bounds [Limits].Days.
const maxDays = 365

// Problems returns everything wrong with l.
func (l Limits) Problems() (out strict.Problems) {
	out.CheckInt("days", l.Days, 0, maxDays)
	if l.Size < 1<<20 || l.Size > 1<<40 {
		out.Add("size", "%s is not between 1MB and 1TB", l.Size)
	}
	if l.MaxFile < 1<<10 || l.MaxFile > 1<<30 {
		out.Add("max_file", "%s is not between 1KB and 1GB", l.MaxFile)
	}
	return out
}

// Phases of a [Change].
const (
	Captured = "captured" // the state before is kept, and nothing has changed
	Begun    = "begun"    // it is happening, or a crash ended it
	Done     = "done"
)

// Change is an entry of the journal: what one call did to files.
type Change struct {
	ID      string    `json:"id"`
	Phase   string    `json:"phase"`
	Time    time.Time `json:"time"`
	Tool    string    `json:"tool"`
	Agent   string    `json:"agent,omitempty"`      // id of the caller
	Type    string    `json:"agent_type,omitempty"` // its agent type
	Call    string    `json:"call,omitempty"`
	Session string    `json:"session,omitempty"`
	Query   string    `json:"query,omitempty"`
	// Sources are the origins of the untrusted content that the session held.
	Sources []string `json:"sources,omitempty"`
	Undoes  []string `json:"undoes,omitempty"` // changes that this one undid
	Objects []Object `json:"objects"`
	// Tree is the folder of a change by a program, and Skip what it leaves out there, while it is begun.
	Tree string   `json:"tree,omitempty"`
	Skip []string `json:"skip,omitempty"`
}

// Object is a file of a change.
type Object struct {
	Path   string `json:"path"`
	Name   string `json:"name,omitempty"` // for the user, where the path says nothing
	Before State  `json:"before"`
	After  State  `json:"after,omitzero"` // zero while captured
	// Temp is the name beside the file under which the new content is while the change is begun.
	Temp string `json:"temp,omitempty"`
	// Folder is the topmost folder that the change made; "" = none.
	Folder string `json:"folder,omitempty"`
}

// Kind is what happened to the file: [subjects.FileCreated] and the like.
func (o Object) Kind() string {
	switch {
	case !o.Before.Exists():
		return subjects.FileCreated
	case !o.After.Exists():
		return subjects.FileRemoved
	}
	return subjects.FileChanged
}

// State is a state of a file. The zero value is a missing file.
type State struct {
	Sum  string      `json:"sum,omitempty"` // SHA-256 of the content in hex, "" = there is no file
	Size int64       `json:"size,omitempty"`
	Mode fs.FileMode `json:"mode,omitempty"` // permission bits
}

// Exists reports whether there is a file.
func (s State) Exists() bool { return s.Sum != "" }

// ErrNotKept is wrapped by the error of a capture that is not possible: the change cannot be undone later.
var ErrNotKept = errors.New("the state before is not kept")

func notKept(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrNotKept}, a...)...)
}

// Reasons of a [Refusal].
const (
	ReasonChanged = "changed_since" // the file was changed by somebody else, and the changes do not merge
	ReasonDeleted = "deleted_since"
	ReasonBinary  = "binary_changed" // as changed_since, for a file that is no text and so is never merged
	ReasonUnknown = "unknown"        // there is no such change, or no longer
	ReasonUndone  = "undone"         // an undo took it back already
	ReasonNotDone = "not_done"       // the call changed nothing
	ReasonLost    = "damaged"        // the kept content is gone or was changed
	ReasonOutside = "outside"        // the file tools may no longer write there
	ReasonFull    = "full"           // what is there now could not be kept
)

// Refusal is why a file is not restored.
type Refusal struct {
	Path   string
	Reason string
	Text   string // for the user
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// refuse returns a refusal about the file at path, "" for a whole change.
func refuse(path, reason, format string, a ...any) *Refusal {
	return &Refusal{Path: path, Reason: reason, Text: fmt.Sprintf(format, a...)}
}

// Undone returns, for each path of the change c, the id of the undo in all that took it back, "" for none. An undo that
// was itself undone does not count.
func (c Change) Undone(all []Change) []string {
	by := make([]string, len(c.Objects))
	for _, u := range all {
		if u.Phase != Done || !slices.Contains(u.Undoes, c.ID) {
			continue
		}
		later := u.Undone(all)
		for i, o := range c.Objects {
			at := slices.IndexFunc(u.Objects, func(uo Object) bool { return uo.Path == o.Path })
			if at >= 0 && later[at] == "" {
				by[i] = u.ID
			}
		}
	}
	return by
}
