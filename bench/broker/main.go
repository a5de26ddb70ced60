// Command broker measures the cost of the broker: one brokered and audited get_datetime call, beside a raw NATS
// request and beside an unguarded MCP call of the same tool over streamable HTTP, all in one run and interleaved, so
// that the machine's mood hits all of them alike. Only ratios mean anything.
//
// Run it from the folder bench: go run ./broker
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

func main() {
	n := flag.Int("n", 4000, "calls of each kind")
	par := flag.Int("parallel", 16, "callers at once when measuring throughput")
	check := flag.Bool("check", false, "exit 1 when a limit does not hold")
	asJSON := flag.Bool("json", false, "print JSON")
	prof := flag.String("cpuprofile", "", "write a CPU profile of the brokered calls in process")
	only := flag.Bool("layers", false, "measure only what the layers cost")
	some := flag.String("kinds", "", "measure only the kinds whose name contains this text")
	child := flag.String("child", "", "internal: run one part of the TCP setups in a process of its own")
	flag.Parse()
	if *child != "" {
		if err := runChild(*child, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "broker:", *child+":", err)
			os.Exit(1)
		}
		return
	}
	if *prof != "" {
		if err := profile(*prof, *n, *only); err != nil {
			fmt.Fprintln(os.Stderr, "broker:", err)
			os.Exit(1)
		}
		return
	}
	rep, err := measureAll(*n, *par, *only, *some)
	if err != nil {
		fmt.Fprintln(os.Stderr, "broker:", err)
		os.Exit(1)
	}
	if *asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(rep)
	} else {
		rep.print()
	}
	if *check && !rep.holds() {
		os.Exit(1)
	}
}

// kind is one way of asking for the time.
type kind struct {
	name string
	call func(ctx context.Context) error
	pids []int // of its processes beside this one
}

// figures of one kind.
type figures struct {
	Name   string  `json:"name"`
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
	CPU    float64 `json:"cpu_us"` // processor time of a call in all processes
	PerSec float64 `json:"per_second"`
}

// report is one run.
type report struct {
	Calls int       `json:"calls"`
	Rows  []figures `json:"rows"`
	// Layers is what every layer costs beside the first form, Policy what the layers take without a bus.
	Layers []layered `json:"layers"`
	Policy []decided `json:"policy"`
}

// measureAll measures a brokered call beside an unbrokered one, and then the layers of the broker.
func measureAll(n, par int, only bool, some string) (rep report, err error) {
	ctx := context.Background()
	rep.Calls = n
	if !only {
		if rep, err = measure(ctx, n, par, some); err != nil || some != "" {
			return rep, err
		}
	}
	if rep.Policy, err = measurePolicy(n); err != nil {
		return rep, err
	}
	for _, tcp := range []bool{false, true} {
		w, err := openTown(ctx, tcp)
		if err != nil {
			return rep, err
		}
		rows, err := measureLayers(ctx, w, n)
		w.stop()
		if err != nil {
			return rep, fmt.Errorf("layers, %s: %w", w.where, err)
		}
		rep.Layers = append(rep.Layers, rows...)
	}
	return rep, nil
}

