package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Every contender is a process of its own: what it holds in memory is its own, and no collector but its own stops it. They
// stand loaded side by side and are asked in turns.

// job is what a child is to be.
type job struct {
	Part   string `json:"part"`   // flat, staged, fill, start, ingest
	Engine string `json:"engine"` // which contender
	Rows   int    `json:"rows"`
	Seed   uint64 `json:"seed"`
	Asks   int    `json:"asks"`  // how many queries there are
	Dir    string `json:"dir"`   // a folder of its own, or the one of the store
	Count  int    `json:"count"` // ingest: how many are written
	Rate   int    `json:"rate"`  // ingest: how many in a second; 0 = as fast as it goes
}

// loaded is what a child says when it is ready to be asked.
type loaded struct {
	Took time.Duration `json:"took"` // without the making of the data
}

// turn asks a child some queries: from the first to before the end. In a turn of none it says what it holds.
type turn struct {
	First int `json:"first"`
	End   int `json:"end"`
}

// taken is what they took and what was found.
type taken struct {
	Took  []time.Duration `json:"took"`
	Found [][]int         `json:"found"`
}

// left is what a child says at its end.
type left struct {
	Resident int64  `json:"resident"` // bytes, after the last query
	Peak     int64  `json:"peak"`     // the most there was
	About    string `json:"about"`
}

// engine is a contender in its process.
type engine interface {
	// load takes every row of w and tells how long that took without the making of them.
	load(w *world) (time.Duration, error)
	// ask answers query j: rows, best first.
	ask(j int, q []float32) ([]int, error)
	// about is what a reader should know of it, or nothing.
	about() string
	close() error
}

// child is the parent's end of one.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func start(j job) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, "-child", string(text))}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(bufio.NewReader(out))
	alive.Lock()
	defer alive.Unlock()
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	alive.all[c] = true
	return c, nil
}

// alive are the children that were started and not stopped.
var alive = struct {
	sync.Mutex
	all map[*child]bool
}{all: map[*child]bool{}}

// onInterrupt ends the children and cleans up when the user has had enough: a store of a million rows is 10 GB.
func onInterrupt(clean func()) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		alive.Lock() // and nobody starts another one
		for c := range alive.all {
			_ = c.cmd.Process.Kill()
			_, _ = c.cmd.Process.Wait()
		}
		clean()
		os.Exit(1)
	}()
}

// hear waits for the next word of the child.
func hear[T any](c *child) (T, error) {
	var v T
	err := c.out.Decode(&v)
	if errors.Is(err, io.EOF) {
		err = errors.New("its process ended early; what it said is above")
	}
	return v, err
}

// tell gives the child a turn.
func (c *child) tell(t turn) error { return json.NewEncoder(c.in).Encode(t) }

// ask has the child answer some queries.
func (c *child) ask(t turn) (taken, error) {
	if err := c.tell(t); err != nil {
		return taken{}, err
	}
	return hear[taken](c)
}

// stop ends the child, which also ends when its parent does and nothing is left to do.
func (c *child) stop() error {
	err := errors.Join(c.in.Close(), c.cmd.Wait())
	alive.Lock()
	defer alive.Unlock()
	delete(alive.all, c)
	return err
}

// once runs a child that says one thing and ends.
func once[T any](j job) (T, error) {
	c, err := start(j)
	if err != nil {
		var none T
		return none, err
	}
	v, err := hear[T](c)
	return v, errors.Join(err, c.stop())
}

// runChild is the child's end.
func runChild(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	say := json.NewEncoder(os.Stdout).Encode
	w := newWorld(j.Rows, j.Seed)
	switch j.Part {
	case "flat":
		return serve(j, w, say, flatEngines[j.Engine])
	case "staged":
		return serve(j, w, say, stagedEngines[j.Engine])
	case "fill":
		return saying(say)(fill(j, w))
	case "start":
		return saying(say)(startUp(j, w))
	case "ingest":
		return saying(say)(ingest(j, w))
	}
	return fmt.Errorf("no part %q", j.Part)
}

// saying says a value unless there is an error.
func saying(say func(any) error) func(v any, err error) error {
	return func(v any, err error) error {
		if err != nil {
			return err
		}
		return say(v)
	}
}

// serve is a contender until its standard input ends.
func serve(j job, w *world, say func(any) error, open func(job) (engine, error)) (err error) {
	if open == nil {
		return fmt.Errorf("no engine %q", j.Engine)
	}
	e, err := open(j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	took, err := e.load(w)
	if err != nil {
		return fmt.Errorf("loading: %w", err)
	}
	debug.FreeOSMemory() // what making the data took is not the contender's
	queries := w.queries(j.Asks)
	if err := say(loaded{took}); err != nil {
		return err
	}
	in := json.NewDecoder(os.Stdin)
	for {
		var t turn
		if err := in.Decode(&t); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if t.First == t.End {
			if err := sayLeft(say, e.about()); err != nil {
				return err
			}
			continue
		}
		var out taken
		for j := t.First; j < t.End; j++ {
			began := time.Now()
			found, err := e.ask(j, queries[j])
			if err != nil {
				return fmt.Errorf("query %d: %w", j, err)
			}
			out.Took = append(out.Took, time.Since(began))
			out.Found = append(out.Found, found)
		}
		if err := say(out); err != nil {
			return err
		}
	}
}

func sayLeft(say func(any) error, about string) error {
	runtime.GC()
	debug.FreeOSMemory()
	resident, peak, err := memory()
	if err != nil {
		return err
	}
	return say(left{resident, peak, about})
}

// memory is what this process holds and the most that it held, as the kernel counts.
func memory() (resident, peak int64, err error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0, fmt.Errorf("resident memory is read from Linux's /proc: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		var into *int64
		switch key {
		case "VmRSS":
			into = &resident
		case "VmHWM":
			into = &peak
		default:
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s in /proc/self/status: %w", key, err)
		}
		*into = kilobytes << 10
	}
	return resident, peak, nil
}

// watch adds up what some work takes.
type watch time.Duration

func (w *watch) run(f func() error) error {
	began := time.Now()
	err := f()
	*w += watch(time.Since(began))
	return err
}
