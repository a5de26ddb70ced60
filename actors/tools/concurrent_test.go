package tools_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"conclave/subjects"
)

// concurrentFolder is the environment variable by which TestConcurrentWritesAreKept starts itself as a second process.
const concurrentFolder = "CONCLAVE_TEST_CONCURRENT_FOLDER"

// TestConcurrentWritesAreKept: a thousand additions at once, by the three tools that add to a file and by two
// processes, are all in the files when the tools have reported them.
func TestConcurrentWritesAreKept(t *testing.T) {
	const effects = 500 // of a process
	t.Parallel()
	folder, isChild := os.LookupEnv(concurrentFolder)
	if isChild {
		addConcurrently(t, folder, "child", effects)
		return
	}
	folder = newFileFixture(t).allowed
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConcurrentWritesAreKept$")
	child.Env = append(os.Environ(), concurrentFolder+"="+folder)
	var log strings.Builder
	child.Stdout, child.Stderr = &log, &log
	must(t, child.Start())
	addConcurrently(t, folder, "parent", effects)
	if err := child.Wait(); err != nil {
		t.Fatalf("the second process: %v\n%s", err, log.String())
	}
	content := readText(t, folder+"/n.md") + readText(t, folder+"/c.ics") + readText(t, folder+"/f.txt")
	lost := 0
	for _, process := range []string{"parent", "child"} {
		for i := range effects {
			if strings.Count(content, fmt.Sprintf("%s %d.", process, i)) != 1 {
				lost++
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d additions that were reported as stored are lost", lost, 2*effects)
	}
	if left, err := filepath.Glob(folder + "/.conclave-*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// addConcurrently adds n texts to files of folder, as many at once as the runtime lets through.
func addConcurrently(t *testing.T, folder, process string, n int) {
	f := fileFixture{rules: subjects.FolderRules{Allowed: []string{folder}}}
	var running sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range n {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			what := fmt.Sprintf("%s %d.", process, i)
			name, args := "notes_add", map[string]any{"path": folder + "/n.md", "text": what}
			switch i % 3 {
			case 1:
				name, args = "calendar_add", map[string]any{
					"path": folder + "/c.ics", "title": what, "start": "2026-12-24",
				}
			case 2:
				name, args = "fs_write", map[string]any{
					"path": folder + "/f.txt", "content": what + "\n", "append": true,
				}
			}
			if got := f.run(t, name, args); got.Error != nil {
				t.Errorf("%s: %+v", name, got)
			}
		})
	}
	running.Wait()
}
