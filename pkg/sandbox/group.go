//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// group is the control group of a run: it bounds the memory of all processes together, also memory that belongs to no
// process, and their number. The zero value has no folder and bounds nothing. A nil group may be used.
type group struct {
	dirs []string // one with cgroup v2, one per controller with v1
}

var groups atomic.Int64

// newGroup returns a new control group below or beside that of this process, or nil where none is writable.
func newGroup(l Limits) *group {
	g := &group{}
	name := fmt.Sprintf("conclave-sandbox-%d-%d", os.Getpid(), groups.Add(1))
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	memory, pids := strconv.FormatInt(l.TotalMemory, 10), strconv.Itoa(l.Processes+2)
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch controllers := strings.Split(f[1], ","); {
		case f[1] == "": // v2: processes are in leaves, so the new group is a sibling
			for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				parent := filepath.Join(mount, filepath.Dir(f[2]))
				have, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
				if err == nil && slices.Contains(strings.Fields(string(have)), "memory") {
					g.create(filepath.Join(parent, name),
						map[string]string{
							"memory.max": memory, "memory.swap.max": "0", "pids.max": pids,
							"memory.oom.group": "1",
						})
					break
				}
			}
		case slices.Contains(controllers, "memory"):
			g.create(filepath.Join("/sys/fs/cgroup/memory", f[2], name),
				map[string]string{"memory.limit_in_bytes": memory})
		case slices.Contains(controllers, "pids"):
			g.create(filepath.Join("/sys/fs/cgroup/pids", f[2], name), map[string]string{"pids.max": pids})
		}
	}
	if len(g.dirs) == 0 {
		return nil
	}
	return g
}

// create adds a folder with these settings. A setting that this kernel does not have is left out.
func (g *group) create(dir string, settings map[string]string) {
	var at unix.Statfs_t
	if unix.Statfs(filepath.Dir(dir), &at) != nil ||
		(at.Type != unix.CGROUP_SUPER_MAGIC && at.Type != unix.CGROUP2_SUPER_MAGIC) {
		return
	}
	if os.Mkdir(dir, 0o755) != nil {
		return
	}
	g.dirs = append(g.dirs, dir)
	for file, value := range settings {
		_ = os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
	}
}

// add moves a process into the group. Processes that it starts later are in it too.
func (g *group) add(pid int) error {
	if g == nil {
		return nil
	}
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// outOfMemory reports whether the kernel killed a process of the group for its memory.
func (g *group) outOfMemory() bool {
	if g == nil {
		return false
	}
	for _, dir := range g.dirs {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			b, _ := os.ReadFile(filepath.Join(dir, file))
			for line := range strings.Lines(string(b)) {
				if n, ok := strings.CutPrefix(line, "oom_kill "); ok && strings.TrimSpace(n) != "0" {
					return true
				}
			}
		}
	}
	return false
}

// remove removes the group, which must be empty.
func (g *group) remove() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		_ = os.Remove(dir)
	}
	g.dirs = nil
}
