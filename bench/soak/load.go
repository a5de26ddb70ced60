package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"conclave/bench/internal/instance"
)

// load is the clients and what they have done so far.
type load struct {
	system    *instance.System
	questions atomic.Int64
	requests  atomic.Int64 // everything
	// unavailable counts the requests that the system rejected and told to retry, as a machine with too much other work
	// does. More than one in 200 is a failure.
	unavailable atomic.Int64

	mu        sync.Mutex
	latencies []time.Duration // of plain questions, since the last take
}

func newLoad(s *instance.System) *load { return &load{system: s} }

// run loads the system until ctx ends or -questions are asked. The first error of a client ends it.
func (l *load) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for n := range *clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil && (*questions == 0 || l.questions.Load() < *questions); i++ {
				err := l.act(context.WithoutCancel(ctx), n, i)
				if errors.Is(err, instance.ErrUnavailable) && l.unavailable.Add(1) < 10+l.questions.Load()/200 {
					time.Sleep(time.Second) // as the reply says; the next step goes on
					continue
				}
				if err != nil {
					cancel(fmt.Errorf("client %d, step %d: %w", n, i, err))
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// act does step i of client n. A request that was sent is finished: its answer is part of the result. Of 25 steps 16
// ask, two with a tool, one with an approval and one that is cancelled among them.
func (l *load) act(ctx context.Context, n, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	session := fmt.Sprintf("soak-%d-%d", n, i/25/max(1, *turns/16+1))
	topic := fmt.Sprintf("topic %d of client %d", i%997, n)
	if *plain {
		return l.ask(ctx, fmt.Sprintf("soak-%d-%d", n, i/max(1, *turns)), "What do you think about "+topic+"?")
	}
	l.requests.Add(1)
	switch step := i % 25; step {
	case 3, 12:
		return l.ask(ctx, session, "What time is it in Paris?")
	case 7:
		return l.askWithApproval(ctx, session, fmt.Sprintf("Remember that the colour of item %d-%d is blue", n, i))
	case 15:
		return l.cancel(ctx, session, "Tell me a long story about "+topic)
	case 5, 18:
		return l.system.Request(ctx, "GET", "/memory/search?q="+url.QueryEscape(topic+" blue"), nil, &struct{}{})
	case 9, 20:
		return l.system.Request(ctx, "POST", "/memory", map[string]any{"text": fmt.Sprintf("The price of article "+
			"%d-%d was %d euros.", n, i, i%89)}, &struct{}{})
	case 11:
		return l.system.Request(ctx, "GET", "/sessions/"+session, nil, &struct{}{})
	case 14:
		if i%500 != 14 { // it reads every conversation: a page loads it once
			return l.ask(ctx, session, "What do you think about "+topic+"?")
		}
		return l.system.Request(ctx, "GET", "/sessions", nil, &struct{}{})
	case 17:
		return l.system.Request(ctx, "GET", "/memory?limit=20", nil, &struct{}{})
	case 22:
		return l.system.Request(ctx, "GET", "/approvals?all=1", nil, &struct{}{})
	case 24:
		return l.system.Request(ctx, "GET", "/health", nil, &struct{}{})
	default:
		return l.ask(ctx, session, "What do you think about "+topic+"?")
	}
}

// answer is the part of an answer that is checked.
type answer struct {
	Answer string `json:"answer"`
	Error  *struct {
		Text string `json:"text"`
	} `json:"error"`
	QueryID string `json:"query_id"`
}

// ask asks and waits for the answer, which must have a text and no error.
func (l *load) ask(ctx context.Context, session, question string) error {
	began := time.Now()
	var a answer
	if err := l.system.Request(ctx, "POST", "/query?grade_wait=0s",
		map[string]any{"session_id": session, "query": question}, &a); err != nil {
		return err
	}
	if a.Error != nil || a.Answer == "" {
		return fmt.Errorf("question %q in session %s: no answer: %+v", question, session, a)
	}
	took := time.Since(began)
	l.questions.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies = append(l.latencies, took)
	return nil
}

// askAsync asks without waiting for the answer.
func (l *load) askAsync(ctx context.Context, session, question string) (id string, err error) {
	var a answer
	err = l.system.Request(ctx, "POST", "/query?wait=0", map[string]any{"session_id": session, "query": question}, &a)
	return a.QueryID, err
}

// askWithApproval asks for a call that needs the user, approves it and waits for the answer.
func (l *load) askWithApproval(ctx context.Context, session, question string) error {
	id, err := l.askAsync(ctx, session, question)
	if err != nil {
		return err
	}
	approved := false
	return poll(ctx, func() (bool, error) {
		var waiting struct {
			Approvals []struct {
				ID      string `json:"id"`
				QueryID string `json:"query_id"`
			} `json:"approvals"`
		}
		if !approved {
			if err := l.system.Request(ctx, "GET", "/approvals", nil, &waiting); err != nil {
				return false, err
			}
		}
		for _, w := range waiting.Approvals {
			if w.QueryID != id {
				continue
			}
			if err := l.system.Request(ctx, "POST", "/approvals/"+w.ID, map[string]any{"approve": true},
				&struct{}{}); err != nil {
				return false, err
			}
			approved = true
		}
		return l.answered(ctx, id)
	})
}

// cancel asks, cancels the question and waits until it has ended, whether the cancellation came in time or not.
func (l *load) cancel(ctx context.Context, session, question string) error {
	id, err := l.askAsync(ctx, session, question)
	if err != nil {
		return err
	}
	if err := l.system.Request(ctx, "DELETE", "/queries/"+id, nil, &struct{}{}); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) { return l.answered(ctx, id) })
}

// answered reports whether a question has ended, and counts it then.
func (l *load) answered(ctx context.Context, id string) (bool, error) {
	var a struct {
		State string `json:"state"`
	}
	if err := l.system.Request(ctx, "GET", "/queries/"+id, nil, &a); err != nil {
		return false, err
	}
	if a.State == "running" {
		return false, nil
	}
	l.questions.Add(1)
	return true, nil
}

// poll calls ready until it reports true or ctx ends.
func poll(ctx context.Context, ready func() (bool, error)) error {
	for {
		done, err := ready()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// takeLatencies returns the latencies since the last call.
func (l *load) takeLatencies() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.latencies
	l.latencies = nil
	return out
}
