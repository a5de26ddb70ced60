package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"strings"
	"sync"
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

// A critic is killed at random while answers come. Each is graded, or marked as ungraded, exactly once, and memory
// annotates each once.

// criticAlone is what [playEnv] says for a process with nothing but a critic in it.
const criticAlone = "critic alone"

// runCritic is the process that is killed. It stops when its input ends.
func runCritic() error {
	home := bus.Home{Data: os.Getenv(dataEnv), Config: os.Getenv(dataEnv) + "-config"}
	c, err := config.Load(home.Config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	b := &bus.Bus{URL: os.Getenv(listenEnv), Keys: home.Keys(), Log: log}
	specs, err := c.Compose(home, "critic")
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

// gradeRecorder counts what is said of each question.
type gradeRecorder struct {
	mu        sync.Mutex
	graded    map[string]int
	ungraded  map[string]int
	annotated map[string]int
	kept      map[string]int
}

func (v *gradeRecorder) recordGrade(m *nats.Msg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch m.Subject {
	case "critique.result":
		var c subjects.Critique
		if json.Unmarshal(m.Data, &c) != nil {
			return
		}
		if c.Score == 0 && c.Ungraded != "" {
			v.ungraded[c.QueryID]++
		} else {
			v.graded[c.QueryID]++
		}
	case "memory.annotated", "memory.stored":
		var e subjects.MemoryEvent
		if json.Unmarshal(m.Data, &e) != nil {
			return
		}
		if m.Subject == "memory.stored" {
			v.kept[e.QueryID]++
		} else {
			v.annotated[e.QueryID]++
		}
	}
}

// countGraded reports how many questions are done with: a verdict for each, and memory's word for each that has a
// grade.
func (v *gradeRecorder) countGraded(ids []string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, id := range ids {
		if v.kept[id] > 0 && (v.ungraded[id] > 0 || v.graded[id] > 0 && v.annotated[id] > 0) {
			n++
		}
	}
	return n
}

func TestChaosKillCritic(t *testing.T) {
	t.Parallel()
	answers, kills := 60, 4
	if full() {
		answers, kills = 1000, 60
	}
	s := &crashHarness{
		t: t, home: newHome(t), answers: map[string][]subjects.Response{}, dialogs: map[string]int{},
		answered: make(chan string, 2*answers),
	}
	s.home.Config = s.home.Data + "-config"
	s.model = modeltest.New(t, scriptserver.Script{"critic": {
		{
			Always: true, When: scriptserver.When{Contains: []string{"an unreadable one"}},
			Reply: scriptserver.Reply{Content: "Very nice."},
		},
		{Always: true, Reply: scriptserver.Reply{
			Content: "Feedback: It will do. [RESULT] 4",
			Quirks:  scriptserver.Quirks{FirstDelay: 20 * time.Millisecond},
		}},
	}})
	s.configure(map[string]string{
		"models.yaml": "roles: {assistant: critic, critic: critic, embeddings: nomic-embed-text}\nollama: {url: \"" +
			s.model.URL + "\", slots: 4}\n",
		"memory.yaml": "model: false\n",
		"system.yaml": "listen: 127.0.0.1:0\n",
	})
	s.startActors("model", "memory")
	heard := &gradeRecorder{
		graded: map[string]int{}, ungraded: map[string]int{}, annotated: map[string]int{},
		kept: map[string]int{},
	}
	user := bustest.Dial(t, s.instance.Bus, "user")
	for _, subject := range []string{"critique.result", "memory.annotated", "memory.stored"} {
		if _, err := user.Subscribe(subject, heard.recordGrade); err != nil {
			t.Fatal(err)
		}
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	ids := make([]string, answers)
	for i := range ids {
		ids[i] = fmt.Sprintf("q%d", i)
	}
	spoken := make(chan error, 1)
	go func() { spoken <- s.answerQuestions(ids) }()
	rng := rand.New(rand.NewSource(chaosSeed(1)))
	for range kills {
		s.startProcess(criticAlone)
		before := heard.countGraded(ids)
		grace := time.Now().Add(time.Duration(rng.Intn(700)) * time.Millisecond)
		waitFor(t, "some time", func() bool {
			return time.Now().After(grace) && heard.countGraded(ids) >= min(before+1, answers)
		})
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Wait()
	}
	if err := <-spoken; err != nil {
		t.Fatal(err)
	}
	s.startProcess(criticAlone)
	waitFor(t, "every answer to be judged", func() bool { return heard.countGraded(ids) == answers })
	s.stopProcess()
	heard.mu.Lock()
	defer heard.mu.Unlock()
	none := 0
	for i, id := range ids {
		graded, ungraded, annotated := 1, 0, 1
		if i%10 == 9 {
			graded, ungraded, annotated = 0, 1, 0
			none++
		}
		if heard.graded[id] != graded || heard.ungraded[id] != ungraded || heard.annotated[id] != annotated ||
			heard.kept[id] != 1 {
			t.Errorf("%s: graded %d times, ungraded %d times, annotated %d times, kept %d times", id, heard.graded[id],
				heard.ungraded[id], heard.annotated[id], heard.kept[id])
		}
	}
	t.Logf("%d answers, %d kills: %d graded, %d ungraded, each once; %d engrams annotated once", answers, kills,
		answers-none, none, answers-none)
}

// answerQuestions says answers under the generator's key, every tenth one such that no judge can be read.
func (s *crashHarness) answerQuestions(ids []string) error {
	nc, err := s.instance.Bus.Dial("generator")
	if err != nil {
		return err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return err
	}
	for i, id := range ids {
		words := "a readable one"
		if i%10 == 9 {
			words = "an unreadable one"
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := actor.Emit(ctx, out.WithIDs("s1", id), subjects.ResponseGeneration, subjects.Response{
			SessionID: "s1", QueryID: id, Query: "What is thing number " + id + "?", Answer: strings.Repeat(id+" ", 3) +
				"is " + words + ".", ToolCalls: []subjects.ToolCall{},
			RespondentID: "generator", Labels: &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public},
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits for something that must come about, and fails when it stops coming any nearer.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(3 * time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
