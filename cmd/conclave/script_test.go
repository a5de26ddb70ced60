package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/datatest"
	"conclave/pkg/programtest"
	"conclave/pkg/sandbox"
	"conclave/pkg/tool/conclavetool"
)

func TestMain(m *testing.M) {
	testscript.Main(tidy{m}, map[string]func(){"conclave": main})
}

// tidy takes the built programs away after the tests.
type tidy struct{ *testing.M }

func (m tidy) Run() int {
	_ = flag.Set("test.parallel", "4") // scripts wait for processes more than they compute
	defer func() {
		if dir, err := builds(); err == nil {
			os.RemoveAll(dir)
		}
	}()
	return m.M.Run()
}

// system is the configuration of every test: no fixed port.
const system = "listen: 127.0.0.1:0\ngateway: {listen: 127.0.0.1:0}\n"

// settings are the files of every test: its system, the built-in demo model whatever models this machine has, encrypted
// files so that nobody's own keyring is touched, and a search engine where nobody listens.
var settings = map[string]string{
	"system.yaml":     system,
	"models.yaml":     "demo_model: always\nollama: {url: http://127.0.0.1:1}\n",
	"secrets.yaml":    "backend: file\n",
	"web_search.yaml": "provider: searxng\nsearxng: {url: http://127.0.0.1:1}\n",
}

// TestScripts drives the program as a user would. Beside testscript's own commands there are:
//
//	start NAME conclave ...   start a process that stays, and wait for its readiness line; sets $URL and $PID
//	halt [-KILL] NAME         end it, with SIGTERM and exit code 0 or by force; its stderr is in NAME.err
//	exits CODE conclave ...   run, and ask for an exact exit code
//	until conclave ...        run again and again until it succeeds, for a minute at most
//	json KEY...               stdout of the last command is one JSON document with these keys
//	jsonlines KEY...          stdout is JSON lines, each with these keys
//	serve DIR TOOL            run the tool with the settings in DIR until the script ends, and wait until it is
//	                          announced
//
// $ACTORS are the usual actors as conclave actor takes them, $READY as the readiness line has them, $THERE as the
// doctor does.
func TestScripts(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	testscript.Run(t, scriptParams("testdata/script", datatest.Dir(t)))
}

// TestSandboxScripts runs the scripts that start programs in the sandbox, as TestScripts does.
func TestSandboxScripts(t *testing.T) {
	if os.Getenv("CONCLAVE_SHORT") != "" {
		t.Skip("CONCLAVE_SHORT is set")
	}
	t.Parallel()
	programtest.SkipIf(t, sandbox.SelfTest(t.Context()))
	testscript.Run(t, scriptParams("testdata/sandbox", t.TempDir()))
}

// scriptParams returns how the scripts in a folder are run. Each has its data in a folder of its own in data.
func scriptParams(dir, data string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values[running{}] = map[string]*process{}
			for name, dir := range map[string]string{
				"HOME": "home", "XDG_CONFIG_HOME": "home/config",
			} {
				env.Setenv(name, filepath.Join(env.WorkDir, dir))
			}
			env.Setenv("XDG_DATA_HOME", filepath.Join(data, filepath.Base(env.WorkDir)))
			setRuntimeEnv(env)
			env.Setenv("DATA", filepath.Join(env.Getenv("XDG_DATA_HOME"), "conclave"))
			env.Defer(func() { // as root it is not in the folder of the script
				servers := bus.Home{Data: env.Getenv("DATA")}.MCP()
				os.RemoveAll(servers)
				os.RemoveAll(servers + "-test")
			})
			env.Setenv("CONFIG", filepath.Join(env.WorkDir, "home/config/conclave"))
			cfg, err := config.Load("")
			if err != nil {
				return err
			}
			env.Setenv("ACTORS", strings.Join(cfg.EnabledActors(), " "))
			env.Setenv("READY", `"`+strings.Join(defaultActors(cfg), `","`)+`"`)
			env.Setenv("THERE", strings.Join(slices.Sorted(slices.Values(defaultActors(cfg))), ", "))
			return writeSystem(filepath.Join(env.WorkDir, "home/config/conclave"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": cmdStart, "halt": cmdHalt, "exits": cmdExits, "until": cmdUntil, "json": cmdJSON,
			"jsonlines": cmdJSONLines, "serve": cmdServe,
		},
	}
}

// usual are the actors that run when nothing is set, in the order in which they start.
func defaultActors(cfg config.Config) []string {
	return append(cfg.ToolNames(), slices.DeleteFunc(cfg.EnabledActors(), func(n string) bool {
		return n == "tools"
	})...)
}

