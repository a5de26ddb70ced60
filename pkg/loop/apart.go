package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"conclave/pkg/model"
)

// A tool may ignore its context; a turn ends in time all the same and leaves such a call behind. So a call must not run
// in the goroutine that has to return. A goroutine for each call would cost more than everything else in a step, so from
// its first call on the turn itself goes on in another goroutine, and single calls run right there. The one that has to
// return waits, and takes the turn over when time is up during a call.

// Phases of the turn's own goroutine. Only working may touch the turn; who changes calling into something else goes on
// with it.
const (
	working = iota
	calling // inside Run
	left    // it did not come back in time: the turn goes on without it
)

// errLeft ends the run of a goroutine that was left.
var errLeft = errors.New("the turn went on without this call")

// ending is how the turn's own goroutine ended.
type ending struct {
	err   error
	broke bool // it panicked, or a test gave up in it
	value any  // of the panic
	stack []byte
}

// goOn takes the turn to its end in another goroutine, or to the call that is left behind.
func (t *turn) goOn(ctx, wall context.Context) error {
	t.apart = true
	ended := make(chan ending, 1)
	go func() {
		e := ending{broke: true}
		defer func() {
			if e.broke {
				e.value, e.stack = recover(), debug.Stack()
			}
			ended <- e
		}()
		grow(t.state.Step)
		e.err = t.run(ctx, wall)
		e.broke = false
	}()
	select {
	case e := <-ended:
		return t.ended(ctx, e)
	case <-wall.Done():
	}
	if t.phase.CompareAndSwap(calling, left) {
		return t.goOnWithout(ctx)
	}
	return t.ended(ctx, <-ended) // no call that it waits for: it notices by itself
}

// grow makes the stack of a new goroutine large enough for a turn. That is cheap as long as it is empty; in the depth of
// a turn the stack would be copied, twice.
//
//go:noinline
func grow(i int) byte {
	var room [6 << 10]byte
	return room[i%len(room)]
}

// ended passes on how the turn's own goroutine ended, as if it had been this one.
func (t *turn) ended(ctx context.Context, e ending) error {
	switch {
	case !e.broke:
		return e.err
	case e.value != nil:
		panic(broken{e.value, e.stack})
	case t.phase.CompareAndSwap(calling, left): // it was the tool that ended the goroutine
		return t.goOnWithout(ctx)
	}
	runtime.Goexit()
	return nil
}

// goOnWithout goes on from a call that does not come back.
func (t *turn) goOnWithout(ctx context.Context) error {
	t.apart = false
	t.phase.Store(working)
	if err := t.leave(ctx); err != nil {
		return err
	}
	return t.recordRound(ctx)
}

// broken is a panic of the turn's own goroutine, with the stack that it had there.
type broken struct {
	value any
	stack []byte
}

func (b broken) Error() string { return fmt.Sprintf("%v\n\n%s", b.value, b.stack) }

// runOne runs the one call of the batch that has no result yet.
func (t *turn) runOne(ctx, wall context.Context) error {
	i := 0
	for t.batch[i].Step != 0 {
		i++
	}
	t.started(i)
	c := t.batch[i].Call
	t.phase.Store(calling)
	// Whoever waits for the wall may have looked before it was calling: it must not begin then.
	late := wall.Err() != nil
	o := outcome{i, Result{}}
	if !late {
		o = t.call(wall, c, i)
	}
	switch {
	case !t.phase.CompareAndSwap(calling, working):
		return errLeft
	case late:
		return t.leave(ctx)
	}
	return t.came(ctx, o)
}

// runAll runs what has no result in the batch, all at once.
func (t *turn) runAll(ctx, wall context.Context, missing int) error {
	come := make(chan outcome, missing)
	for i := range t.batch {
		if t.batch[i].Step != 0 {
			continue
		}
		t.started(i)
		go func(c model.Call) {
			o := unavailable(i)
			defer func() { come <- o }()
			o = t.call(wall, c, i)
		}(t.batch[i].Call)
	}
	for ; missing > 0; missing-- {
		select {
		case o := <-come:
			if err := t.came(ctx, o); err != nil {
				return err
			}
		case <-wall.Done():
			return t.leave(ctx)
		}
	}
	return nil
}

// outcome is a result and whose it is.
type outcome struct {
	i int
	r Result
}

func unavailable(i int) outcome {
	return outcome{i, Result{Text: resultUnavailable, Fault: FaultUnavailable}}
}

// call runs one call. A tool that panics must not take the program with it.
func (t *turn) call(ctx context.Context, c model.Call, i int) (o outcome) {
	o = unavailable(i)
	defer func() { _ = recover() }()
	o.r = t.agent.RunTool(ctx, c)
	return o
}

// started shows that a call begins.
func (t *turn) started(i int) {
	if t.hooks.Started != nil {
		t.hooks.Started(t.state.Step, t.batch[i].Call, t.batch[i].Layer)
	}
}

// came takes in what came of a call.
func (t *turn) came(ctx context.Context, o outcome) error {
	if ctx.Err() != nil && o.r.Fault != "" {
		return t.stopWithResults(ctx) // it failed because of the stop: that is no result
	}
	t.recordResult(o)
	return nil
}

// leave is for calls that did not come back before the end: on a stop they stay open, else they have no result.
func (t *turn) leave(ctx context.Context) error {
	if ctx.Err() != nil {
		return t.stopWithResults(ctx)
	}
	for i := range t.batch {
		t.recordResult(unavailable(i))
	}
	return nil
}
