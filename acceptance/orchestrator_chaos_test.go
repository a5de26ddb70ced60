package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// The orchestrator, whose process also runs the agents, is killed at random while tasks run. Each task ends, each
// effect happens once, each report is published once, and the audit log verifies.

// orchestratorAlone is what [playEnv] says for a process with nothing but an orchestrator in it.
const orchestratorAlone = "orchestrator alone"

// runOrchestrator is the process that is killed. It stops when its input ends.
func runOrchestrator() error {
	home := bus.Home{Data: os.Getenv(dataEnv), Config: os.Getenv(dataEnv) + "-config"}
	c, err := config.Load(home.Config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	b := &bus.Bus{URL: os.Getenv(listenEnv), Keys: home.Keys(), Log: log}
	specs, err := c.Compose(home, subjects.Orchestrator)
	if err != nil {
		return err
	}
	cfg := c.ActorConfig()
	cfg.Log = log
	s, err := actor.Supervise(context.Background(), specs[0], b.Dial, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
	}
	return s.Stop()
}

const orchestratorManifest = `
types:
  orchestrator: {tools: [], delegable: [fs_write], can_spawn: [assistant]}
  assistant: {tools: [fs_write]}
accounts: {orchestrator: orchestrator}
high_risk: [] # nobody is there to be asked
limits: {spawns: 1000, calls: 1000}
monitor_only: [flow.undeclared] # the results of the tool are untrusted, and nobody is there to approve the next call
`

const returnReply = `{"status":"success","summary":"It is written.","artifacts":[],"result_quality":"verified",` +
	`"source":"tool_output","new_memory_candidates":[],"failure_reason":null}`

// newTaskHarness is everything but the orchestrator: a scripted model that replies after delay and plans by plan, the
// broker, and a tool that appends the task and the part to a file.
func newTaskHarness(t *testing.T, plan string, delay time.Duration, settings string) *crashHarness {
	t.Helper()
	s := &crashHarness{
		t: t, home: newHome(t), answers: map[string][]subjects.Response{}, dialogs: map[string]int{},
		answered: make(chan string, 4096),
	}
	s.home.Config = s.home.Data + "-config"
	s.file = filepath.Join(t.TempDir(), "written")
	slow := scriptserver.Quirks{FirstDelay: delay}
	s.model = modeltest.New(t, scriptserver.Script{"assistant": {
		{
			Always: true, When: scriptserver.When{System: "You plan a task"},
			Reply: scriptserver.Reply{Content: plan, Quirks: slow},
		},
		{
			Always: true, When: scriptserver.When{System: "You turn the work"},
			Reply: scriptserver.Reply{Content: returnReply, Quirks: slow},
		},
		{
			Always: true, When: scriptserver.When{System: "You write the final report"},
			Reply: scriptserver.Reply{Content: "All is written.", Quirks: slow},
		},
		{
			Always: true, When: scriptserver.When{LastRole: "user", ToolsInclude: []string{"fs_write"}},
			Reply: scriptserver.Reply{Quirks: slow, Calls: []scriptserver.Call{
				{
					Name: "fs_write",
					Arguments: map[string]any{"line": "{{last_user | match task-[0-9]+}} {{last_user | " +
						"match Part [a-z]}}"},
				},
			}},
		},
		{Always: true, Reply: scriptserver.Reply{Content: "It is written.", Quirks: slow}},
	}})
	s.configure(map[string]string{
		"models.yaml":       "roles: {assistant: assistant}\nollama: {url: \"" + s.model.URL + "\", slots: 16}\n",
		"manifest.yaml":     orchestratorManifest,
		"orchestrator.yaml": settings,
		"system.yaml":       "listen: 127.0.0.1:0\ngateway: {listen: \"127.0.0.1:0\"}\n",
	})
	s.startActors("model", "router")
	s.startBroker()
	s.startTool()
	return s
}

// giveTask stores a task whose id is in its words.
func (s *crashHarness) giveTask(id string) {
	s.t.Helper()
	q := subjects.Query{SessionID: "session-" + id, QueryID: id, Query: "Write down " + id}
	if err := actor.Emit(s.t.Context(), s.out, subjects.QueryTask, q); err != nil {
		s.t.Fatal(err)
	}
}

// countReports is how many of the tasks have a report.
func (s *crashHarness) countReports(ids []string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if len(s.answers[id]) > 0 && s.dialogs[id] > 0 {
			n++
		}
	}
	return n
}

