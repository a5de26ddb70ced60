package loop

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/model"
)

// A call that does not look at its context is left behind on a stop: it stays open and is run when the turn is taken up.
func TestStopLeavesACallBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, _ := agent(t, calls("get_time", `{"zone":"a"}`), calls("get_time", `{"zone":"b"}`))
		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		a.Run = func(_ context.Context, c model.Call) Result {
			if strings.Contains(string(c.Arguments), "b") {
				cancel(errStop)
				<-release
			}
			return Result{Text: "came"}
		}
		s, err := Turn(ctx, a, ask("q"), Hooks{})
		if !errors.Is(err, errStop) || !s.Partial || len(s.Done) != 1 || len(s.Messages) != 4 {
			t.Errorf("error %v, state %+v", err, s)
		}
		before := cloned(&s)
		close(release)
		synctest.Wait() // it comes back, and nobody listens
		if after := cloned(&s); len(after.Done) != 1 || !slices.Equal(codes(after), codes(before)) {
			t.Errorf("the state changed after the turn: %+v", after)
		}
		b, _ := agent(t, says("both"))
		var ran []string
		b.Run = func(_ context.Context, c model.Call) Result { ran = append(ran, c.ID); return Result{Text: "B"} }
		again, err := Turn(t.Context(), b, Input{State: before}, Hooks{})
		wantAnswer(t, again, err, "both", false)
		if !slices.Equal(ran, []string{"id2"}) {
			t.Errorf("ran %q", ran)
		}
	})
}

// One that returns when time is up is either in time or left behind, never both, and the turn ends at its time.
func TestCallsThatEndWithTheTurn(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			a, _ := agent(t, calls("get_time", "{}"), calls("get_time", `{"zone":"b"}`))
			a.Limits.Wall, a.Limits.Steps = time.Minute, -1
			n := 0
			a.Run = func(ctx context.Context, _ model.Call) Result {
				if n++; n == 2 {
					<-ctx.Done()
				}
				return Result{Text: "came"}
			}
			var rec record
			start := time.Now()
			s, err := Turn(t.Context(), a, ask("q"), rec.hooks())
			if err != nil || len(s.Done) != 2 || !s.Final || time.Since(start) != time.Minute {
				t.Errorf("error %v after %s, state %+v", err, time.Since(start), s)
			}
			finished := 0
			for _, line := range rec.lines {
				if strings.HasPrefix(line, "finished") {
					finished++
				}
			}
			if finished != 2 {
				t.Errorf("%d calls finished: %q", finished, rec.lines)
			}
		})
	}
}

// What breaks in the goroutine of the turn breaks in the caller's, with the place where it broke.
func TestPanicReachesTheCaller(t *testing.T) {
	t.Parallel()
	a, _ := agent(t, calls("get_time", "{}"))
	h := Hooks{Finished: func(int, Done) { panic("no such luck") }}
	defer func() {
		err, _ := recover().(error)
		if err == nil || !strings.Contains(err.Error(), "no such luck") || !strings.Contains(err.Error(), "TestPanicReachesTheCaller.func") {
			t.Errorf("recovered %v", err)
		}
	}()
	_, _ = Turn(t.Context(), a, ask("q"), h)
	t.Error("the turn returned")
}

// A goroutine that is ended from inside, as a test does that gives up: in a hook it is the caller's, in a tool the call's.
func TestGoexit(t *testing.T) {
	t.Parallel()
	a, _ := agent(t, calls("get_time", "{}"), calls("get_time", `{"zone":"b"}`), says("went on"))
	n := 0
	a.Run = func(context.Context, model.Call) Result {
		if n++; n == 1 {
			runtime.Goexit()
		}
		return Result{Text: "came"}
	}
	s, err := Turn(t.Context(), a, ask("q"), Hooks{})
	wantAnswer(t, s, err, "went on", false)
	if len(s.Done) != 2 || s.Done[0].Result.Fault != FaultUnavailable || s.Done[1].Result.Text != "came" {
		t.Errorf("done %+v", s.Done)
	}
	b, _ := agent(t, calls("get_time", "{}"))
	returned, gone := false, make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = Turn(t.Context(), b, ask("q"), Hooks{Finished: func(int, Done) { runtime.Goexit() }})
		returned = true
	}()
	<-gone
	if returned {
		t.Error("the turn returned")
	}
}

// A tool that obeys runs in the caller's goroutine; nothing else is different.
func TestObeys(t *testing.T) {
	t.Parallel()
	var lines [2][]string
	for i, obeys := range []bool{false, true} {
		a, _ := agent(t, calls("get_time", "{}"), calls("get_time", `{"zone":"b"}`, "web_search", `{"query":"c"}`), says("done"))
		here := false
		a.Obeys = obeys
		a.Run = func(_ context.Context, c model.Call) Result {
			if string(c.Arguments) == "{}" {
				here = strings.Contains(string(debug.Stack()), "loop.TestObeys(")
			} else if c.Name == "get_time" {
				panic("broken")
			}
			return Result{Text: "came"}
		}
		var rec record
		h := rec.hooks()
		h.Finished = nil // calls that run at once finish in any order
		s, err := Turn(t.Context(), a, ask("q"), h)
		wantAnswer(t, s, err, "done", false)
		if here != obeys {
			t.Errorf("obeys %t: the call ran in the caller's goroutine: %t", obeys, here)
		}
		if lines[i] = rec.lines; s.Done[1].Result.Fault != FaultUnavailable || s.Done[2].Result.Text != "came" {
			t.Errorf("done %+v", s.Done)
		}
	}
	if !slices.Equal(lines[0], lines[1]) {
		t.Errorf("%q, want %q", lines[1], lines[0])
	}
}
