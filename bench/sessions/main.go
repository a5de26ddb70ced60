// Command sessions measures how much of a model server's capacity reaches the people who ask: many sessions at once,
// each asking again as soon as it is answered, through the whole system (bus, router, generator, model actor, audit),
// against a scripted server with a few slots of fixed length; beside it, the same server asked directly by as many
// clients. It also tells what an idle session costs in memory.
//
// Run it from the folder bench: go run ./sessions
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

var (
	sessions = flag.Int("sessions", 200, "sessions at once")
	slots    = flag.Int("slots", 8, "chats the model server runs at once")
	each     = flag.Duration("each", 50*time.Millisecond, "how long each takes")
	length   = flag.Duration("for", 10*time.Second, "how long to measure")
	check    = flag.Bool("check", false, "exit 1 when a limit does not hold")
	idle     = flag.Duration("idle", 30*time.Second, "how long nobody asks before memory is measured: what the store "+
		"keeps in memory for readers is gone by then")
	asJSON = flag.Bool("json", false, "print JSON")
	child  = flag.Bool("child", false, "internal: be the model server")
)

// The limits.
const (
	leastShare = 0.9
	mostIdle   = 64 << 10
)

func main() {
	flag.Parse()
	if *child {
		fail(serve())
		return
	}
	var rows []row
	for _, sync := range []string{"10s", "always"} {
		r, err := measure(sync)
		fail(err)
		rows = append(rows, r)
	}
	if *asJSON {
		fail(json.NewEncoder(os.Stdout).Encode(rows))
	}
	holds := true
	for _, r := range rows {
		holds = holds && r.Share >= leastShare && r.IdleBytes <= mostIdle
		if !*asJSON {
			fmt.Printf("sync %s: %d sessions, %d slots of %s: %.1f answers/s of %.1f/s that the server alone gives "+
				"(%.1f %%), %.1f KiB per idle session, %s after the last question\n",
				r.Sync, *sessions, *slots, *each, r.Through, r.Alone, 100*r.Share, float64(r.IdleBytes)/1024, *idle)
		}
	}
	if *check && !holds {
		os.Exit(1)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "sessions:", err)
		os.Exit(1)
	}
}

// row is one run.
type row struct {
	Sync      string  `json:"sync"`
	Alone     float64 `json:"alone_per_s"`
	Through   float64 `json:"through_per_s"`
	Share     float64 `json:"share"`
	IdleBytes int64   `json:"idle_bytes_per_session"`
}

const modelName = "assistant"

// serve is the model server, in a process of its own until its standard input closes.
func serve() error {
	script := scriptserver.Script{
		modelName: {{Always: true, Reply: scriptserver.Reply{Content: "Paris is the capital of France."}}},
	}
	s := scriptserver.Start(script, scriptserver.WithSlots(*slots, *each, 4**sessions))
	defer s.Close()
	fmt.Println(s.URL)
	_, err := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, s.Err())
}

func startChild() (address string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "-child", "-slots", fmt.Sprint(*slots), "-each", each.String(), "-sessions",
		fmt.Sprint(*sessions))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, fmt.Errorf("starting the model server: %w", err)
	}
	return strings.TrimSpace(line), func() { in.Close(); cmd.Wait() }, nil
}

func measure(sync string) (row, error) {
	address, stop, err := startChild()
	if err != nil {
		return row{}, err
	}
	defer stop()
	r := row{Sync: sync}
	if r.Alone, err = alone(address); err != nil {
		return r, err
	}
	if err := r.through(address); err != nil {
		return r, err
	}
	r.Share = r.Through / r.Alone
	return r, nil
}

// crowd runs work in every session until the time is over, and returns how often it was done per second. The first
// second, in which everybody starts, does not count.
func crowd(work func(ctx context.Context, session int) error) (float64, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var done atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, *sessions)
	for i := range *sessions {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := work(ctx, i); err != nil {
					if ctx.Err() == nil {
						failed <- err
					}
					return
				}
				done.Add(1)
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	for _, wait := range []time.Duration{time.Second, *length} {
		before, start := done.Load(), time.Now()
		select {
		case err := <-failed:
			return 0, err
		case <-time.After(wait):
		}
		if wait == *length {
			return float64(done.Load()-before) / time.Since(start).Seconds(), nil
		}
	}
	return 0, nil
}

