// Command generators measures how the answers per second grow with the number of generator processes: conclave up
// without its generator's share, 1, 2 and 4 processes of conclave actor generator, each with a bound of questions at
// once, and a scripted model server with a fixed number of slots of fixed length. Every session asks again as soon as
// it is answered.
//
// Run it from the folder bench: go run ./generators
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/bench/internal/instance"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

var (
	program  = flag.String("conclave", "", "the program; empty: built from the module above this folder")
	sessions = flag.Int("sessions", 64, "sessions at once")
	each     = flag.Duration("each", 500*time.Millisecond, "how long a chat takes on the model server")
	slots    = flag.Int("slots", 12, "chats that the model server runs at once")
	share    = flag.Int("concurrency", 4, "questions that one generator process answers at once")
	length   = flag.Duration("for", 15*time.Second, "how long to measure each number of processes")
	asJSON   = flag.Bool("json", false, "print JSON")
)

const modelName = "assistant"

// row is the result for one number of processes.
type row struct {
	Processes int     `json:"processes"`
	Answers   float64 `json:"answers_per_s"`
	Bound     float64 `json:"bound_per_s"` // by the processes or the slots of the model server, whichever is lower
	Ratio     float64 `json:"ratio"`       // of Answers to those of one process
}

func main() {
	flag.Parse()
	rows, err := measureAll(context.Background())
	if err == nil && *asJSON {
		err = json.NewEncoder(os.Stdout).Encode(rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generators:", err)
		os.Exit(1)
	}
	if *asJSON {
		return
	}
	for _, r := range rows {
		fmt.Printf("%d processes of %d at once, %d slots of %s: %.1f answers/s, %.2f of one process, bound %.1f\n",
			r.Processes, *share, *slots, *each, r.Answers, r.Ratio, r.Bound)
	}
}

func measureAll(ctx context.Context) (rows []row, err error) {
	if *program == "" {
		built, remove, err := instance.Build(ctx)
		if err != nil {
			return nil, err
		}
		defer remove()
		*program = built
	}
	script := scriptserver.Script{
		modelName: {{Always: true, Reply: scriptserver.Reply{Content: "Paris is the capital of France."}}},
	}
	models := scriptserver.Start(script, scriptserver.WithSlots(*slots, *each, 4**sessions))
	defer models.Close()
	for _, n := range []int{1, 2, 4} {
		r := row{Processes: n, Bound: float64(min(n**share, *slots)) / each.Seconds()}
		if r.Answers, err = measure(ctx, models.URL, n); err != nil {
			return nil, fmt.Errorf("%d processes: %w", n, err)
		}
		rows = append(rows, r)
		rows[len(rows)-1].Ratio = r.Answers / rows[0].Answers
	}
	return rows, nil
}

// measure starts the system with one generator in its process and n-1 more processes, and returns the answers per
// second.
func measure(ctx context.Context, address string, n int) (float64, error) {
	i, err := instance.Create(*program, map[string]string{
		"system.yaml":    "broker: {question_rate: 1000}\n",
		"generator.yaml": fmt.Sprintf("concurrency: %d\n", *share),
		"critic.yaml":    "enabled: false\n",
		"memory.yaml":    "enabled: false\n",
		"models.yaml": fmt.Sprintf("roles: {assistant: %s}\nollama: {url: \"%s\", slots: %d, ahead: 2}\n", modelName,
			address, *slots),
	})
	if err != nil {
		return 0, err
	}
	defer i.Remove()
	system, err := i.Start(ctx)
	if err != nil {
		return 0, err
	}
	defer system.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range n - 1 {
		stop, err := startGenerator(ctx, i)
		if err != nil {
			return 0, err
		}
		defer stop()
	}
	return ask(ctx, i.DataDir())
}

// startGenerator starts a process with a generator and waits until it is ready. stop ends it.
func startGenerator(ctx context.Context, i *instance.Instance) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := i.Command(ctx, "actor", "generator", "--json")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	stop = func() { cancel(); _ = cmd.Wait() }
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		stop()
		return nil, fmt.Errorf("starting a generator: %w", err)
	}
	return stop, nil
}

// ask has every session ask again as soon as it is answered, and returns the answers per second. The first three
// seconds do not count.
func ask(ctx context.Context, data string) (float64, error) {
	home := bus.Home{Data: data, Config: filepath.Join(data, "none")}
	at, err := home.ReadRunning()
	if err != nil {
		return 0, err
	}
	nc, err := home.Connect(at.URL, nil).Dial("user")
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return 0, err
	}
	var answers, wrong atomic.Int64
	var waiting sync.Map // query -> chan struct{}
	if _, err := nc.Subscribe("response.generation", func(m *nats.Msg) {
		var r subjects.Response
		if json.Unmarshal(m.Data, &r) != nil {
			return
		}
		if r.Error != nil || !strings.Contains(r.Answer, "Paris") {
			wrong.Add(1)
		}
		if c, ok := waiting.LoadAndDelete(r.QueryID); ok {
			answers.Add(1)
			close(c.(chan struct{}))
		}
	}); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, *sessions)
	for s := range *sessions {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				id, done := actor.NewID(), make(chan struct{})
				waiting.Store(id, done)
				if err := actor.Emit(ctx, out, subjects.QueryReceived, subjects.Query{
					SessionID: fmt.Sprintf("s%d", s),
					QueryID:   id, Query: "What is the capital of France?",
				}); err != nil {
					failed <- err
					return
				}
				select {
				case <-done:
				case <-ctx.Done():
				}
			}
		}()
	}
	var before int64
	var began time.Time
	for _, wait := range []time.Duration{3 * time.Second, *length} {
		before, began = answers.Load(), time.Now()
		select {
		case err := <-failed:
			return 0, err
		case <-time.After(wait):
		}
	}
	if n := wrong.Load(); n > 0 {
		return 0, fmt.Errorf("%d wrong answers", n)
	}
	return float64(answers.Load()-before) / time.Since(began).Seconds(), nil
}
