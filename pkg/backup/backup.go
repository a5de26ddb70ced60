// Package backup copies the data and the configuration of an installation into a folder or an archive, and restores
// them.
//
// A backup is the state of all files at one moment, as a power switch would leave it: streams, buckets, memory and
// audit anchors fit together. The files are copied while the system works, then it is paused for the files that changed
// meanwhile, until a scan of the whole folder finds no change since the copies were made.
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/file"
)

// Format is the version of the layout of a backup.
const Format = 1

// manifestFile is the first file of an archive, and the last that is written.
const manifestFile = "manifest.json"

// Manifest describes a backup. Its checksums detect damage; only MAC tells who made it.
type Manifest struct {
	Format      int       `json:"format"`
	DataVersion int       `json:"data_version"` // see bus.DataVersion
	Build       string    `json:"build,omitempty"`
	Created     time.Time `json:"created"`
	Running     bool      `json:"running"`           // made while the system ran
	WithKeys    bool      `json:"with_keys"`         // keys and tokens are included
	Omitted     []string  `json:"omitted,omitempty"` // names in the data folder that were left out without keys
	Files       []File    `json:"files"`
	// MAC is the keyed hash of the rest, by a key of the installation; "" = the backup was not made by itself.
	MAC string `json:"mac,omitempty"`
}

// hash returns the keyed hash of the manifest, which its MAC has to be.
func (m Manifest) hash(key *audit.Hasher) (string, error) {
	m.MAC = ""
	b, err := json.Marshal(m)
	return key.Hash(b), err
}

// File is a file of a backup. Path has slashes and begins with data/ or config/.
type File struct {
	Path   string      `json:"path"`
	Size   int64       `json:"size"`
	Mode   fs.FileMode `json:"mode"`
	SHA256 string      `json:"sha256"`
}

// Names returns the first names of the files in the data folder, and config/<name> for those of the configuration,
// sorted.
func (m Manifest) Names() []string {
	names := map[string]bool{}
	for _, f := range m.Files {
		part, rel, _ := strings.Cut(f.Path, "/")
		top, _, _ := strings.Cut(rel, "/")
		if part == configPart {
			top = f.Path
		}
		names[top] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Size returns the bytes of all files.
func (m Manifest) Size() (sum int64) {
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// check rejects a manifest that this build cannot restore, and paths that leave the folder.
func (m Manifest) check() error {
	if m.Format < 1 || m.Format > Format {
		return fmt.Errorf("%w: its format is %d, this build reads up to %d; use the build that wrote it", ErrUnreadable,
			m.Format, Format)
	}
	if err := bus.CheckVersion(m.DataVersion); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		top, rest, _ := strings.Cut(f.Path, "/")
		if (top != dataPart && top != configPart) || rest == "" || !filepath.IsLocal(filepath.FromSlash(f.Path)) ||
			seen[f.Path] || path.Clean(f.Path) != f.Path {
			return fmt.Errorf("%w: %s names the file %q", ErrUnreadable, manifestFile, f.Path)
		}
		seen[f.Path] = true
	}
	return nil
}

// Parts of a backup.
const (
	dataPart   = "data"
	configPart = "config"
)

var (
	// ErrUnreadable means that a file or folder is no backup, or one that is incomplete or damaged.
	ErrUnreadable = errors.New("the backup cannot be used")
	// ErrBusy means that the files changed during every pause.
	ErrBusy = errors.New("the data changed during every attempt to copy it")
)

// Options are the source and the wiring of a backup.
type Options struct {
	Home     bus.Home
	WithKeys bool
	Build    string // version of the program, for the manifest
	// Key is the key of the installation, by which it trusts the backup, see [bus.Home.BackupKey]; nil = it does not.
	Key *audit.Hasher
	// Pause pauses the running system; resume reports whether the pause lasted until then. nil = it is stopped.
	Pause func(ctx context.Context) (resume func() bool, err error)
	// Progress is called with the bytes that are done, of about all; nil = not reported.
	Progress func(done, all int64)

	rounds int // 0 = pauseRounds
}

// Create writes a backup to dest: a gzipped archive when its name ends with .tar.gz or .tgz, an archive with .tar,
// otherwise a folder. dest must not exist, and appears complete or not at all. The caller must hold the lock of a
// stopped system.
func Create(ctx context.Context, dest string, o Options) (m Manifest, err error) {
	if dest, err = filepath.Abs(dest); err != nil {
		return m, err
	}
	if _, err := os.Lstat(dest); err == nil {
		return m, fmt.Errorf("%s exists already: choose another name", dest)
	}
	for _, dir := range []string{o.Home.Data, o.Home.Config} {
		if rel, err := filepath.Rel(dir, dest); err == nil && filepath.IsLocal(rel) {
			return m, fmt.Errorf("%s is inside %s: choose a place outside", dest, dir)
		}
	}
	m = Manifest{
		Format: Format, Build: o.Build, Created: time.Now().UTC(), Running: o.Pause != nil,
		WithKeys: o.WithKeys,
	}
	if m.DataVersion, err = o.Home.ReadVersion(); err != nil {
		return m, err
	}
	staging, err := os.MkdirTemp(filepath.Dir(dest), ".conclave-backup-*") // with mode 0700, on the file system of dest
	if err != nil {
		return m, fmt.Errorf("backing up: %w", err)
	}
	defer os.RemoveAll(staging)
	c := newCopier(staging, o)
	if err := c.copyConsistent(ctx); err != nil {
		return m, fmt.Errorf("backing up: %w", err)
	}
	m.Omitted = c.omitted
	if m.Files, err = hashFiles(ctx, staging, c.paths()); err == nil && o.Key != nil {
		m.MAC, err = m.hash(o.Key)
	}
	if err == nil {
		err = file.ReplaceJSON(filepath.Join(staging, manifestFile), m)
	}
	if err != nil {
		return m, fmt.Errorf("backing up: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return m, err
	}
	if isArchive(dest) {
		err = writeArchive(ctx, dest, staging, m)
	} else {
		err = publishFolder(staging, dest)
	}
	if err != nil {
		return m, fmt.Errorf("backing up: %w", err)
	}
	return m, nil
}

func isArchive(name string) bool { return strings.HasSuffix(name, ".tar") || isCompressed(name) }

func isCompressed(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
}

// hashFiles syncs the copied files and returns them with their checksums, sorted.
func hashFiles(ctx context.Context, staging string, paths []string) ([]File, error) {
	var out []File
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, err := os.Open(filepath.Join(staging, filepath.FromSlash(path)))
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		n, err := io.Copy(sum, f)
		var info fs.FileInfo
		if err == nil {
			info, err = f.Stat()
		}
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return nil, err
		}
		out = append(out, File{Path: path, Size: n, Mode: info.Mode().Perm(), SHA256: hex.EncodeToString(sum.Sum(nil))})
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// publishFolder renames a complete folder to dest, which must not exist or be an empty folder, and syncs its parent.
func publishFolder(staging, dest string) error {
	if err := os.Rename(staging, dest); err != nil {
		return err
	}
	return file.Sync(filepath.Dir(dest))
}