// alone asks the server directly.
func alone(address string) (float64, error) {
	b, err := ollama.New(ollama.Config{URL: address})
	if err != nil {
		return 0, err
	}
	return crowd(func(ctx context.Context, _ int) error {
		r := model.Request{
			Model:    modelName,
			Messages: []model.Message{{Role: model.User, Content: "What is the capital of France?"}},
			Options:  model.Options{Window: 32768, Predict: 100},
		}
		for _, err := range b.Chat(ctx, r) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// through asks through the whole system.
func (r *row) through(address string) error {
	dir, err := os.MkdirTemp("", "conclave-sessions")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := settings(filepath.Join(dir, "config"), address, r.Sync); err != nil {
		return err
	}
	cfg, err := config.Load(filepath.Join(dir, "config"))
	if err != nil {
		return err
	}
	home := bus.Home{Data: filepath.Join(dir, "data"), Config: filepath.Join(dir, "config")}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	system, err := cfg.Start(context.Background(), home, log, config.Actors...)
	if err != nil {
		return err
	}
	defer system.Stop(context.Background())
	people, err := newPeople(system.Bus)
	if err != nil {
		return err
	}
	defer people.nc.Close()
	if err := people.ask(context.Background(), "warm", 0); err != nil {
		return err
	}
	before := heap()
	n := make([]int, *sessions)
	r.Through, err = crowd(func(ctx context.Context, i int) error {
		n[i]++
		return people.ask(ctx, fmt.Sprintf("s%d", i), n[i])
	})
	if err != nil {
		return err
	}
	// Those that were still asking are answered before the system is called idle.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range *sessions {
		if err := people.ask(ctx, fmt.Sprintf("s%d", i), 1_000_000); err != nil {
			return err
		}
	}
	time.Sleep(*idle)
	r.IdleBytes = max(0, heap()-before) / int64(*sessions)
	return nil
}

// settings are the shipped ones with the model server's address, its slots and ports of their own.
func settings(dir, address, sync string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"system.yaml": fmt.Sprintf("listen: 127.0.0.1:0\nsync: %s\ngateway: {listen: \"127.0.0.1:0\"}\n", sync),
		"models.yaml": fmt.Sprintf("roles: {assistant: %s}\nollama: {url: \"%s\", slots: %d, ahead: 2}\n", modelName,
			address, *slots),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// heap is what is in use when the rubbish is gone.
func heap() int64 {
	var m runtime.MemStats
	debug.FreeOSMemory()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// people ask as the user, over TCP as the command line would.
type people struct {
	nc  *nats.Conn
	out actor.Out

	mu      sync.Mutex
	waiting map[string]chan subjects.Response
}

func newPeople(b *bus.Bus) (*people, error) {
	nc, err := b.Dial("user")
	if err != nil {
		return nil, err
	}
	p := &people{nc: nc, waiting: map[string]chan subjects.Response{}}
	if p.out, err = actor.NewOut(nc); err != nil {
		return nil, err
	}
	_, err = nc.Subscribe("response.generation", func(m *nats.Msg) {
		var r subjects.Response
		if json.Unmarshal(m.Data, &r) != nil {
			return
		}
		p.mu.Lock()
		c := p.waiting[r.QueryID]
		delete(p.waiting, r.QueryID)
		p.mu.Unlock()
		if c != nil {
			c <- r
		}
	})
	if err != nil {
		return nil, err
	}
	return p, nc.Flush()
}

// ask asks one question and waits for its answer.
func (p *people) ask(ctx context.Context, session string, n int) error {
	id := fmt.Sprintf("%s-%d-%s", session, n, actor.NewID()[:8])
	c := make(chan subjects.Response, 1)
	p.mu.Lock()
	p.waiting[id] = c
	p.mu.Unlock()
	if err := actor.Emit(ctx, p.out, subjects.QueryReceived, subjects.Query{
		SessionID: session, QueryID: id,
		Query: "What is the capital of France?",
	}); err != nil {
		return err
	}
	select {
	case r := <-c:
		if r.Error != nil || !strings.Contains(r.Answer, "Paris") {
			return fmt.Errorf("the answer is %q, %v", r.Answer, r.Error)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
