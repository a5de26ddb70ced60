package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/pkg/bus"
)

// Names of scheduled backups: the time between prefix and suffix.
const (
	scheduledPrefix = "conclave-"
	scheduledTime   = "20060102T150405Z"
	scheduledSuffix = ".tar.gz"
)

// Scheduled is a backup that the running system made.
type Scheduled struct {
	Path string
	Time time.Time
}

// ScheduledPath returns the path of a scheduled backup that is made now.
func ScheduledPath(folder string, now time.Time) string {
	return filepath.Join(folder, scheduledPrefix+now.UTC().Format(scheduledTime)+scheduledSuffix)
}

// ListScheduled returns the scheduled backups in folder by their names, newest first, none without the folder.
func ListScheduled(folder string) (out []Scheduled, err error) {
	all, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range all {
		name, ours := strings.CutPrefix(e.Name(), scheduledPrefix)
		at, err := time.Parse(scheduledTime+scheduledSuffix, name)
		if ours && err == nil && e.Type().IsRegular() {
			out = append(out, Scheduled{filepath.Join(folder, e.Name()), at})
		}
	}
	slices.SortFunc(out, func(a, b Scheduled) int { return b.Time.Compare(a.Time) })
	return out, err
}

// PruneScheduled deletes all scheduled backups in folder but the newest keep. Other files are left alone.
func PruneScheduled(folder string, keep int) error {
	all, err := ListScheduled(folder)
	for _, b := range all[min(keep, len(all)):] {
		err = errors.Join(err, os.Remove(b.Path))
	}
	return err
}

// Size returns the bytes of the files that a backup without keys copies.
func Size(home bus.Home) (sum int64, err error) {
	found, err := newCopier("", Options{Home: home}).scan()
	for _, s := range found {
		sum += s.size
	}
	return sum, err
}

// Verify reads a backup and compares every file with its checksum. The error wraps [ErrUnreadable] unless ctx ended.
func Verify(ctx context.Context, from string) error {
	s, err := open(from)
	if err != nil {
		return err
	}
	defer s.close()
	return s.each(func(file File, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return copyVerified(io.Discard, r, file)
	})
}

// copyVerified copies a file of a backup and compares size and checksum. The error wraps [ErrUnreadable],
// also when to cannot be written.
func copyVerified(to io.Writer, r io.Reader, file File) error {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(r, file.Size+1))
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnreadable, file.Path, err)
	}
	if n != file.Size || hex.EncodeToString(sum.Sum(nil)) != file.SHA256 {
		return fmt.Errorf("%w: %s is damaged: its checksum does not match", ErrUnreadable, file.Path)
	}
	return nil
}
