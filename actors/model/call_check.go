package model

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/callcheck"
	"conclave/subjects"
)

// callTest is the result of the self-test of a model's native tool calls.
type callTest struct {
	Passed int       `json:"passed"`
	Total  int       `json:"total"`
	Digest string    `json:"digest,omitempty"` // of the model that was tested; the result holds for no other
	Tested time.Time `json:"tested"`
}

func (c *callTest) isValid() bool {
	return c.Passed >= 0 && c.Passed <= c.Total && c.Total <= 100 && len(c.Digest) <= maxName
}

// hasPassed reports whether native calls are reliable enough: one reply may be wrong.
func (c *callTest) hasPassed() bool { return c.Passed >= c.Total-1 }

// callTestDelay is the default of [Config.CallTestDelay].
const callTestDelay = 30 * time.Second

// needsCallTest reports whether only a self-test can tell how the model calls tools: the options leave it open, the
// model claims to support tools, is not small and was not tested as it is installed now. A model on another machine is
// not tested: nothing leaves this machine that the user did not ask for.
func (t target) needsCallTest() bool {
	return t.callTest == nil && !t.isDemo && t.info.Tools && !t.info.Embedding &&
		(t.opts.Calls == "" || t.opts.Calls == CallAuto) && !isSmall(t.info) &&
		!isRemote(t.backendName, t.server.remoteHost) && t.info.Remote == ""
}

// scheduleCallTest has the tool calls of a model tested in a while, in the background. It does not wait. While a test
// of the model waits or runs it does nothing.
func (m *Model) scheduleCallTest(ctx context.Context, out actor.Out, t target) {
	if _, scheduled := m.testing.LoadOrStore(t.key(), true); scheduled {
		return
	}
	m.spawn(ctx, func(ctx context.Context) {
		defer m.testing.Delete(t.key())
		if err := m.testCalls(ctx, out, t); err != nil && ctx.Err() == nil {
			out.LogError(fmt.Errorf("testing the tool calls of %s: %w", t.name, err))
		}
	})
}

// testCalls tests the native tool calls of a model and keeps the result. Nothing is kept when the server fails: then it
// is tested after its next use.
func (m *Model) testCalls(ctx context.Context, out actor.Out, t target) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(cmp.Or(m.cfg.CallTestDelay, callTestDelay)):
	}
	steps := callcheck.Steps()
	result := callTest{Total: len(steps), Digest: t.info.Digest}
	for _, s := range steps {
		passed, err := m.runCallStep(ctx, out, t, s)
		if err != nil {
			return err
		}
		if passed {
			result.Passed++
		}
	}
	result.Tested = out.Now().UTC()
	m.meter.update(t.key(), func(v *measured) { v.Calls = &result })
	return m.meter.write(out.Now(), true)
}

// runCallStep sends one request of the test. A reply that the server could not parse is wrong.
func (m *Model) runCallStep(ctx context.Context, out actor.Out, t target, s callcheck.Step) (passed bool, err error) {
	r, err := t.buildRequest(s.Request())
	if err != nil {
		return false, err
	}
	reply, err := m.runOwnChat(ctx, out, t, r)
	if subjects.CodeOf(err) == subjects.CodeModelMalformed {
		return false, nil
	}
	return s.Passes(model.Message{Role: model.Assistant, Content: reply.Content, Calls: reply.Calls}), err
}

// describeCallTest is the result of the self-test for lists; nil = not tested, or the options decide.
func (t target) describeCallTest() *subjects.CallTest {
	if t.callTest == nil || t.opts.Calls != "" && t.opts.Calls != CallAuto {
		return nil
	}
	return &subjects.CallTest{Passed: t.callTest.Passed, Total: t.callTest.Total, Tested: t.callTest.Tested}
}

// loadedModel returns the model of the request that was admitted last, by its name at the server.
func (q *queue) loadedModel() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lastModel
}
