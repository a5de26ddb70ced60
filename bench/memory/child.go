package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Every engine is a process of its own, so that its memory can be measured and no other garbage collector interrupts
// it.

// job is the task of a child process.
type job struct {
	Engine  string `json:"engine"` // "" = fill the store in Dir
	Rows    int    `json:"rows"`
	Seed    uint64 `json:"seed"`
	Queries int    `json:"queries"`
	Dir     string `json:"dir"` // of the engine, or of the filled store
}

// loaded is the first message of an engine.
type loaded struct {
	Took time.Duration `json:"took"` // without computing the data
}

// request asks an engine for the queries from First to before End; for the state of the engine when there are none.
type request struct {
	First      int  `json:"first"`
	End        int  `json:"end"`
	Exhaustive bool `json:"exhaustive"`
}

// response has the result of each query.
type response struct {
	Took  []time.Duration `json:"took"`
	Found [][]int         `json:"found"`
}

// state is an engine after the last query.
type state struct {
	Resident    int64  `json:"resident"` // bytes
	Description string `json:"description"`
}

// engine is a search engine in its process.
type engine interface {
	// load adds every entry and returns how long that took without computing the data.
	load(d *dataset) (time.Duration, error)
	// search returns the entries for query j, best first, at most top.
	search(j int, v []float32) ([]int, error)
	// describe returns a remark for the report, or "".
	describe() string
	close() error
}

// exhaustive is an engine that can score every entry.
type exhaustive interface {
	findExhaustive(j int, v []float32) ([]int, error)
}

// child is the parent's end of a child process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startChild starts a child process, which is killed when ctx ends.
func startChild(ctx context.Context, j job) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, "-child", string(text))}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(bufio.NewReader(out))
	return c, c.cmd.Start()
}

// receive waits for the next message of the child.
func receive[T any](c *child) (T, error) {
	var v T
	err := c.out.Decode(&v)
	if errors.Is(err, io.EOF) {
		err = errors.New("its process ended early; its messages are above")
	}
	return v, err
}

func call[T any](c *child, r request) (T, error) {
	if err := json.NewEncoder(c.in).Encode(r); err != nil {
		var none T
		return none, err
	}
	return receive[T](c)
}

// stop ends the child, which also ends when its parent does.
func (c *child) stop() error {
	return errors.Join(c.in.Close(), c.cmd.Wait())
}

// runFill fills a store in a child process, whose memory is returned afterwards.
func runFill(ctx context.Context, j job) (filled, error) {
	c, err := startChild(ctx, j)
	if err != nil {
		return filled{}, err
	}
	f, err := receive[filled](c)
	return f, errors.Join(err, c.stop())
}

// runChild is the child process.
func runChild(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	d := newDataset(j.Rows, j.Seed)
	if j.Engine == "" {
		f, err := fillStore(context.Background(), filepath.Join(j.Dir, storeFile), d, d.addVectors)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	}
	return serveEngine(j, d)
}

// serveEngine answers requests until its standard input ends.
func serveEngine(j job, d *dataset) (err error) {
	open := engines[j.Engine].open
	if open == nil {
		return fmt.Errorf("there is no engine %q", j.Engine)
	}
	e, err := open(j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	took, err := e.load(d)
	if err != nil {
		return fmt.Errorf("loading: %w", err)
	}
	debug.FreeOSMemory() // memory for computing the data is not the engine's
	queries := make([][]float32, j.Queries)
	for i := range queries {
		queries[i] = d.queryVector(i)
	}
	send := json.NewEncoder(os.Stdout).Encode
	if err := send(loaded{took}); err != nil {
		return err
	}
	in := json.NewDecoder(os.Stdin)
	for {
		var r request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var out any
		if r.First == r.End {
			out, err = measureState(e)
		} else {
			out, err = searchAll(e, r, queries)
		}
		if err == nil {
			err = send(out)
		}
		if err != nil {
			return err
		}
	}
}

func searchAll(e engine, r request, queries [][]float32) (response, error) {
	search := e.search
	if r.Exhaustive {
		search = e.(exhaustive).findExhaustive
	}
	var out response
	for j := r.First; j < r.End; j++ {
		began := time.Now()
		found, err := search(j, queries[j])
		if err != nil {
			return out, fmt.Errorf("query %d: %w", j, err)
		}
		out.Took, out.Found = append(out.Took, time.Since(began)), append(out.Found, found)
	}
	return out, nil
}

func measureState(e engine) (state, error) {
	runtime.GC()
	debug.FreeOSMemory()
	resident, err := residentMemory(os.Getpid())
	return state{resident, e.describe()}, err
}

// residentMemory returns the resident bytes of a process, as the kernel counts them.
func residentMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("resident memory is read from Linux's /proc: %w", err)
	}
	_, line, _ := strings.Cut(string(text), "VmRSS:")
	line, _, _ = strings.Cut(line, "kB")
	kilobytes, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("VmRSS in /proc: %w", err)
	}
	return kilobytes << 10, nil
}

// stopwatch adds up the time of some work.
type stopwatch time.Duration

func (s *stopwatch) run(f func() error) error {
	began := time.Now()
	err := f()
	*s += stopwatch(time.Since(began))
	return err
}
