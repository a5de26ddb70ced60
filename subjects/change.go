package subjects

import "time"

// Change is what one call did to the user's files or memory and can be undone, as its keeper stored it: the process of
// the tool.
type Change struct {
	ID      string       `json:"id"`
	Time    time.Time    `json:"time"`
	Tool    string       `json:"tool"`
	Agent   string       `json:"agent,omitempty"` // id of the caller
	Type    string       `json:"agent_type,omitempty"`
	Call    string       `json:"call_id,omitempty"`
	Session string       `json:"session_id,omitempty"`
	Query   string       `json:"query_id,omitempty"`
	Sources []string     `json:"sources,omitempty"` // origins of the untrusted content that the session held
	Undoes  []string     `json:"undoes,omitempty"`  // changes that this one took back
	Files   []ChangeFile `json:"files"`
}

// IsUndone reports whether every file of the change was restored.
func (c Change) IsUndone() bool {
	for _, f := range c.Files {
		if f.Undone == "" {
			return false
		}
	}
	return len(c.Files) > 0
}

// Kinds of a [ChangeFile].
const (
	FileCreated = "created"
	FileChanged = "changed"
	FileRemoved = "removed"
)

// ChangeFile is a file of a change, or an entry of memory, whose path is "memory:" and its id.
type ChangeFile struct {
	Path   string `json:"path"`
	Name   string `json:"name,omitempty"` // of an entry of memory
	Kind   string `json:"kind"`
	Bytes  int64  `json:"bytes"`            // after the change
	Undone string `json:"undone,omitempty"` // id of the change that took it back
	Diff   string `json:"diff,omitempty"`   // only where it was asked for
}

// ChangeRef names a change of a call.
type ChangeRef struct {
	ID      string   `json:"id"`
	Files   []string `json:"files"`
	Runs    bool     `json:"runs,omitempty"`    // a file is, or would be, a program
	Sources []string `json:"sources,omitempty"` // origins of the untrusted content that the session held
}

// ChangeSelection selects changes; one field is set.
type ChangeSelection struct {
	ID      string `json:"id,omitempty"`         // of a change or of a call, or the beginning of it
	Query   string `json:"query_id,omitempty"`   // all changes of a question
	Session string `json:"session_id,omitempty"` // all changes of a session
	Last    bool   `json:"last,omitempty"`       // the last call that changed something and is not undone
	All     bool   `json:"all,omitempty"`
}

// ChangeQuery asks for changes, newest first; those of an id with the differences that they made.
type ChangeQuery struct {
	ChangeSelection
	Limit int `json:"limit,omitempty"` // 0 = all that fit into a message
}

// ChangeList lists changes, newest first.
type ChangeList struct {
	Changes []Change `json:"changes"`
	More    bool     `json:"more,omitempty"`    // there are older ones
	Missing []string `json:"missing,omitempty"` // who keeps changes and does not answer
}

// Actions of an [UndoRequest].
const (
	UndoPlan  = "plan" // say what would happen, and change nothing
	UndoApply = "apply"
	UndoPurge = "purge" // remove what is kept of the changes, and leave the files as they are
)

// UndoRequest takes changes back.
type UndoRequest struct {
	ChangeSelection
	Action    string   `json:"action"`
	Only      []string `json:"only,omitempty"`      // paths; empty = all files of the changes
	Overwrite bool     `json:"overwrite,omitempty"` // also files that somebody else changed since
	Partial   bool     `json:"partial,omitempty"`   // restore the other files when some cannot be restored
	// Plan is that of the reply to [UndoPlan] that the user saw: when the files have changed since, nothing is done.
	Plan string `json:"plan,omitempty"`
}

// UndoReply is what an undo did, or would do.
type UndoReply struct {
	Done     bool          `json:"done"`           // [UndoApply] did it, [UndoPurge] removed it
	ID       string        `json:"id,omitempty"`   // of the change that the undo is
	Plan     string        `json:"plan,omitempty"` // identifies what was planned
	Changes  []string      `json:"changes"`        // those that were selected
	Files    []UndoFile    `json:"files"`          // restored, or to restore
	Refusals []UndoRefusal `json:"refusals,omitempty"`
	Purged   int           `json:"purged,omitempty"`
}

// UndoFile is a file that an undo restores. Diff is what that changes, for the user.
type UndoFile struct {
	Path   string `json:"path"`
	Diff   string `json:"diff"`
	Merged bool   `json:"merged,omitempty"` // what others changed since stays
	Same   bool   `json:"same,omitempty"`   // it is restored already
}

// UndoRefusal is why a file, or a change when Path is empty, is not restored.
type UndoRefusal struct {
	Path   string `json:"path,omitempty"`
	Reason string `json:"reason"` // a code
	Text   string `json:"text"`
}

// ChangeOrder is the part of a [ToolOrder] about changes. With [ModeCapture] the tool keeps the state before the call,
// with [ModeUndo] it lists or takes back changes, and in a call the tool makes its effect as this change.
type ChangeOrder struct {
	Change
	List *ChangeQuery `json:"list,omitempty"` // of [ModeUndo]: what to list
	Undo *UndoRequest `json:"undo,omitempty"` // of [ModeUndo]: what to take back
}
