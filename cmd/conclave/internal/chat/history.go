package chat

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"conclave/cmd/conclave/internal/cli"
)

// maxHistory is how many inputs are kept.
const maxHistory = 1000

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
	if f, err := os.Open(h.file); err == nil {
		defer f.Close()
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			var text string
			if json.Unmarshal(s.Bytes(), &text) == nil {
				h.entries = append(h.entries, text)
			}
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
	h.entries = h.entries[max(0, len(h.entries)-maxHistory):]
	_ = h.save() // the conversation goes on without it
}

// save replaces the file, with mode 0600.
func (h *history) save() error {
	if h.file == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(h.file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(h.file), ".chat_history-*") // with mode 0600
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	for _, e := range h.entries {
		if err == nil {
			err = enc.Encode(e)
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), h.file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
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
	if h.at = to; to == len(h.entries) {
		return h.draft, true
	}
	return h.entries[to], true
}
