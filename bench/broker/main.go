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
	name  string
	call  func(ctx context.Context) error
	apart []*child // its processes beside this one
}

// figures of one kind.
type figures struct {
	Name        string  `json:"name"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	CPU         float64 `json:"cpu_us"` // processor time of a call in all processes
	PerSec      float64 `json:"per_second"`
	Allocations float64 `json:"allocations"`        // of a call in all processes
	Broker      float64 `json:"broker_allocations"` // in the process of the broker; 0 = it has none of its own
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

// startable is a kind that is not started yet.
type startable struct {
	name  string
	start func(name string) (kind, func(), error)
}

// allKinds lists what is measured: the yardsticks, and each form of the system beside the empty broker in it.
func allKinds(ctx context.Context) []startable {
	out := []startable{
		{rawHere, func(name string) (kind, func(), error) { return rawKind(name, false) }},
		{rawApart, func(name string) (kind, func(), error) { return rawKind(name, true) }},
		{mcpHere, func(name string) (kind, func(), error) { return mcpKind(ctx, name, false) }},
		{mcpApart, func(name string) (kind, func(), error) { return mcpKind(ctx, name, true) }},
	}
	for _, sync := range syncModes {
		for _, f := range forms {
			for _, empty := range []bool{false, true} {
				k := callKind{f, sync, empty}
				out = append(out, startable{k.name(), func(name string) (kind, func(), error) {
					return k.start(ctx, name)
				}})
			}
		}
	}
	return out
}

// Names of the yardsticks.
const (
	rawHere  = "raw request, in process"
	rawApart = "raw request, TCP"
	mcpHere  = "unguarded MCP over HTTP, same process"
	mcpApart = "unguarded MCP over HTTP, own process"
)

func measure(ctx context.Context, n, par int, some string) (report, error) {
	var kinds []kind
	for _, k := range allKinds(ctx) {
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
	allocated := make([]allocations, len(kinds))
	const batch = 50 // short enough to interleave, long enough for caches to settle
	for done := 0; done < n; done += batch {
		for i, k := range kinds {
			objects, err := k.allocations()
			if err != nil {
				return report{}, fmt.Errorf("%s: %w", k.name, err)
			}
			before := k.processorTime()
			for range batch {
				start := time.Now()
				if err := k.call(ctx); err != nil {
					return report{}, fmt.Errorf("%s: %w", k.name, err)
				}
				took[i] = append(took[i], time.Since(start))
			}
			spent[i] += k.processorTime() - before
			after, err := k.allocations()
			if err != nil {
				return report{}, fmt.Errorf("%s: %w", k.name, err)
			}
			allocated[i].all += after.all - objects.all
			allocated[i].broker += after.broker - objects.broker
		}
	}
	for i, k := range kinds {
		rate, err := throughput(ctx, k, n, par)
		if err != nil {
			return report{}, fmt.Errorf("%s: %w", k.name, err)
		}
		slices.Sort(took[i])
		calls := float64(len(took[i]))
		rep.Rows = append(rep.Rows, figures{
			Name: k.name, P50: micros(took[i], 0.50), P99: micros(took[i], 0.99), PerSec: rate,
			CPU: float64(spent[i].Microseconds()) / calls, Allocations: float64(allocated[i].all) / calls,
			Broker: float64(allocated[i].broker) / calls,
		})
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
	var apart []*child
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
			url, stops, apart = c.url, append(stops, c.stop), append(apart, c)
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
	}, apart}, stop, nil
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
	if _, err := nc.Subscribe("time", func(m *nats.Msg) { _ = m.Respond(fixedTime) }); err != nil {
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
	var children []*child
	open := mcpServer
	if apart {
		open = func() (string, func(), error) {
			c, err := start("mcp")
			if err != nil {
				return "", nil, err
			}
			children = append(children, c)
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
	return kind{name, call, children}, end, nil
}

// row returns the figures of a kind; they are 0 when it was not measured.
func (r report) row(name string) figures {
	if i := slices.IndexFunc(r.Rows, func(f figures) bool { return f.Name == name }); i >= 0 {
		return r.Rows[i]
	}
	return figures{}
}

// limit is a promise about two rows of the table: the p50 of one is at most so many times that of the other.
type limit struct {
	row, to string
	most    float64
}

// limits are the promises about a call.
func limits() (out []limit) {
	for i, f := range forms {
		plain, shipped := callKind{form: f, sync: syncModes[0]}, callKind{form: f, sync: syncModes[1]}
		switch i {
		case 0:
			out = append(out, limit{plain.name(), rawApart, 8})
		case 1:
			out = append(out, limit{plain.name(), rawApart, 6})
		case 2:
			out = append(out, limit{plain.name(), mcpHere, 1.1})
		}
		out = append(out, limit{shipped.name(), callKind{f, shipped.sync, true}.name(), 1.5})
	}
	return out
}

// Further promises about a call: how many allocations it takes in the process of the broker, and how many calls of 16
// callers there are per second as shipped.
const (
	mostAllocations = 200
	leastPerSecond  = 2500
)

// check returns what holds of the promises and what does not, a sentence each, and whether all hold.
func (r report) check() (said []string, all bool) {
	all = true
	say := func(ok bool, format string, a ...any) {
		word := "holds"
		if !ok {
			all, word = false, "DOES NOT HOLD"
		}
		said = append(said, word+": "+fmt.Sprintf(format, a...))
	}
	for _, l := range limits() {
		ratio := r.row(l.row).P50 / r.row(l.to).P50
		say(ratio <= l.most, "p50 of %s to %s: %.2f, at most %g", l.row, l.to, ratio, l.most)
	}
	for i, f := range forms {
		mcp := r.row(mcpApart)
		if i == len(forms)-1 {
			mcp = r.row(mcpHere)
		}
		for _, sync := range syncModes {
			row := r.row(callKind{form: f, sync: sync}.name())
			say(row.P99 < mcp.P99, "p99 of %s to %s: %.2f, below 1", row.Name, mcp.Name, row.P99/mcp.P99)
			if sync == syncModes[1] {
				say(row.PerSec >= leastPerSecond, "calls per second of %s: %.0f, at least %d", row.Name, row.PerSec,
					leastPerSecond)
			}
		}
	}
	apart := r.row(callKind{form: forms[0], sync: syncModes[1]}.name())
	say(apart.Broker <= mostAllocations, "allocations of a call in the process of the broker: %.0f, at most %d",
		apart.Broker, mostAllocations)
	return said, all
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
	_, all := r.check()
	return all
}

func (r report) print() {
	if len(r.Rows) > 0 {
		r.printCalls()
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

func (r report) printCalls() {
	raw := r.row(rawApart)
	fmt.Printf("%d calls of each kind, one run, interleaved. Ratios to the raw request over TCP.\n\n", r.Calls)
	fmt.Println("| call | p50 | p99 | p50 ratio | processor time | calls per second | allocations | of them broker |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, f := range r.Rows {
		broker := ""
		if f.Broker > 0 {
			broker = fmt.Sprintf("%.0f", f.Broker)
		}
		fmt.Printf("| %s | %.0f us | %.0f us | %.1f | %.0f us | %.0f | %.0f | %s |\n", f.Name, f.P50, f.P99,
			f.P50/raw.P50, f.CPU, f.PerSec, f.Allocations, broker)
	}
	if len(r.Layers) == 0 {
		return // not every kind was measured
	}
	fmt.Println()
	said, _ := r.check()
	for _, line := range said {
		fmt.Println(line)
	}
	fmt.Println()
}
