package model_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// listed returns what model.list says about big.
func (w *harness) listed() subjects.ModelInfo {
	w.t.Helper()
	var list subjects.ModelList
	if err := w.deliver("agent.user.model.list", subjects.Empty{}, &list); err != nil {
		w.t.Fatal(err)
	}
	for _, m := range list.Models {
		if strings.HasPrefix(m.Name, "big") {
			return m
		}
	}
	w.t.Fatal("big is not listed")
	return subjects.ModelInfo{}
}

// testedHarness is a started model actor with one model, which is used once.
func testedHarness(t *testing.T, file string, big scriptserver.Model, change func(*model.Config)) *harness {
	t.Helper()
	big.Name, big.Window = "big", 32768
	w := newHarness(t, always("big"), func(c *model.Config) {
		c.MeasuredFile, c.CallTestDelay = file, time.Nanosecond
		if change != nil {
			change(c)
		}
	}, scriptserver.WithModels(big))
	if err := w.m.Start(context.Background(), w.rec.Out()); err != nil {
		t.Fatal(err)
	}
	if got := w.ask(subjects.ChatRequest{}); got.err != nil {
		t.Fatal(got.err)
	}
	return w
}

func TestToolCallsOfAModelAreTestedOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		big    scriptserver.Model
		calls  string
		passed int
	}{
		"native calls": {
			scriptserver.Model{Parameters: "12B", Tools: true, Digest: "d1"},
			subjects.CallNative,
			4,
		},
		"no native calls": {
			scriptserver.Model{Parameters: "12B", Tools: true, Digest: "d1", NoCalls: true},
			subjects.CallConstrained, 0,
		},
		"a size not known": {
			scriptserver.Model{Tools: true, Digest: "d1", NoCalls: true},
			subjects.CallConstrained,
			0,
		},
		"without any digest": {scriptserver.Model{Tools: true}, subjects.CallNative, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "measured.json")
			w := testedHarness(t, file, tt.big, nil)
			waitFor(t, "the test ends", func() bool { return w.listed().CallTest != nil })
			if got := w.listed(); got.Calls != tt.calls || got.CallTest.Passed != tt.passed ||
				got.CallTest.Total != 4 || got.CallTest.Tested.IsZero() {
				t.Errorf("%s, %+v", got.Calls, got.CallTest)
			}
			if got := w.auditSummary(); strings.Count(got, "before allowed") != 5 ||
				strings.Count(got, "after ok") != 5 {
				t.Errorf("one call and four of the test: %s", got)
			}
			if err := w.m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			again := testedHarness(t, file, tt.big, nil)
			if got := again.listed(); got.CallTest == nil || got.Calls != tt.calls {
				t.Errorf("after a restart: %+v", got)
			}
			if err := again.m.Close(t.Context()); err != nil { // waits for tests
				t.Fatal(err)
			}
			if n := again.srv.Stats().SelfTests; n != 0 {
				t.Errorf("%d requests of a second test", n)
			}
			tt.big.Digest, tt.big.NoCalls = "d2", !tt.big.NoCalls
			changed := testedHarness(t, file, tt.big, nil)
			waitFor(t, "the changed model is tested", func() bool { return changed.listed().CallTest != nil })
			if got := changed.listed(); got.Calls == tt.calls {
				t.Errorf("the changed model calls tools as before: %+v", got)
			}
		})
	}
}

// No request is sent that the user would not expect: to a model whose calls are set or known by its size, or that
// leaves the machine, and none before a while has passed.
func TestToolCallsAreNotTested(t *testing.T) {
	t.Parallel()
	big := scriptserver.Model{Parameters: "12B", Tools: true}
	for name, tt := range map[string]struct {
		big    scriptserver.Model
		change func(*model.Config)
	}{
		"small":         {scriptserver.Model{Parameters: "1.5B", Tools: true}, nil},
		"without tools": {scriptserver.Model{Parameters: "12B"}, nil},
		"set to native": {big, func(c *model.Config) { c.Defaults.Calls = subjects.CallNative }},
		"set for the model": {big, func(c *model.Config) {
			c.Models = map[string]model.Options{"big": {Calls: subjects.CallConstrained}}
		}},
		"trick: a cloud model": {
			scriptserver.Model{Parameters: "12B", Tools: true, RemoteHost: "https://ollama.com"},
			func(c *model.Config) { c.Remote = []string{"big"} },
		},
		"not used long enough": {big, func(c *model.Config) { c.CallTestDelay = time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testedHarness(t, "", tt.big, tt.change)
			for range 3 {
				if got := w.ask(subjects.ChatRequest{}); got.err != nil {
					t.Fatal(got.err)
				}
			}
			if err := w.m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := w.srv.Stats().SelfTests; n != 0 {
				t.Errorf("%d requests of a test", n)
			}
		})
	}
}
