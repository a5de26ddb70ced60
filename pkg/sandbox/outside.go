//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxScanned bounds the files that are searched for sockets before a run.
const maxScanned = 200_000

// kernelTypes are the file systems that show or change the kernel and other processes. Those of /dev are rejected by
// its name.
var kernelTypes = []string{
	"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf",
	"binfmt_misc", "devtmpfs", "devpts", "efivarfs", "pstore", "fusectl",
}

// checkOutside rejects a further file or folder of s through which the program could reach a process outside: a Unix
// socket, which no network namespace confines, and a file system of the kernel. It returns what is mounted in them.
func checkOutside(ctx context.Context, s Spec) (mountSet, error) {
	paths := slices.Concat(s.ReadOnly, s.ReadWrite)
	if len(paths) == 0 {
		return nil, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts of this machine: %w", err)
	}
	if point, in := findKernelMount(string(mounts), paths); point != "" {
		return nil, fmt.Errorf("sandbox: %s holds %s, a file system of the kernel; name the folders in it that the "+
			"program needs", in, point)
	}
	socket, in := findBoundSocket(paths)
	for i, left := 0, maxScanned; i < len(paths) && socket == ""; i++ {
		in = paths[i]
		if socket, err = findSocketFile(ctx, in, &left); err != nil {
			return nil, fmt.Errorf("searching %s for sockets: %w", in, err)
		}
	}
	if socket != "" {
		return nil, fmt.Errorf("sandbox: %s holds the Unix socket %s of a process outside; name the folders in it "+
			"that the program needs", in, socket)
	}
	return listMounts(string(mounts), paths), nil
}

// mountSet has the ids of the mounts in the folders of a program.
type mountSet map[string]bool

// listMounts returns the mounts in paths.
func listMounts(mountinfo string, paths []string) mountSet {
	all := mountSet{}
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) >= 5 && slices.ContainsFunc(paths, func(p string) bool {
			return isWithin(p, decodeMount(fields[4]))
		}) {
			all[fields[0]] = true
		}
	}
	return all
}

// hasNew reports whether a mount in paths is not in the set. Mounts that cannot be read are not new.
func (m mountSet) hasNew(paths []string) bool {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	for id := range listMounts(string(mounts), paths) {
		if !m[id] {
			return true
		}
	}
	return false
}

// maySetMounts reports whether this process may change mounts.
func maySetMounts() bool {
	var data [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// findKernelMount returns the mount point of a file system of the kernel that is in one of paths, "" for none. A path
// in such a file system is found too: its mount point then is the nearest above.
func findKernelMount(mountinfo string, paths []string) (point, in string) {
	for _, path := range paths {
		nearest, special := "", false
		for line := range strings.Lines(mountinfo) {
			before, after, ok := strings.Cut(line, " - ")
			fields := strings.Fields(before)
			if !ok || len(fields) < 5 {
				continue
			}
			at := decodeMount(fields[4])
			kind, _, _ := strings.Cut(after, " ")
			isSpecial := slices.Contains(kernelTypes, kind)
			if isSpecial && isWithin(path, at) {
				return at, path
			}
			if isWithin(at, path) && len(at) >= len(nearest) { // a later mount covers an earlier one
				nearest, special = at, isSpecial
			}
		}
		if special {
			return nearest, path
		}
	}
	return "", ""
}

// octal matches a character that mountinfo encodes.
var octal = regexp.MustCompile(`\\[0-3][0-7]{2}`)

// decodeMount decodes a path of mountinfo.
func decodeMount(path string) string {
	return octal.ReplaceAllStringFunc(path, func(s string) string {
		n, _ := strconv.ParseUint(s[1:], 8, 8) // it matched
		return string([]byte{byte(n)})
	})
}

// findBoundSocket returns a socket that a process of this network namespace is bound to, in one of paths; "" for none.
// Programs in the sandbox have another namespace, so their own sockets are not among them.
func findBoundSocket(paths []string) (socket, in string) {
	list, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return "", "" // the search for files remains
	}
	for line := range strings.Lines(string(list)) {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		name := strings.TrimSuffix(line[at:], "\n")
		for _, path := range paths {
			if !isWithin(path, name) {
				continue
			}
			if info, err := os.Lstat(name); err == nil && info.Mode().Type() == fs.ModeSocket {
				return name, path
			}
		}
	}
	return "", ""
}

// findSocketFile returns a socket in path that a process listens on, "" for none. It fails for more than left files,
// and follows no symlink.
func findSocketFile(ctx context.Context, path string, left *int) (socket string, err error) {
	err = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if *left--; *left < 0 {
			return fmt.Errorf("the folders of the program hold more than %d files; name the folders in it that the "+
				"program needs", maxScanned)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // a folder that this user cannot read, or that is gone
			return nil
		case e.Type() == fs.ModeSocket && hasListener(name):
			socket = name
			return fs.SkipAll
		}
		return nil
	})
	return socket, err
}

// hasListener reports whether a process may receive on a socket. It connects to it, and sends nothing; a socket that
// only a file is left of refuses that.
func hasListener(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	// the path may be too long for an address
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(dir)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path))})
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}
