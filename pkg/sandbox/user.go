//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Users of programs when Conclave runs as root: a number that no system hands out, or nobody where it is not mapped, as
// in a container.
const (
	ownUser    = 1_900_000_016
	nobodyUser = 65534
)

// chooseUser returns the user that bubblewrap runs as, nil for that of this process. Root is never used: the kernel
// exempts it from the limit of processes, and its files are the system's.
func chooseUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, id := range []uint32{ownUser, nobodyUser} {
		if isMapped("/proc/self/uid_map", id) && isMapped("/proc/self/gid_map", id) {
			return &syscall.Credential{Uid: id, Gid: id, Groups: []uint32{}}, nil
		}
	}
	return nil,
		fmt.Errorf("%w: Conclave runs as root, and this container maps no other user; run it as an ordinary user",
			ErrUnavailable)
}

// GiveToPrograms makes a file or folder of this process accessible to the user that programs run as, and to no other.
// Only root has to: otherwise it is the same user.
func GiveToPrograms(path string) error {
	owner, err := chooseUser()
	if err != nil || owner == nil {
		return err
	}
	if err := os.Lchown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("giving %s to the user of programs: %w", path, err)
	}
	return nil
}

// CanWrite reports whether the user that programs run as can write to a folder, by its owner and mode, and returns that
// user.
func CanWrite(dir string) (ok bool, user int) {
	owner, err := chooseUser()
	if err != nil {
		return false, os.Geteuid()
	}
	if owner == nil {
		return unix.Access(dir, unix.W_OK|unix.X_OK) == nil, os.Geteuid()
	}
	var s unix.Stat_t
	if unix.Stat(dir, &s) != nil {
		return false, int(owner.Uid)
	}
	rights := s.Mode
	switch {
	case s.Uid == owner.Uid:
		rights >>= 6
	case s.Gid == owner.Gid:
		rights >>= 3
	}
	return rights&3 == 3, int(owner.Uid)
}

// isMapped reports whether id exists in this user namespace.
func isMapped(file string, id uint32) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var first, outside, count uint64
		if _, err := fmt.Sscan(lines.Text(), &first, &outside, &count); err == nil && uint64(id) >= first &&
			uint64(id) < first+count {
			return true
		}
	}
	return false
}

// checkSearchable rejects a working folder that the sandbox's user cannot reach.
func checkSearchable(dir string) error {
	for above := filepath.Dir(dir); above != "/"; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return fmt.Errorf("opening %s: %w", above, err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("sandbox: Conclave runs as root, and programs run as another user, who cannot search "+
				"%s; run: chmod o+x %s", above, above)
		}
	}
	return nil
}

// borrowed counts the runs in each working folder whose files belong to the sandbox's user.
var borrowed = struct {
	mu    sync.Mutex
	count map[string]int
}{count: map[string]int{}}

// lendFolder gives the files of the working folder to the sandbox's user. The function that it returns gives them back
// to this user after the last of the runs that use the folder at the same time; the kernel clears setuid bits then.
func lendFolder(ctx context.Context, work *os.Root, to syscall.Credential) (giveBack func() error, err error) {
	borrowed.mu.Lock()
	defer borrowed.mu.Unlock()
	if err := chownTree(ctx, work, to.Uid, to.Gid); err != nil {
		return nil, err
	}
	borrowed.count[work.Name()]++
	return func() error {
		borrowed.mu.Lock()
		defer borrowed.mu.Unlock()
		if borrowed.count[work.Name()]--; borrowed.count[work.Name()] > 0 {
			return nil
		}
		delete(borrowed.count, work.Name())
		return chownTree(context.WithoutCancel(ctx), work, uint32(os.Geteuid()), uint32(os.Getegid()))
	}, nil
}

// chownTree changes the owner of a folder and of the files in it. It follows no symlink. A file with a second name is
// left alone, because that name may be elsewhere, and so is everything below maxDepth.
func chownTree(ctx context.Context, work *os.Root, uid, gid uint32) error {
	if err := work.Chown(".", int(uid), int(gid)); err != nil {
		return err
	}
	return walkFolder(ctx, work, func(e entry) error {
		if e.stat.Uid != uid && (e.stat.Nlink == 1 || e.isFolder()) {
			if err := unix.Fchownat(e.parent, e.name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
		}
		if e.depth >= maxDepth {
			return fs.SkipDir
		}
		return nil
	})
}

// findBubblewrap returns the path of the bubblewrap of the system. The PATH of the user may name another one.
func findBubblewrap() (string, error) {
	for _, path := range []string{"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"} {
		if _, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: bwrap is not installed; install it (Debian, Ubuntu: apt-get install bubblewrap)",
		ErrUnavailable)
}

// helpText is the list of bubblewrap's options, "" where it cannot be run.
var helpText = sync.OnceValue(func() string {
	program, err := findBubblewrap()
	if err != nil {
		return ""
	}
	c := exec.Command(program, "--help")
	c.Env = []string{}
	out, _ := c.CombinedOutput()
	return string(out)
})

// supports reports whether the installed bubblewrap has an option that older ones lack.
func supports(option string) bool { return strings.Contains(helpText(), option+" ") }
