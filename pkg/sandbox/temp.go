//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of temporary folders.
const tempPrefix = "conclave-sandbox-"

// MakeTemp makes a folder of mode 0700 for one run, in the temporary folder of the system and with a name that no other
// user can foresee. The folder is locked until remove is called or the process ends, however it ends: [SelfTest] of a
// later process removes the folders that nobody locks.
func MakeTemp() (dir string, remove func(), err error) {
	for {
		if dir, err = os.MkdirTemp("", tempPrefix); err != nil {
			return "", nil, err
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", nil, err
		}
		lock, err := lockFolder(dir, 0)
		if errors.Is(err, fs.ErrNotExist) { // removed before it was locked
			continue
		}
		if err != nil {
			os.RemoveAll(dir)
			return "", nil, err
		}
		return dir, func() {
			os.RemoveAll(dir)
			lock.Close()
		}, nil
	}
}

// removeStale removes the temporary folders of processes of this user that were killed. One that cannot be removed
// stays.
func removeStale() {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*")) // fails for an invalid pattern only
	for _, dir := range found {
		if lock, err := lockFolder(dir, unix.LOCK_NB); err == nil {
			os.RemoveAll(dir)
			lock.Close()
		}
	}
}

// lockFolder locks a temporary folder until the file is closed. It fails for a folder that does not belong to this user
// or to the user of programs, with [fs.ErrNotExist] for one that is gone, and with flag LOCK_NB for one that is locked.
func lockFolder(dir string, flag int) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var s unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &s)
	if err == nil && !isOwnOrPrograms(s.Uid) {
		err = fs.ErrPermission
	}
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|flag)
	}
	if err == nil { // the owner of a lock removes the folder before it ends
		_, err = os.Lstat(dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// isOwnOrPrograms reports whether a user is that of this process or the one that programs run as.
func isOwnOrPrograms(uid uint32) bool {
	owner, err := chooseUser()
	return int(uid) == os.Geteuid() || err == nil && owner != nil && uid == owner.Uid
}
