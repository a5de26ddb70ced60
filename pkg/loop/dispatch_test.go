package loop

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/model"
)

// A call that ignores its context is abandoned on a stop: it stays open and runs when the turn is resumed.
func TestStopAbandonsRunningCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAgent(t, callReply("get_time", `{"zone":"a"}`), callReply("get_time", `{"zone":"b"}`))
		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		a.RunTool = func(_ context.Context, c model.Call) Result {
			if strings.Contains(string(c.Arguments), "b") {
				cancel(errStop)
				<-release
			}
			return Result{Text: "came"}
		}
		s, err := RunTurn(ctx, a, question("q"), Hooks{})
		if !errors.Is(err, errStop) || !s.Partial || len(s.Finished) != 1 || len(s.Messages) != 4 {
			t.Errorf("error %v, state %+v", err, s)
		}
		before := cloneState(&s)
		close(release)
		synctest.Wait() // it returns after the end of the turn
		if after := cloneState(&s); len(after.Finished) != 1 || !slices.Equal(noteCodes(after), noteCodes(before)) {
			t.Errorf("the state changed after the turn: %+v", after)
		}
		b, _ := newAgent(t, textReply("both"))
		var ran []string
		b.RunTool = func(_ context.Context, c model.Call) Result { ran = append(ran, c.ID); return Result{Text: "B"} }
		again, err := RunTurn(t.Context(), b, Input{State: before}, Hooks{})
		wantAnswer(t, again, err, "both", false)
		if !slices.Equal(ran, []string{"id2"}) {
			t.Errorf("ran %q", ran)
		}
	})
}

// A call that returns when the turn times out is finished once, and the turn ends in time.
func TestCallThatEndsWithTheTurnFinishesOnce(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			a, _ := newAgent(t, callReply("get_time", "{}"), callReply("get_time", `{"zone":"b"}`))
			a.Limits.TurnTimeout, a.Limits.Steps = time.Minute, -1
			n := 0
			a.RunTool = func(ctx context.Context, _ model.Call) Result {
				if n++; n == 2 {
					<-ctx.Done()
				}
				return Result{Text: "came"}
			}
			var rec hookRecorder
			start := time.Now()
			s, err := RunTurn(t.Context(), a, question("q"), rec.hooks())
			if err != nil || len(s.Finished) != 2 || !s.Final || time.Since(start) != time.Minute {
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

// A panic in a hook is the caller's.
func TestPanicInHookReachesTheCaller(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t, callReply("get_time", "{}"))
	h := Hooks{Finished: func(int, FinishedCall) { panic("broken hook") }}
	defer func() {
		if p := recover(); p != "broken hook" {
			t.Errorf("recovered %v", p)
		}
	}()
	_, _ = RunTurn(t.Context(), a, question("q"), h)
	t.Error("the turn returned")
}

// runtime.Goexit, as in a failing test, ends the caller's goroutine in a hook, and only the call in a tool.
func TestGoexitInToolAndHook(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t, callReply("get_time", "{}"), callReply("get_time", `{"zone":"b"}`), textReply("went on"))
	n := 0
	a.RunTool = func(context.Context, model.Call) Result {
		if n++; n == 1 {
			runtime.Goexit()
		}
		return Result{Text: "came"}
	}
	s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
	wantAnswer(t, s, err, "went on", false)
	if len(s.Finished) != 2 || s.Finished[0].Result.Fault != FaultUnavailable || s.Finished[1].Result.Text != "came" {
		t.Errorf("done %+v", s.Finished)
	}
	b, _ := newAgent(t, callReply("get_time", "{}"))
	returned, gone := false, make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = RunTurn(t.Context(), b, question("q"), Hooks{Finished: func(int, FinishedCall) { runtime.Goexit() }})
		returned = true
	}()
	<-gone
	if returned {
		t.Error("the turn returned")
	}
}

// A tool that panics is unavailable; the other calls of the reply keep their results.
func TestToolPanicIsUnavailable(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t, callReply("get_time", `{"zone":"b"}`, "web_search", `{"query":"c"}`), textReply("done"))
	a.RunTool = func(_ context.Context, c model.Call) Result {
		if c.Name == "get_time" {
			panic("broken")
		}
		return Result{Text: "came"}
	}
	s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
	wantAnswer(t, s, err, "done", false)
	if s.Finished[0].Result.Fault != FaultUnavailable || s.Finished[1].Result.Text != "came" {
		t.Errorf("finished %+v", s.Finished)
	}
}