func measure(ctx context.Context, n, par int, some string) (report, error) {
	var kinds []kind
	for _, k := range []struct {
		name  string
		start func(name string) (kind, func(), error)
	}{
		{"raw request, in process", func(name string) (kind, func(), error) { return rawKind(name, false) }},
		{"brokered, in process", func(name string) (kind, func(), error) {
			return brokeredKind(ctx, name, "10s", false)
		}},
		{"MCP over HTTP, same process", func(name string) (kind, func(), error) { return mcpKind(ctx, name, false) }},
		{"raw request, TCP", func(name string) (kind, func(), error) { return rawKind(name, true) }},
		{"brokered, TCP", func(name string) (kind, func(), error) { return brokeredKind(ctx, name, "10s", true) }},
		{"brokered, TCP, sync always", func(name string) (kind, func(), error) {
			return brokeredKind(ctx, name, "always", true)
		}},
		{"MCP over HTTP, own process", func(name string) (kind, func(), error) { return mcpKind(ctx, name, true) }},
	} {
		if !strings.Contains(k.name, some) {
			continue
		}
		k, stop, err := k.start(k.name)
		if err != nil {
			return report{}, err
		}
		defer stop()
		kinds = append(kinds, k)
	}

	for _, k := range kinds { // warm up
		for range 200 {
			if err := k.call(ctx); err != nil {
				return report{}, fmt.Errorf("%s: %w", k.name, err)
			}
		}
	}
	rep := report{Calls: n}
	took, spent := make([][]time.Duration, len(kinds)), make([]time.Duration, len(kinds))
	const batch = 50 // short enough to interleave, long enough for caches to settle
	for done := 0; done < n; done += batch {
		for i, k := range kinds {
			before := processorTime(k.pids)
			for range batch {
				start := time.Now()
				if err := k.call(ctx); err != nil {
					return report{}, fmt.Errorf("%s: %w", k.name, err)
				}
				took[i] = append(took[i], time.Since(start))
			}
			spent[i] += processorTime(k.pids) - before
		}
	}
	for i, k := range kinds {
		rate, err := throughput(ctx, k, n, par)
		if err != nil {
			return report{}, fmt.Errorf("%s: %w", k.name, err)
		}
		slices.Sort(took[i])
		cpu := float64(spent[i].Microseconds()) / float64(len(took[i]))
		rep.Rows = append(rep.Rows, figures{k.name, micros(took[i], 0.50), micros(took[i], 0.99), cpu, rate})
	}
	return rep, nil
}

func micros(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1))].Nanoseconds()) / 1000
}

