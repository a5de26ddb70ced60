package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FindEmptiedHeads returns the empty head files in dir whose chains have messages in the log. A writer fills the file
// before it sends the first one, so it was emptied since, and records at the end of the chain may be missing. open is
// called, and the log read, only when a file is empty. No writer may run. After an error it returns what it found.
func FindEmptiedHeads(dir string, open func() (Source, error)) (emptied []string, err error) {
	names, err := listHeadFiles(dir, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	empty := map[string]string{} // by subject
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Size() == 0 {
			empty["audit."+strings.TrimSuffix(name, headSuffix)] = name
		}
	}
	if err != nil || len(empty) == 0 {
		return nil, err
	}
	src, err := open()
	if err != nil {
		return nil, err
	}
	for m, err := range src.Messages {
		if err != nil {
			return emptied, fmt.Errorf("looking for the chains of empty head files: %w", err)
		}
		if name, found := empty[m.Subject]; found {
			emptied = append(emptied, name)
			delete(empty, m.Subject)
		}
	}
	return emptied, nil
}
