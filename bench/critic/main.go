// Command critic measures what a critic costs those who wait for answers: the same questions are asked in turn of a
// system without a critic, of one whose critic judges at once, and of one whose critic's model hangs for ever. All
// three ask a server with one slot, as one graphics card is. What counts is the ratio of the waits, from one run.
//
// Run it from the folder bench: go run ./critic
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

var (
	n      = flag.Int("n", 200, "questions to each system")
	each   = flag.Duration("each", 100*time.Millisecond, "how long the model takes for each answer")
	check  = flag.Bool("check", false, "exit 1 when the limit does not hold")
	asJSON = flag.Bool("json", false, "print JSON")
)

// most is the limit: a stalled critic may change the wait for an answer by so much.
const most = 1.05

func main() {
	flag.Parse()
	fail(run())
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "critic:", err)
		os.Exit(1)
	}
}

// row is the result of one system.
type row struct {
	System string  `json:"system"`
	P50    float64 `json:"p50_ms"`
	P95    float64 `json:"p95_ms"`
	Ratio  float64 `json:"ratio"` // of the median to that without a critic
	Ratio9 float64 `json:"ratio_p95"`
	Grades int64   `json:"grades"`
	Begun  int     `json:"model_calls"`
}

func run() error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	good := scriptserver.Reply{Content: "Feedback: It is right. [RESULT] 5"}
	hangs := scriptserver.Reply{Quirks: scriptserver.Quirks{Hang: true}}
	var systems []*system
	for _, h := range []struct {
		name   string
		critic bool
		says   scriptserver.Reply
	}{{"no critic", false, good}, {"critic", true, good}, {"critic stalled", true, hangs}} {
		one, err := open(h.name, h.critic, h.says, log)
		if err != nil {
			return err
		}
		defer one.close()
		systems = append(systems, one)
	}
	for i := range *n + 5 { // the first few find the way
		for k := range systems {
			h := systems[(i+k)%len(systems)] // rotates which system goes first
			took, err := h.ask(i)
			if err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			if i >= 5 {
				h.took = append(h.took, took)
			}
		}
	}
	var rows []row
	for _, h := range systems {
		slices.Sort(h.took)
		r := row{
			System: h.name, P50: ms(h.took[len(h.took)/2]), P95: ms(h.took[len(h.took)*95/100]),
			Grades: h.grades.Load(), Begun: h.model.Stats().Started,
		}
		r.Ratio, r.Ratio9 = r.P50/ms(systems[0].took[len(h.took)/2]), r.P95/ms(systems[0].took[len(h.took)*95/100])
		rows = append(rows, r)
	}
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(rows)
	}
	for _, r := range rows {
		fmt.Printf("%-15s p50 %7.2f ms (%.3f)  p95 %7.2f ms (%.3f)  %d grades, %d model calls begun\n", r.System, r.P50,
			r.Ratio, r.P95, r.Ratio9, r.Grades, r.Begun)
	}
	if last := rows[len(rows)-1]; *check && last.Ratio > most {
		return fmt.Errorf("a stalled critic changes the wait by a factor of %.3f, and %.2f is the most", last.Ratio,
			most)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// system is a whole Conclave with a model server of its own.
type system struct {
	name   string
	dir    string
	model  *scriptserver.Server
	run    *config.Instance
	nc     *nats.Conn
	out    actor.Out
	took   []time.Duration
	grades atomic.Int64

	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func open(name string, critic bool, says scriptserver.Reply, log *slog.Logger) (*system, error) {
	h := &system{name: name, waiting: map[string]chan struct{}{}}
	var err error
	if h.dir, err = os.MkdirTemp("", "conclave-critic"); err != nil {
		return nil, err
	}
	script := scriptserver.Script{
		"assistant": {{Always: true, Reply: scriptserver.Reply{Content: "Paris is the capital of France."}}},
		"judge":     {{Always: true, Reply: says}},
		"tools":     {{Always: true, Reply: scriptserver.Reply{Content: `{"tools": []}`}}},
	}
	h.model = scriptserver.Start(script, scriptserver.WithSlots(1, *each, 1000))
	home := bus.Home{Data: filepath.Join(h.dir, "data"), Config: filepath.Join(h.dir, "config")}
	if err := os.MkdirAll(home.Config, 0o700); err != nil {
		return nil, err
	}
	for file, text := range map[string]string{
		"system.yaml": "listen: 127.0.0.1:0\ngateway: {listen: \"127.0.0.1:0\"}\n",
		// the worst case: the judge is let in at once, and has to be cut off each time
		"models.yaml": "roles: {assistant: assistant, critic: judge, tools: tools}\nhints: {simple: tools}\nollama: " +
			"{url: \"" + h.model.URL + "\", slots: 1}\n",
		// what else asks the model is not what is measured
		"memory.yaml": "model: false\n",
		"critic.yaml": fmt.Sprintf("enabled: %t\n", critic),
	} {
		if err := os.WriteFile(filepath.Join(home.Config, file), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cfg, err := config.Load(home.Config)
	if err != nil {
		return nil, err
	}
	if h.run, err = cfg.Start(context.Background(), home, log, config.Actors...); err != nil {
		return nil, err
	}
	if h.nc, err = h.run.Bus.Dial("user"); err != nil {
		return nil, err
	}
	if h.out, err = actor.NewOut(h.nc); err != nil {
		return nil, err
	}
	if _, err = h.nc.Subscribe("response.generation", h.answered); err != nil {
		return nil, err
	}
	if _, err = h.nc.Subscribe("critique.result", func(*nats.Msg) { h.grades.Add(1) }); err != nil {
		return nil, err
	}
	return h, h.nc.Flush()
}

func (h *system) answered(m *nats.Msg) {
	var r subjects.Response
	if json.Unmarshal(m.Data, &r) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.waiting[r.QueryID]; c != nil {
		close(c)
		delete(h.waiting, r.QueryID)
	}
}

// ask asks one question, each in a session of its own, and waits for its answer.
func (h *system) ask(i int) (time.Duration, error) {
	id := fmt.Sprintf("q%d", i)
	done := make(chan struct{})
	h.mu.Lock()
	h.waiting[id] = done
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	begun := time.Now()
	if err := actor.Emit(ctx, h.out.WithIDs("s"+id, id), subjects.QueryReceived,
		subjects.Query{SessionID: "s" + id, QueryID: id, Query: "What is the capital of France?"}); err != nil {
		return 0, err
	}
	select {
	case <-done:
		return time.Since(begun), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("no answer to %s: %w", id, ctx.Err())
	}
}

func (h *system) close() {
	if h.nc != nil {
		h.nc.Close()
	}
	if h.run != nil {
		_ = h.run.Stop(context.Background())
	}
	if h.model != nil {
		h.model.Close()
	}
	_ = os.RemoveAll(h.dir)
}
