package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/file"
)

// maxHistory is how many inputs are kept at least; the file is cut at twice as many.
const maxHistory = 1000

// lockTimeout bounds the wait for another conversation that changes the history.
const lockTimeout = time.Second

// history is what was typed before, also in earlier conversations: a JSON string per line of a file that only the user
// can read. An input that begins with a blank is not kept. A file that cannot be read or written is ignored.
type history struct {
	file    string // "" = none
	entries []string
	at      int    // the entry that is shown; len(entries) = the draft
	draft   string // what was typed before the first step back
}

// openHistory reads the history of an installation.
func openHistory(a *cli.App) history {
	h := history{}
	folder, err := a.StateFolder()
	if err != nil {
		return h
	}
	h.file = filepath.Join(folder, "chat_history")
	unlock, err := file.LockFolder(folder, lockTimeout)
	if err == nil {
		defer unlock()
	}
	data, _ := os.ReadFile(h.file)
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) > 2*maxHistory && err == nil {
		lines = lines[len(lines)-maxHistory:]
		_ = file.Replace(h.file, bytes.Join(lines, nil)) // the next conversation tries again
	}
	for _, line := range lines {
		var text string
		if json.Unmarshal(line, &text) == nil {
			h.entries = append(h.entries, text)
		}
	}
	h.at = len(h.entries)
	return h
}

// add keeps an input, unless it repeats the last one.
func (h *history) add(text string) {
	defer func() { h.at, h.draft = len(h.entries), "" }()
	if text == "" || strings.HasPrefix(text, " ") || len(h.entries) > 0 && h.entries[len(h.entries)-1] == text {
		return
	}
	h.entries = append(h.entries, text)
	_ = h.save(text) // the conversation goes on without it
}

// save appends an input to the file, of mode 0600, under the lock of its folder: another conversation may be replacing
// the file by a shorter one.
func (h *history) save(text string) error {
	if h.file == "" {
		return nil
	}
	line, err := json.Marshal(text)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(h.file), 0o700); err != nil {
		return err
	}
	unlock, err := file.LockFolder(filepath.Dir(h.file), lockTimeout)
	if err != nil {
		return err
	}
	defer unlock()
	f, err := os.OpenFile(h.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// move steps back (-1) or forth (1) from the input, and returns the text there; false at either end.
func (h *history) move(step int, input string) (string, bool) {
	to := h.at + step
	if to < 0 || to > len(h.entries) {
		return "", false
	}
	if h.at == len(h.entries) {
		h.draft = input
	}
	h.at = to
	if to == len(h.entries) {
		return h.draft, true
	}
	return h.entries[to], true
}