func planOf(parts map[string][]string, order ...string) string {
	var all []map[string]any
	for _, id := range order {
		all = append(all, map[string]any{
			"id": id, "title": "Part " + id, "instructions": "Write it down.",
			"agent": "assistant", "depends_on": append([]string{}, parts[id]...), "hint": "simple",
		})
	}
	data, err := json.Marshal(map[string]any{"subtasks": all})
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestChaosKillOrchestrator(t *testing.T) {
	t.Parallel()
	lanes, kills := 1, 4
	if full() {
		lanes, kills = 8, 200
	}
	for lane := range lanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			s := newTaskHarness(t, planOf(map[string][]string{"c": {"a", "b"}}, "a", "b", "c"), 20*time.Millisecond,
				"tasks: 4\n")
			var events atomic.Int64
			user := bustest.Dial(t, s.instance.Bus, "user")
			if _, err := user.Subscribe("task.progress.*", func(*nats.Msg) { events.Add(1) }); err != nil {
				t.Fatal(err)
			}
			if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewSource(chaosSeed(0) + int64(lane)))
			var ids []string
			for k := lane; k < kills; k += lanes {
				id := fmt.Sprintf("task-%d", k)
				ids = append(ids, id)
				before := events.Load()
				s.startProcess(orchestratorAlone)
				s.giveTask(id)
				waitFor(t, "the task to begin", func() bool { return events.Load() > before })
				grace := time.Now().Add(time.Duration(rng.Intn(400)) * time.Millisecond)
				waitFor(t, "some time", func() bool { return time.Now().After(grace) })
				if err := s.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = s.cmd.Wait()
			}
			s.startProcess(orchestratorAlone)
			waitFor(t, "every task to end", func() bool { return s.countReports(ids) == len(ids) })
			s.stopProcess()
			s.checkTasks(ids)
			if !verified(t, s.home, s.instance.Bus).OK {
				t.Error("the audit log does not verify")
			}
			t.Logf("%d kills: %d tasks, each reported once and each of their %d lines written once", len(ids), len(ids),
				3*len(ids))
		})
	}
}

// checkTasks fails unless each task has one whole report and each of its lines was written once.
func (s *crashHarness) checkTasks(ids []string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := os.ReadFile(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	lines := map[string]int{}
	for l := range strings.Lines(string(data)) {
		lines[strings.TrimSpace(l)]++
	}
	for _, id := range ids {
		if r := s.answers[id]; len(r) != 1 || s.dialogs[id] != 1 || r[0].Partial || r[0].Error != nil ||
			len(r[0].ToolCalls) != 3 {
			s.t.Errorf("%s: %d reports, %d dialogs: %+v", id, len(r), s.dialogs[id], r)
		}
		for _, part := range []string{"a", "b", "c"} {
			if n := lines[id+" Part "+part]; n != 1 {
				s.t.Errorf("%s: part %s was written %d times", id, part, n)
			}
		}
	}
}

// A plan of ten subtasks takes little longer than the model calls on its critical path.
func TestTenSubtasks(t *testing.T) {
	if !full() {
		t.Skip("measures time: run it with CONCLAVE_CHAOS=1")
	}
	const delay = 100 * time.Millisecond
	// Three columns of three subtasks, and one that needs all: the critical path has four subtasks.
	needs := map[string][]string{
		"d": {"a"}, "e": {"b"}, "f": {"c"}, "g": {"d"}, "h": {"e"}, "i": {"f"},
		"j": {"g", "h", "i"},
	}
	s := newTaskHarness(t, planOf(needs, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"), delay, "parallel: 3\n")
	s.startProcess(orchestratorAlone)
	// the plan; of each subtask the call of the tool, the result and the return; the report
	path := delay * (1 + 4*3 + 1)
	best := time.Duration(1 << 62)
	for i := range 5 {
		id := fmt.Sprintf("task-%d", i)
		began := time.Now()
		s.giveTask(id)
		waitFor(t, "the report", func() bool { return s.countReports([]string{id}) == 1 })
		best = min(best, time.Since(began))
	}
	s.stopProcess()
	t.Logf("ten subtasks: %s, critical path %s, %.1f %% above it", best.Round(time.Millisecond), path,
		100*(best.Seconds()/path.Seconds()-1))
	if best > path*115/100 {
		t.Errorf("%s is more than 15 %% above the critical path of %s", best, path)
	}
}