func writeSystem(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, text := range settings {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// running is the key of a script's processes.
type running struct{}

func processes(ts *testscript.TestScript) map[string]*process {
	return ts.Value(running{}).(map[string]*process)
}

func cmdStart(ts *testscript.TestScript, neg bool, v []string) {
	if neg || len(v) < 3 || v[1] != "conclave" {
		ts.Fatalf("usage: start NAME conclave args...")
	}
	var env []string
	for _, name := range append(slices.Collect(maps.Keys(runtimeEnv)), "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME",
		"PATH", "TMPDIR") {
		env = append(env, name+"="+ts.Getenv(name))
	}
	p, err := begin(ts.MkAbs("."), env, v[1], v[2:]...)
	ts.Check(err)
	ts.Defer(p.kill)
	line, err := p.stdout.wait(`"pid"`)
	if err != nil {
		ts.Fatalf("%s: %v\n%s", v[0], err, p.stderr)
	}
	var r readiness
	ts.Check(json.Unmarshal([]byte(line), &r))
	ts.Setenv("URL", r.URL)
	ts.Setenv("PID", strconv.Itoa(r.PID))
	processes(ts)[v[0]] = p
}

// cmdServe runs an added tool in this process. It returns when conclave tool list shows the tool as ready.
func cmdServe(ts *testscript.TestScript, neg bool, v []string) {
	if neg || len(v) != 2 {
		ts.Fatalf("usage: serve DIR TOOL")
	}
	cfg, err := conclavetool.ReadConfig(ts.MkAbs(filepath.Join(v[0], "conclave.json")))
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ts.Defer(func() {
		cancel()
		<-ended
	})
	go func() {
		d := conclavetool.Definition{
			Name: v[1], Description: "Returns noon.",
			Parameters: json.RawMessage(`{"type":"object"}`), Version: "1",
		}
		ended <- conclavetool.Serve(ctx, cfg, d, func(context.Context, json.RawMessage) (string, error) {
			return "noon", nil
		})
	}()
	ready := regexp.MustCompile(`(?m)^` + v[1] + ` +ready `)
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		ts.Check(ts.Exec("conclave", "tool", "list"))
		if ready.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("%s is not announced", v[1])
}

func cmdHalt(ts *testscript.TestScript, neg bool, v []string) {
	force := len(v) == 2 && v[0] == "-KILL"
	if force {
		v = v[1:]
	}
	if neg || len(v) != 1 || processes(ts)[v[0]] == nil {
		ts.Fatalf("usage: halt [-KILL] NAME, of a process that runs")
	}
	p := processes(ts)[v[0]]
	delete(processes(ts), v[0])
	if force {
		p.kill()
		return
	}
	code, err := p.end(syscall.SIGTERM)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(v[0]+".err"), []byte(p.stderr.String()), 0o600))
	if code != cli.ExitOK {
		ts.Fatalf("%s ended with %d\n%s", v[0], code, p.stderr)
	}
}

func cmdExits(ts *testscript.TestScript, neg bool, v []string) {
	if neg || len(v) < 2 {
		ts.Fatalf("usage: exits CODE command args...")
	}
	want, err := strconv.Atoi(v[0])
	ts.Check(err)
	err = ts.Exec(v[1], v[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d\nstderr: %s", got, want, ts.ReadFile("stderr"))
	}
}

func cmdUntil(ts *testscript.TestScript, neg bool, v []string) {
	if neg || len(v) < 1 {
		ts.Fatalf("usage: until command args...")
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
		err := ts.Exec(v[0], v[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%v\nstderr: %s", err, ts.ReadFile("stderr"))
		}
	}
}

func cmdJSON(ts *testscript.TestScript, _ bool, keys []string) {
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var v any
	if err := dec.Decode(&v); err != nil {
		ts.Fatalf("no JSON document: %v", err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		ts.Fatalf("more than one JSON document")
	}
	hasKeys(ts, v, keys)
}

func cmdJSONLines(ts *testscript.TestScript, _ bool, keys []string) {
	n := 0
	for l := range bytes.Lines([]byte(ts.ReadFile("stdout"))) {
		var v any
		if err := json.Unmarshal(l, &v); err != nil {
			ts.Fatalf("not a JSON line: %s", l)
		}
		hasKeys(ts, v, keys)
		n++
	}
	if n == 0 {
		ts.Fatalf("no JSON lines")
	}
}

// hasKeys looks into an object, or into the first of an array.
func hasKeys(ts *testscript.TestScript, v any, keys []string) {
	if list, ok := v.([]any); ok {
		if len(list) == 0 {
			ts.Fatalf("an empty array")
		}
		v = list[0]
	}
	object, ok := v.(map[string]any)
	if !ok {
		ts.Fatalf("not a JSON object: %v", v)
	}
	for _, k := range keys {
		if _, ok := object[k]; !ok {
			var have []string
			for h := range object {
				have = append(have, h)
			}
			slices.Sort(have)
			ts.Fatalf("no key %q among %v", k, have)
		}
	}
}