func throughput(ctx context.Context, k kind, n, par int) (float64, error) {
	var wg sync.WaitGroup
	errs := make(chan error, par)
	start := time.Now()
	for range par {
		wg.Go(func() {
			for range n / par {
				if err := k.call(ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
	}
	return float64(n/par*par) / time.Since(start).Seconds(), nil
}

// brokeredKind starts a whole system and returns the brokered, audited call on it. Over TCP the server, the broker and
// the tools are processes of their own, as they would be on a machine that takes the separation seriously.
func brokeredKind(ctx context.Context, name, syncMode string, tcp bool) (_ kind, _ func(), err error) {
	dir, err := os.MkdirTemp("", "conclave-bench-")
	if err != nil {
		return kind{}, nil, err
	}
	home := bus.Home{Data: dir + "/data", Config: dir + "/config"}
	b := &bus.Bus{Keys: home.Keys()}
	var pids []int
	stops := []func(){func() { _ = os.RemoveAll(dir) }}
	stop := func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if tcp {
		for _, part := range []string{"bus", "tools", "broker"} {
			c, err := start(part, dir, syncMode, b.URL)
			if err != nil {
				return kind{}, nil, err
			}
			b.URL, stops, pids = c.url, append(stops, c.stop), append(pids, c.cmd.Process.Pid)
		}
	} else {
		cfg, err := load(syncMode)
		if err != nil {
			return kind{}, nil, err
		}
		c, err := cfg.Start(ctx, home, nil, config.Actors...)
		if err != nil {
			return kind{}, nil, err
		}
		b, stops = c.Bus, append(stops, func() { _ = c.Stop(ctx) })
	}
	agent, err := b.Dial("operator")
	if err != nil {
		return kind{}, nil, err
	}
	stops = append(stops, agent.Close)
	out, err := actor.NewOut(agent)
	if err != nil {
		return kind{}, nil, err
	}
	ask, err := subjects.ToolRequestService.With("get_datetime")
	if err != nil {
		return kind{}, nil, err
	}
	return kind{name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		res, err := actor.Ask(ctx, out, ask, subjects.ToolRequest{
			CallID: actor.NewID(),
			Args:   json.RawMessage(`{"timezone":"Europe/Berlin"}`),
		})
		if err != nil {
			return err
		}
		if res.Error != nil {
			return res.Error
		}
		return sane(res.Result)
	}, pids}, stop, nil
}

func load(syncMode string) (config.Config, error) {
	cfg, err := config.Load("")
	if err != nil {
		return cfg, err
	}
	cfg.WebSearch.Mock = found
	return cfg, cfg.Apply(map[string]string{
		"system.listen": "127.0.0.1:0", "system.sync": syncMode,
		"web_search.provider": "mock",
	})
}

func sane(result string) error {
	if !strings.Contains(result, "Europe/Berlin") {
		return fmt.Errorf("odd result %q", result)
	}
	return nil
}

// rawKind is a request and its reply on a bare server, no accounts, no broker, no audit, no work: the least that NATS
// can do. Over TCP the server and the one who answers are processes of their own.
func rawKind(name string, tcp bool) (_ kind, _ func(), err error) {
	var stops []func()
	var pids []int
	stop := func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	var client *nats.Conn
	if tcp {
		url := ""
		for _, part := range []string{"raw-server", "raw-echo"} {
			c, err := start(part, url)
			if err != nil {
				return kind{}, nil, err
			}
			url, stops, pids = c.url, append(stops, c.stop), append(pids, c.cmd.Process.Pid)
		}
		if client, err = nats.Connect(url); err != nil {
			return kind{}, nil, err
		}
	} else {
		ns, err := bareServer()
		if err != nil {
			return kind{}, nil, err
		}
		stops = append(stops, ns.Shutdown)
		if _, err := echo(ns.ClientURL(), nats.InProcessServer(ns)); err != nil {
			return kind{}, nil, err
		}
		if client, err = nats.Connect(ns.ClientURL(), nats.InProcessServer(ns)); err != nil {
			return kind{}, nil, err
		}
	}
	stops = append(stops, client.Close)
	return kind{name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		m, err := client.RequestWithContext(ctx, "time", []byte(`{"timezone":"Europe/Berlin"}`))
		if err != nil {
			return err
		}
		return sane(string(m.Data))
	}, pids}, stop, nil
}

func bareServer() (*server.Server, error) {
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, err
	}
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("the bare server is not ready")
	}
	return ns, nil
}

func echo(url string, opts ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, err
	}
	reply := []byte("2026-01-02T03:04:05+01:00 (Friday, week 1, Europe/Berlin)")
	if _, err := nc.Subscribe("time", func(m *nats.Msg) { _ = m.Respond(reply) }); err != nil {
		return nil, err
	}
	return nc, nc.Flush()
}

type clockArgs struct {
	Timezone string `json:"timezone" jsonschema:"IANA time zone"`
}

// mcpServer is the same tool as an MCP server over streamable HTTP, with the official SDK and nothing in between.
func mcpServer() (url string, stop func(), err error) {
	clock := mcp.NewServer(&mcp.Implementation{Name: "clock", Version: "1"}, nil)
	zone, err := time.LoadLocation("Europe/Berlin") // loaded once, as our own tool does
	if err != nil {
		return "", nil, err
	}
	mcp.AddTool(clock, &mcp.Tool{Name: "get_datetime", Description: "tells the time"},
		func(_ context.Context, _ *mcp.CallToolRequest, a clockArgs) (*mcp.CallToolResult, any, error) {
			if a.Timezone != zone.String() {
				return nil, nil, errors.New("no such zone")
			}
			return &mcp.CallToolResult{
				Content: []mcp.Content{&mcp.TextContent{Text: time.Now().In(zone).Format(time.RFC3339) + " " +
					zone.String()}},
			}, nil, nil
		})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{
		Handler:           mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return clock }, nil),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { _ = srv.Serve(l) }()
	return "http://" + l.Addr().String(), func() { _ = srv.Close() }, nil
}

