package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"conclave/pkg/bus"
	"conclave/pkg/file"
)

// ErrNotEmpty means that the folder to restore into is in use.
var ErrNotEmpty = errors.New("the folder is not empty")

// Restored is the result of [Restore].
type Restored struct {
	Manifest Manifest // with the restored files only
	Config   bool     // the configuration was restored too
	Rejected []string // paths in the backup that none of its kind holds: they were not restored
}

// Restore writes the files of a backup, only those that one of its kind holds, into the data folder of home, which must
// be missing or empty, and its configuration into the config folder if that is missing or empty; otherwise that one is
// left as it is. Every file is compared with its checksum, and check, which may be nil, examines the restored data
// under a temporary name. The data folder appears complete or not at all. It fails with [ErrUnreadable], [ErrNotEmpty],
// [bus.ErrNewerData] or the error of check.
func Restore(ctx context.Context, from string, home bus.Home, progress func(done, all int64),
	check func(restored bus.Home) error,
) (r Restored, err error) {
	empty, err := isEmptyFolder(home.Data)
	if err != nil {
		return r, fmt.Errorf("restoring: %w", err)
	}
	if !empty {
		return r, fmt.Errorf("%w: %s; name another folder with --data", ErrNotEmpty, home.Data)
	}
	s, err := open(from)
	if err != nil {
		return r, fmt.Errorf("restoring %s: %w", from, err)
	}
	defer s.close()
	r.Manifest = s.manifest
	if r.Config, err = isEmptyFolder(home.Config); err != nil {
		return r, fmt.Errorf("restoring: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(home.Data), 0o700); err != nil {
		return r, fmt.Errorf("restoring: %w", err)
	}
	staging, err := os.MkdirTemp(filepath.Dir(home.Data), ".conclave-restore-*") // with mode 0700
	if err != nil {
		return r, fmt.Errorf("restoring: %w", err)
	}
	defer os.RemoveAll(staging)
	if r.Manifest.Files, r.Rejected, err = unpack(ctx, s, staging, everything, progress); err != nil {
		return r, fmt.Errorf("restoring %s: %w", from, err)
	}
	restored := bus.Home{Data: filepath.Join(staging, dataPart), Config: filepath.Join(staging, configPart)}
	for _, dir := range []string{restored.Data, restored.Config} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return r, fmt.Errorf("restoring: %w", err)
		}
	}
	if check != nil {
		if err := check(restored); err != nil {
			return r, fmt.Errorf("checking the restored data: %w", err)
		}
	}
	if r.Config {
		if err := os.MkdirAll(filepath.Dir(home.Config), 0o700); err != nil {
			return r, fmt.Errorf("restoring: %w", err)
		}
		if err := moveFolder(restored.Config, home.Config); err != nil {
			return r, fmt.Errorf("restoring: %w", err)
		}
	}
	if err := publishFolder(restored.Data, home.Data); err != nil {
		return r, fmt.Errorf("restoring: %w", err)
	}
	return r, nil
}

// moveFolder renames a folder, or copies it to another file system.
func moveFolder(from, to string) error {
	if publishFolder(from, to) == nil {
		return nil
	}
	return copyFolder(from, to)
}

// copyFolder copies the regular files below from, readable by their owner alone. They are on disk when it returns.
func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		dest := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			if err := os.MkdirAll(dest, 0o700); err != nil {
				return err
			}
			return os.Chmod(dest, 0o700) // the target may exist, empty
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is not a regular file", name)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(dest, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Sync(), f.Close(), file.Sync(filepath.Dir(dest)))
	})
}

// isEmptyFolder reports whether dir is missing or an empty folder.
func isEmptyFolder(dir string) (bool, error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return len(all) == 0, err
}

// everything selects every file of a backup.
func everything(string) bool { return true }

// unpack writes the files of a backup with selected paths below dir, compares their checksums and returns them. It does
// not write a file that a backup of this kind does not hold, such as a key in one without keys: somebody has added it.
func unpack(ctx context.Context, s *source, dir string, selected func(path string) bool,
	progress func(done, all int64),
) (written []File, rejected []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	done, all := int64(0), s.manifest.Size()
	err = s.each(func(file File, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if rel, ok := strings.CutPrefix(file.Path, dataPart+"/"); ok && !s.manifest.takes(rel) {
			rejected = append(rejected, file.Path)
			return nil
		}
		if !selected(file.Path) {
			return nil
		}
		name := filepath.FromSlash(file.Path)
		if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		to, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, file.Mode.Perm()&0o600)
		if err != nil {
			return err
		}
		err = copyVerified(to, r, file)
		if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
			return err
		}
		written = append(written, file)
		done += file.Size
		if progress != nil {
			progress(done, all)
		}
		return nil
	})
	return written, rejected, err
}
