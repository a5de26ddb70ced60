package tools

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/pkg/sandbox"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/pkg/undo"
)

// Workspace is the section tools of the configuration: the working folders of tasks, and the programs that tools run in
// them. The zero value disables the tools that run programs.
type Workspace struct {
	Folder    string        `yaml:"workspace"` // holds a working folder for each question
	Sandbox   SandboxLimits `yaml:"sandbox"`   // of each run
	Languages []string      `yaml:"languages"` // of run_code; one that is not installed is not offered
	// Registries are base URLs: first the index of package_install, then hosts that it links to. Empty disables the
	// tool.
	Registries []string         `yaml:"registries"`
	Blocked    []BlockedCommand `yaml:"blocked"`  // shell commands that are not even tried
	Undo       undo.Limits      `yaml:"undo"`     // what is kept of files before tools change them
	Location   string           `yaml:"location"` // where the user is, for get_location; "" disables it
}

// SandboxLimits are the limits of a program and everything that it starts.
type SandboxLimits struct {
	Time        time.Duration `yaml:"time"` // by the clock, and of the processor for each process
	Memory      strict.Size   `yaml:"memory"`
	TotalMemory strict.Size   `yaml:"total_memory"`
	Processes   int           `yaml:"processes"`
	Disk        strict.Size   `yaml:"disk"`
}

// BlockedCommand is a pattern of shell commands with its name in the failure.
type BlockedCommand struct {
	Name    string `yaml:"name"`
	Pattern string `yaml:"pattern"` // a regular expression over the normalized command, see normalizeCommand
}

// Validate reports everything wrong with w.
func (w Workspace) Validate() error { return w.Problems().Err() }

// Problems returns everything wrong with w: a workspace that is not an absolute path or is a folder of the system,
// limits out of bounds, unknown languages, invalid registries and invalid patterns.
func (w Workspace) Problems() (out strict.Problems) {
	if !filepath.IsAbs(w.Folder) || filepath.Clean(w.Folder) != w.Folder || strings.Count(w.Folder, "/") < 2 {
		out.Add("workspace", "%q is not an absolute path of at least two folders; write /tmp/agent-sandbox",
			text.Clip(w.Folder, 64))
	}
	s := w.Sandbox
	out.CheckDuration("sandbox.time", s.Time, time.Second, 10*time.Minute)
	out.CheckInt("sandbox.processes", s.Processes, 8, 4096)
	for _, size := range []struct {
		name       string
		value      strict.Size
		least, top strict.Size
	}{
		{"memory", s.Memory, 64 << 20, 1 << 40},
		{"total_memory", s.TotalMemory, 64 << 20, 1 << 40},
		{"disk", s.Disk, 1 << 20, 1 << 40},
	} {
		if size.value < size.least || size.value > size.top {
			out.Add("sandbox."+size.name, "%s is not between %s and %s", size.value, size.least, size.top)
		}
	}
	for i, l := range w.Languages {
		if !slices.Contains(Languages, l) {
			out.Add(fmt.Sprintf("languages[%d]", i), "%q is not one of %s", text.Clip(l, 64),
				strings.Join(Languages, ", "))
		}
	}
	for i, r := range w.Registries {
		if _, err := parseRegistry(r); err != nil {
			out.Add(fmt.Sprintf("registries[%d]", i), "%v; write https://index.example.org/simple", err)
		}
	}
	if len(w.Location) > maxLocation || w.Location != text.OneLine(w.Location, maxLocation) {
		out.Add("location", "is not one line of at most %d bytes; write Oslo, Norway", maxLocation)
	}
	for _, p := range w.Undo.Problems() {
		out.Add(strict.JoinPath("undo", p.Path), "%s", p.Text)
	}
	for i, b := range w.Blocked {
		if strings.TrimSpace(b.Name) == "" {
			out.Add(fmt.Sprintf("blocked[%d].name", i), "is empty")
		}
		if _, err := regexp.Compile(b.Pattern); err != nil || b.Pattern == "" {
			out.Add(fmt.Sprintf("blocked[%d].pattern", i), "is not a regular expression: %v", err)
		}
	}
	return out
}

// Limits of a run that are no settings. A program that needs more files is not one that a model wrote for an answer; a
// file may fill a quarter of the working folder as shipped; a model reads no longer output.
const (
	maxOpenFiles = 256
	maxFileSize  = 64 << 20
	maxEntries   = 20_000 // files and folders in the working folder
	outputLimit  = 256 << 10
)

// maxOutput bounds the encoded output of a program, so that a result fits into a message.
const maxOutput = 2 * outputLimit

// limits returns the limits of a run.
func (s SandboxLimits) limits() sandbox.Limits {
	return sandbox.Limits{
		Time: s.Time, CPU: s.Time, Memory: int64(s.Memory), TotalMemory: int64(s.TotalMemory), Processes: s.Processes,
		OpenFiles: maxOpenFiles, FileSize: maxFileSize, Disk: int64(s.Disk), Entries: maxEntries,
		Output: outputLimit,
	}
}

// findBlocked returns the name of the first pattern that a shell command matches, "" for none.
func (w Workspace) findBlocked(command string) string {
	plain := normalizeCommand(command)
	for _, b := range w.Blocked {
		if p, err := regexp.Compile(b.Pattern); err != nil || p.MatchString(plain) { // an invalid pattern blocks
			return b.Name
		}
	}
	return ""
}

var (
	fieldSeparator = regexp.MustCompile(`\$\{?ifs\}?`)
	quoting        = strings.NewReplacer("\\\n", "", `\`, "", `"`, "", "'", "", "`", " ")
)

// normalizeCommand returns a shell command in the form that patterns see: lower case, without quotes and backslashes,
// look-alike characters replaced, one blank between words and instead of a line break. Patterns catch mistakes; what a
// program may do is decided by the sandbox.
func normalizeCommand(command string) string {
	s := fieldSeparator.ReplaceAllString(strings.ToLower(quoting.Replace(command)), " ")
	return text.Normalize(s)
}
