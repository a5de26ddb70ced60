package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"conclave/actors/broker"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// newSearchFixture has a web_search with the given effects; each run returns its number.
func newSearchFixture(t *testing.T, effects policy.Effects) (w *callFixture, runs *atomic.Int64) {
	t.Helper()
	w = &callFixture{hash: newHasher(t), refuse: map[string]error{}}
	w.rec.Time = now
	k := broker.Known{Tool: policy.Tool{
		Name: "web_search", Zone: "tools", Known: true, Effects: effects,
		Timeout: 5 * time.Second,
	}, Pin: broker.Pin(search)}
	w.b = broker.New(broker.Config{CallTimeout: time.Minute, AuditTimeout: time.Minute},
		rules(parseTestManifest(t), manifestLayerOnly(t)), w, w.hash, []broker.Known{clockFacts(), k})
	if err := w.b.Start(t.Context(), (&actortest.Recorder{Time: now}).Out()); err != nil {
		t.Fatal(err)
	}
	runs = &atomic.Int64{}
	w.answer(func(string, []byte) (any, error) {
		return subjects.ToolResult{Tool: "web_search", Result: "run " + strconv.FormatInt(runs.Add(1), 10)}, nil
	})
	for _, s := range []subjects.ToolSchema{clock, search} {
		if err := w.announce(t, "tools", s.Name, s); err != nil {
			t.Fatal(err)
		}
	}
	return w, runs
}

func searchMessage(account, id, args string) actortest.Message {
	return actortest.Message{
		Subject: "agent." + account + ".tool.request.web_search",
		Body:    subjects.ToolRequest{CallID: id, Args: json.RawMessage(args)},
	}
}

func mutatingEffects() policy.Effects { return policy.Declare(policy.Mutate) }

func readingEffects() policy.Effects { return policy.Declare(policy.Egress, policy.ReadsUntrusted) }

func (w *callFixture) statuses() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		out = append(out, r.Phase+" "+r.Status)
	}
	return out
}

func TestLedger(t *testing.T) {
	t.Parallel()
	const args = `{"query":"x"}`

	t.Run("retry is replayed", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		for range 3 {
			res, err := w.call(t, searchMessage("generator", "c1", args))
			if err != nil || res.Result != "run 1" {
				t.Fatalf("%+v, %v", res, err)
			}
		}
		if runs.Load() != 1 {
			t.Errorf("ran %d times", runs.Load())
		}
		if want := []string{"before allowed", "after ok", "before replayed", "before replayed"}; !slices.Equal(
			w.statuses(), want) {
			t.Errorf("records %q", w.statuses())
		}
	})
	t.Run("another call_id is another call", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		for _, id := range []string{"c1", "c2"} {
			w.call(t, searchMessage("generator", id, args))
		}
		if runs.Load() != 2 {
			t.Errorf("ran %d times", runs.Load())
		}
	})
	t.Run("calls without call_id are distinct", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		for range 2 {
			w.call(t, searchMessage("generator", "", args))
		}
		if runs.Load() != 2 {
			t.Errorf("ran %d times", runs.Load())
		}
	})
	t.Run("trick: call_id of another account", func(t *testing.T) {
		t.Parallel()
		w, _ := newSearchFixture(t, mutatingEffects())
		w.call(t, searchMessage("generator", "c1", args))
		res, _ := w.call(t, searchMessage("operator", "c1", args))
		if res.Result != "run 2" {
			t.Errorf("operator was given %q", res.Result)
		}
	})
	t.Run("trick: same call_id with other arguments", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		w.call(t, searchMessage("generator", "c1", args))
		res, _ := w.call(t, searchMessage("generator", "c1", `{"query":"y"}`))
		if res.Error == nil || res.Error.Code != subjects.CodeMalformed || res.Result != "" || runs.Load() != 1 {
			t.Errorf("%+v after %d runs", res, runs.Load())
		}
	})
	t.Run("a failed run is replayed", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		w.answer(func(string, []byte) (any, error) {
			runs.Add(1)
			return nil, subjects.Faultf(subjects.CodeTool, "disk full")
		})
		for range 2 {
			if res, _ := w.call(t, searchMessage("generator", "c1", args)); res.Error == nil ||
				res.Error.Code != subjects.CodeTool {
				t.Errorf("%+v", res)
			}
		}
		if runs.Load() != 1 {
			t.Errorf("ran %d times", runs.Load())
		}
	})
	t.Run("the clock is not in the ledger", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		for range 2 {
			w.call(t, actortest.Message{Subject: "agent.generator.tool.request.get_datetime", Body: request()})
		}
		if keys, _ := w.rec.Out().Store("ledger").Keys(t.Context(), ""); len(keys) != 0 || runs.Load() != 2 {
			t.Errorf("%q, %d runs", keys, runs.Load())
		}
	})
	t.Run("unrecorded call may run later", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		w.refuse[subjects.AuditBefore] = context.DeadlineExceeded
		if res, _ := w.call(t, searchMessage("generator", "c1", args)); res.Error == nil ||
			res.Error.Code != subjects.CodeNoAudit || runs.Load() != 0 {
			t.Fatalf("%+v after %d runs", res, runs.Load())
		}
		delete(w.refuse, subjects.AuditBefore)
		for range 2 {
			if res, _ := w.call(t, searchMessage("generator", "c1", args)); res.Result != "run 1" || runs.Load() != 1 {
				t.Errorf("%+v after %d runs", res, runs.Load())
			}
		}
	})
	t.Run("a denied call is not in the ledger", func(t *testing.T) {
		t.Parallel()
		w, runs := newSearchFixture(t, mutatingEffects())
		w.call(t, searchMessage("committee", "c1", args))
		if keys, _ := w.rec.Out().Store("ledger").Keys(t.Context(), ""); len(keys) != 0 || runs.Load() != 0 {
			t.Errorf("%q, %d runs", keys, runs.Load())
		}
	})
}

