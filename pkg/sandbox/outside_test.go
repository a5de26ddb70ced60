//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestSocketsOutside: a program connects to a socket of a process outside when it sees its file, whatever its network
// namespace. A folder that holds one is rejected, and the run ends when one appears.
func TestSocketsOutside(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	program := buildProbes(t)
	listen := func(t *testing.T, network, path string) net.Listener {
		t.Helper()
		if network == "unixgram" {
			c, err := net.ListenUnixgram(network, &net.UnixAddr{Name: path, Net: network})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return nil
		}
		l, err := net.Listen(network, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, folder string)
		paths   func(folder string, s *Spec) // nil = the folder to read
		// part of the error; "" = it runs, and connects only if Socket names the socket
		want string
	}{
		"stream": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"/s")
		}, want: "/s of a process outside"},
		"datagram": {prepare: func(t *testing.T, f string) {
			listen(t, "unixgram", f+"/s")
		}, want: "/s of a process outside"},
		"sequence": {prepare: func(t *testing.T, f string) {
			listen(t, "unixpacket", f+"/s")
		}, want: "/s of a process outside"},
		"in a folder": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"/a/s")
		}, want: "/a/s of a process outside"},
		"hidden": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"/a/.s")
		}, want: "/a/.s of a process outside"},
		"to change": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"/s")
		}, paths: func(f string, s *Spec) { s.ReadWrite = append(s.ReadWrite, f) }, want: "/s of a process outside"},
		"the file itself": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"/s")
		}, paths: func(f string, s *Spec) { s.ReadOnly = append(s.ReadOnly, f+"/s") }, want: "/s of a process outside"},
		"bound by another name": {prepare: func(t *testing.T, f string) {
			dir, err := os.Open(f)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			listen(t, "unix", fmt.Sprintf("/proc/self/fd/%d/s", dir.Fd()))
		}, want: "/s of a process outside"},
		"renamed": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"-s").(*net.UnixListener).SetUnlinkOnClose(false)
			if err := os.Rename(f+"-s", f+"/s"); err != nil {
				t.Fatal(err)
			}
		}, want: "/s of a process outside"},
		"nobody listens": {prepare: func(t *testing.T, f string) {
			l := listen(t, "unix", f+"/s").(*net.UnixListener)
			l.SetUnlinkOnClose(false)
			l.Close()
		}},
		"given": {prepare: func(t *testing.T, f string) {
			listen(t, "unix", f+"/s")
		}, paths: func(f string, s *Spec) { s.Socket = f + "/s" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(newWorkFolder(t), "f")
			if err := errors.Join(os.Mkdir(folder, 0o755), os.Mkdir(folder+"/a", 0o755)); err != nil {
				t.Fatal(err)
			}
			tt.prepare(t, folder)
			_ = os.Chmod(folder+"/s", 0o777) // the user of programs may connect
			s := Spec{
				Args: []string{program, "unix", folder + "/s"}, Dir: newWorkFolder(t),
				ReadOnly: []string{program}, Limits: DefaultLimits,
			}
			if tt.paths == nil {
				s.ReadOnly = append(s.ReadOnly, folder)
			} else {
				tt.paths(folder, &s)
			}
			r, err := Run(t.Context(), s)
			switch {
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%+v, %v, want %q", r, err, tt.want)
			case tt.want == "" && (err != nil || (r.ExitCode == 0) != (s.Socket != "")):
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	t.Run("it appears later", func(t *testing.T) {
		t.Parallel()
		folder := newWorkFolder(t)
		var once sync.Once
		r, err := Run(t.Context(), Spec{
			Args: []string{"sh", "-c", "echo started; sleep 1000"}, Dir: newWorkFolder(t), ReadOnly: []string{folder},
			Limits: DefaultLimits,
			Output: func([]byte) { once.Do(func() { listen(t, "unix", folder+"/s") }) },
		})
		if err != nil || r.Stopped != StopSocket {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("its own", func(t *testing.T) {
		t.Parallel()
		folder := newWorkFolder(t)
		if err := os.Chmod(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second run finds the file of the first
			r, err := Run(t.Context(), Spec{
				Args: []string{program, "listen", folder + "/s"}, Dir: newWorkFolder(t),
				ReadOnly: []string{program}, ReadWrite: []string{folder}, Limits: DefaultLimits,
			})
			if err != nil || r.Stopped != StopNone {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})
}

// TestKernelMounts: a folder in which a file system of the kernel is mounted, or that is in one, is found.
func TestKernelMounts(t *testing.T) {
	t.Parallel()
	const mounts = `22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:20 / /srv/root/proc rw,nosuid shared:1 - proc proc rw
24 22 0:21 / /srv/with\040blank/sys rw - sysfs sysfs rw
25 22 0:22 / /data rw - ext4 /dev/sdb1 rw
26 22 0:23 / /covered rw - proc proc rw
27 26 0:24 / /covered rw - tmpfs tmpfs rw
`
	for path, want := range map[string]string{
		"/srv": "/srv/root/proc", "/srv/root": "/srv/root/proc", "/srv/root/proc/1": "/srv/root/proc",
		"/srv/with blank": "/srv/with blank/sys",
		"/srv/rooted":     "", "/data": "", "/data/proc": "", "/home": "", "/covered/x": "",
	} {
		if point, _ := findKernelMount(mounts, []string{path}); point != want {
			t.Errorf("%s: %q, want %q", path, point, want)
		}
	}
}

// TestLaterMounts: what the machine mounts in a folder of a running program stays outside, as root and with mounts that
// propagate, as systemd has them. Of others the watch finds it.
func TestLaterMounts(t *testing.T) {
	t.Parallel()
	const mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:20 / /media/a\\043b rw - tmpfs tmpfs rw\n24 22 0:20 " +
		"/ /srv rw - tmpfs tmpfs rw\n"
	if got := listMounts(mounts, []string{"/media"}); len(got) != 1 || !got["23"] {
		t.Errorf("mounts in /media: %v", got)
	}
	if known := listMounts(mounts, []string{"/"}); !(mountSet{}).hasNew([]string{"/"}) || len(known) != 3 {
		t.Errorf("mounts in /: %v", known)
	}
	if os.Geteuid() != 0 || !maySetMounts() {
		t.Skip("mounting needs root")
	}
	requireSandbox(t)
	const folderVariable = "CONCLAVE_TEST_MOUNTS"
	folder := os.Getenv(folderVariable)
	if folder == "" {
		own, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "shared", own,
			"-test.run=^TestLaterMounts$", "-test.v")
		c.Env = append(os.Environ(), folderVariable+"="+newWorkFolder(t))
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	usb := filepath.Join(folder, "usb")
	if err := os.Mkdir(usb, 0o755); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	r, err := Run(t.Context(), Spec{
		Args: []string{
			"sh", "-c",
			`echo started; for i in $(seq 20); do sleep 0.1; touch "$1/usb/x" && echo written; done; echo end`, "sh",
			folder,
		}, Dir: newWorkFolder(t), ReadOnly: []string{folder}, Limits: DefaultLimits,
		Output: func([]byte) {
			once.Do(func() {
				if err := syscall.Mount("tmpfs", usb, "tmpfs", 0, "mode=777"); err != nil {
					t.Error(err)
				}
			})
		},
	})
	if err != nil || r.Stopped != StopNone || strings.Contains(string(r.Output), "written") ||
		!strings.Contains(string(r.Output), "end") {
		t.Errorf("%+v, %v: %s", r, err, r.Output)
	}
}