// mcpKind calls the MCP server, in this process or in one of its own.
func mcpKind(ctx context.Context, name string, apart bool) (kind, func(), error) {
	var pids []int
	open := mcpServer
	if apart {
		open = func() (string, func(), error) {
			c, err := start("mcp")
			if err != nil {
				return "", nil, err
			}
			pids = append(pids, c.cmd.Process.Pid)
			return c.url, c.stop, nil
		}
	}
	url, stop, err := open()
	if err != nil {
		return kind{}, nil, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		stop()
		return kind{}, nil, err
	}
	call := func(ctx context.Context) error {
		r, err := session.CallTool(ctx,
			&mcp.CallToolParams{Name: "get_datetime", Arguments: clockArgs{"Europe/Berlin"}})
		if err != nil {
			return err
		}
		return sane(r.Content[0].(*mcp.TextContent).Text)
	}
	end := func() {
		_ = session.Close()
		stop()
	}
	return kind{name, call, pids}, end, nil
}

// row returns the figures of a kind; they are 0 when it was not measured.
func (r report) row(name string) figures {
	if i := slices.IndexFunc(r.Rows, func(f figures) bool { return f.Name == name }); i >= 0 {
		return r.Rows[i]
	}
	return figures{}
}

// ratios are the promises: brokered over TCP to raw over TCP, and brokered to unguarded MCP in both settings.
func (r report) ratios() (toRaw, toMCP, toMCPIn float64) {
	tcp := r.row("brokered, TCP").P50
	return tcp / r.row("raw request, TCP").P50, tcp / r.row("MCP over HTTP, own process").P50,
		r.row("brokered, in process").P50 / r.row("MCP over HTTP, same process").P50
}

// holds reports whether the promised limits held in this run.
func (r report) holds() bool {
	for _, l := range r.Layers {
		if l.Ratio > mostRatio {
			return false
		}
	}
	if len(r.Rows) == 0 {
		return true
	}
	raw, mcp, mcpIn := r.ratios()
	return raw <= 6 && mcp < 1 && mcpIn < 1
}

func (r report) print() {
	if len(r.Rows) > 0 {
		r.printDoor()
	}
	if len(r.Layers) == 0 {
		return
	}
	fmt.Printf("%d calls of each kind in blocks of %d, the two forms of the broker taking turns.\n\n", r.Calls, block)
	fmt.Println("| call | first form p50 | p99 | all layers p50 | p99 | first call of a question | p50 ratio |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, l := range r.Layers {
		fmt.Printf("| %s, %s | %.0f us | %.0f us | %.0f us | %.0f us | %.0f us | %.2f |\n", l.Call, l.Where, l.FirstP50,
			l.FirstP99, l.FullP50, l.FullP99, l.NewP50, l.Ratio)
	}
	fmt.Printf("\naim: at most %.1f\n\nthe layers alone, no bus:", mostRatio)
	for _, d := range r.Policy {
		fmt.Printf(" %s %.1f us;", d.Call, d.Micros)
	}
	fmt.Println()
}

func (r report) printDoor() {
	raw := r.row("raw request, TCP")
	fmt.Printf("%d calls of each kind, one run, interleaved. Ratios to the raw request over TCP.\n\n", r.Calls)
	fmt.Println("| call | p50 | p99 | p50 ratio | processor time | calls per second |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, f := range r.Rows {
		fmt.Printf("| %s | %.0f us | %.0f us | %.1f | %.0f us | %.0f |\n", f.Name, f.P50, f.P99, f.P50/raw.P50, f.CPU,
			f.PerSec)
	}
	if len(r.Layers) == 0 {
		return // not every kind was measured
	}
	toRaw, toMCP, toMCPIn := r.ratios()
	fmt.Printf("\nbrokered to raw, TCP: %.2f (aim: at most 6); brokered to unguarded MCP: %.2f over TCP, %.2f in "+
		"process (aim: below 1)\n\n", toRaw, toMCP, toMCPIn)
}