// TestLedgerAfterCrash: the entry of a run that a crash interrupted decides whether a retry runs.
func TestLedgerAfterCrash(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		effects policy.Effects
		until   time.Duration // of the entry, from now
		code    string
		runs    int64
	}{
		{
			name: "mutating tool is not repeated", effects: mutatingEffects(), until: -time.Second,
			code: subjects.CodeUncertain,
		},
		{
			name: "executing tool is not repeated", effects: policy.Declare(policy.Exec), until: -time.Second,
			code: subjects.CodeUncertain,
		},
		{name: "undeclared tool is not repeated", until: -time.Second, code: subjects.CodeUncertain},
		{name: "reading tool is repeated", effects: readingEffects(), until: -time.Second, runs: 1},
		{
			name: "another broker may be running it", effects: readingEffects(), until: time.Hour,
			code: subjects.CodeTimeout,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, runs := newSearchFixture(t, tt.effects)
				args := json.RawMessage(`{"query":"x"}`)
				left, _ := json.Marshal(map[string]any{
					"tool": "web_search", "params": w.hash.Hash(args),
					"until": now.Add(tt.until),
				})
				if _, err := w.rec.Out().Store("ledger").Put(t.Context(), "generator.c1", left, 0); err != nil {
					t.Fatal(err)
				}
				m := searchMessage("generator", "c1", string(args))
				m.Deadline = now.Add(300 * time.Millisecond)
				res, err := w.call(t, m)
				if err != nil {
					t.Fatal(err)
				}
				code := ""
				if res.Error != nil {
					code = res.Error.Code
				}
				if code != tt.code {
					t.Errorf("%+v, want %q", res, tt.code)
				}
				if runs.Load() != tt.runs {
					t.Errorf("ran %d times", runs.Load())
				}
			})
		})
	}
}

// TestConcurrentCallsRunOnce: a retry of a running call waits for the same run.
func TestConcurrentCallsRunOnce(t *testing.T) {
	t.Parallel()
	w, _ := newSearchFixture(t, mutatingEffects())
	began, let := make(chan struct{}, 2), make(chan struct{})
	w.rec.Reply = func(string, []byte) (any, error) {
		began <- struct{}{}
		<-let
		return subjects.ToolResult{Result: "done"}, nil
	}
	var wg sync.WaitGroup
	results := make([]subjects.ToolResult, 2)
	ask := func(i int) { results[i], _ = w.call(t, searchMessage("generator", "c1", `{"query":"x"}`)) }
	wg.Go(func() { ask(0) })
	<-began
	wg.Go(func() { ask(1) })
	close(let)
	wg.Wait()
	if results[0].Result != "done" || results[1].Result != "done" || len(began) != 0 {
		t.Errorf("%+v; %d more runs", results, len(began))
	}
}

// TestUnwritableLedgerDenies: nothing runs when the ledger cannot be written.
func TestUnwritableLedgerDenies(t *testing.T) {
	t.Parallel()
	w, runs := newSearchFixture(t, mutatingEffects())
	w.rec.FailStore = errors.New("no stream")
	res, err := w.call(t, searchMessage("generator", "c1", `{"query":"x"}`))
	if err != nil || res.Error == nil || res.Error.Code != subjects.CodeUnavailable || runs.Load() != 0 {
		t.Errorf("%+v, %v, %d runs", res, err, runs.Load())
	}
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, w *callFixture, account, task string, most int) (names []string, err error) {
		t.Helper()
		reply, err := w.rec.Deliver(t, w.b, actortest.Message{
			Subject: "agent." + account + ".broker.discover",
			Body:    subjects.DiscoverRequest{Task: task, Max: most}, Deadline: now.Add(time.Minute),
		})
		if err != nil {
			return nil, err
		}
		var got subjects.DiscoverReply
		if err := json.Unmarshal([]byte(reply), &got); err != nil {
			t.Fatal(err)
		}
		for _, s := range got.Tools {
			names = append(names, s.Name)
		}
		return names, nil
	}
	for _, tt := range []struct {
		name    string
		account string
		task    string
		most    int
		want    []string
		code    string
		status  string
	}{
		{
			name: "all permitted tools", account: "generator", want: []string{"get_datetime", "web_search"},
			status: "before shown",
		},
		{
			name: "best match", account: "generator", task: "what tells the time?", most: 1,
			want: []string{"get_datetime"}, status: "before shown",
		},
		{
			name: "other match", account: "generator", task: "somebody searches", most: 1, want: []string{"web_search"},
			status: "before shown",
		},
		{name: "no match", account: "committee", status: "before shown"},
		{
			name: "trick: an account without a type", account: "orchestrator", code: subjects.CodeDenied,
			status: "before denied",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := newSearchFixture(t, mutatingEffects())
			got, err := ask(t, w, tt.account, tt.task, tt.most)
			if !slices.Equal(got, tt.want) || actortest.Code(err) != tt.code {
				t.Errorf("%q, %v", got, err)
			}
			if s := w.statuses(); len(s) != 1 || s[0] != tt.status {
				t.Errorf("records %q", s)
			}
		})
	}
	t.Run("audit failure returns no tools", func(t *testing.T) {
		t.Parallel()
		w, _ := newSearchFixture(t, mutatingEffects())
		w.refuse[subjects.AuditBefore] = context.DeadlineExceeded
		if got, err := ask(t, w, "generator", "", 0); actortest.Code(err) != subjects.CodeNoAudit || len(got) != 0 {
			t.Errorf("%q, %v", got, err)
		}
	})
}
