//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// selfTest is the outcome of the self-test of this process.
var selfTest struct {
	mu   sync.Mutex
	done bool
	err  error
}

// SelfTest runs a program in the sandbox once per process and observes what it is denied. It returns [ErrUnavailable]
// with the reason and the fix when the sandbox does not start or a denial is not observed, and nil when programs may be
// run. Before, it removes the folders of [MakeTemp] that killed processes left.
func SelfTest(ctx context.Context) error {
	selfTest.mu.Lock()
	defer selfTest.mu.Unlock()
	if !selfTest.done {
		err := testSandbox(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		selfTest.done, selfTest.err = true, err
	}
	return selfTest.err
}

// selfTestScript prints what it sees, in sections. unshare is part of util-linux, like prlimit.
const selfTestScript = `
section() { printf '\n== %s\n' "$1"; }
section status; cat /proc/self/status
section limits; cat /proc/self/limits
section namespaces; ls -l /proc/self/ns
section descriptors; ls -l /proc/self/fd
section network; cat /proc/net/dev
section environment; env
section escaped
cat "$1" && echo 'read a file outside'
(: > /usr/conclave-self-test) && echo 'wrote to /usr'
(: > /conclave-self-test) && echo 'wrote to /'
(: > /dev/conclave-self-test) && echo 'wrote to /dev'
[ -e /sys/kernel ] && echo 'saw sysfs'
/usr/bin/unshare --user true && echo 'created a user namespace'
section allowed
(: > written) && rm written && (: > /tmp/written) && echo 'wrote to the working folder'
section end
`

// testSandbox is SelfTest without the cache.
func testSandbox(ctx context.Context) error {
	removeStale()
	if _, err := findBubblewrap(); err != nil {
		return err
	}
	for _, p := range []string{"/usr/bin/prlimit", "/usr/bin/unshare"} {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("%w: %s is missing; install it (Debian, Ubuntu: apt-get install util-linux)",
				ErrUnavailable, p)
		}
	}
	base, remove, err := MakeTemp()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer remove()
	work, outside := filepath.Join(base, "work"), filepath.Join(base, "outside")
	// Readable by the sandbox's user, so that the file is denied by the sandbox and not by its mode.
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(work, 0o700),
		os.WriteFile(outside, []byte("outside\n"), 0o644)); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	limits := DefaultLimits
	limits.Time = 30 * time.Second
	got, err := run(ctx, Spec{
		Args: []string{"/bin/sh", "-c", selfTestScript, "sh", outside}, Dir: work,
		Limits: limits,
	})
	if err != nil {
		if errors.Is(err, ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w: %w; %s", ErrUnavailable, err, namespaceFix)
	}
	if got.Stopped != StopNone || got.ExitCode != 0 {
		return fmt.Errorf("%w: the self-test ended with exit code %d (%s)", ErrUnavailable, got.ExitCode, got.Stopped)
	}
	if err := checkObserved(splitSections(string(got.Output))); err != nil {
		return fmt.Errorf("%w: the self-test did not observe a denial: %w; update bubblewrap and the kernel",
			ErrUnavailable, err)
	}
	return nil
}

// namespaceFix is the usual reason why bubblewrap does not start.
const namespaceFix = "unprivileged user namespaces must be permitted: sysctl kernel.unprivileged_userns_clone=1 " +
	"(Debian), an AppArmor profile " +
	"for bwrap or sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); a container needs the permission " +
	"from its host"

// splitSections splits the output of [selfTestScript] by the names of its sections.
func splitSections(output string) map[string]string {
	sections := map[string]string{}
	for _, part := range strings.Split(output, "\n== ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		sections[name] = body
	}
	return sections
}

var (
	statusLine    = regexp.MustCompile(`(?m)^(\w+):\s+(\S+)`)
	namespaceLink = regexp.MustCompile(`(?m) (\w+) -> (\w+:\[\d+\])$`)
	interfaceLine = regexp.MustCompile(`(?m)^\s*(\S+):`)
	openLine      = regexp.MustCompile(`(?m) (\d+) -> (.*)$`)
	limitLine     = regexp.MustCompile(
		`(?m)^Max (cpu time|file size|core file size|processes|open files|address space)\s+(\d+|unlimited)\s+(\d+|` +
			`unlimited)`)
	knownEnv = []string{"PATH", "HOME", "TMPDIR", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}
)

// checkObserved returns the first thing that the sandbox of the self-test did not deny. What a section lacks was not
// observed.
func checkObserved(seen map[string]string) error {
	if _, ok := seen["end"]; !ok {
		return errors.New("the output is incomplete")
	}
	status := map[string]string{}
	for _, m := range statusLine.FindAllStringSubmatch(seen["status"], -1) {
		status[m[1]] = m[2]
	}
	for name, want := range map[string]string{
		"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0000000000000000", "CapPrm": "0000000000000000",
		"CapInh": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "Uid": insideID,
	} {
		if status[name] != want {
			return fmt.Errorf("%s is %q, not %s", name, status[name], want)
		}
	}
	inner := map[string]string{}
	for _, m := range namespaceLink.FindAllStringSubmatch(seen["namespaces"], -1) {
		inner[m[1]] = m[2]
	}
	for _, name := range []string{"ipc", "mnt", "net", "pid", "user", "uts"} {
		own, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil || inner[name] == "" || inner[name] == own {
			return fmt.Errorf("the %s namespace is that of the machine", name)
		}
	}
	for _, m := range interfaceLine.FindAllStringSubmatch(seen["network"], -1) {
		if m[1] != "lo" {
			return fmt.Errorf("there is a network interface %s", m[1])
		}
	}
	for _, m := range openLine.FindAllStringSubmatch(seen["descriptors"], -1) {
		if !slices.Contains([]string{"0", "1", "2"}, m[1]) && !strings.HasPrefix(m[2], "/proc/") {
			return fmt.Errorf("descriptor %s is open", m[1])
		}
	}
	for line := range strings.Lines(seen["environment"]) {
		if name, _, ok := strings.Cut(line, "="); ok && !slices.Contains(knownEnv, name) {
			return fmt.Errorf("the environment contains %s", name)
		}
	}
	limits := map[string]string{}
	for _, m := range limitLine.FindAllStringSubmatch(seen["limits"], -1) {
		if m[2] == m[3] { // soft and hard
			limits[m[1]] = m[2]
		}
	}
	for _, name := range []string{
		"cpu time", "file size", "core file size", "processes", "open files",
		"address space",
	} {
		if limits[name] == "" || limits[name] == "unlimited" {
			return fmt.Errorf("there is no limit of %s", name)
		}
	}
	if escaped := usefulLine(seen["escaped"]); escaped != "" {
		return errors.New("the program " + escaped)
	}
	if !strings.Contains(seen["allowed"], "wrote to the working folder") {
		return errors.New("the working folder is not writable")
	}
	return nil
}

// usefulLine returns the first line of the section that is not an error message of a denied command.
func usefulLine(section string) string {
	for line := range strings.Lines(section) {
		for _, verb := range []string{"read ", "wrote ", "saw ", "created "} {
			if strings.HasPrefix(line, verb) {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}
