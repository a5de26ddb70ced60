package actor

import (
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

func TestMailboxStartsWorkersOnDemand(t *testing.T) {
	t.Parallel()
	b := mailbox{size: 2, max: 3}
	var mu sync.Mutex
	var handled []string
	began, release := make(chan string), make(chan struct{})
	handle := func(m *nats.Msg) {
		began <- m.Subject
		<-release
		mu.Lock()
		defer mu.Unlock()
		handled = append(handled, m.Subject)
	}
	count := func() (workers, waiting int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.running, len(b.waiting)
	}
	if workers, _ := count(); workers != 0 {
		t.Fatalf("%d workers before the first message", workers)
	}
	for i := range 5 {
		if f := b.put(&nats.Msg{Subject: strconv.Itoa(i)}, handle); f != nil {
			t.Fatal(f)
		}
		if workers, waiting := count(); workers != min(i+1, 3) || waiting != max(0, i-2) {
			t.Fatalf("after %d messages: %d workers, %d waiting", i+1, workers, waiting)
		}
	}
	for range 3 {
		<-began
	}
	if f := b.put(&nats.Msg{Subject: "more"}, handle); f == nil || f.Code != subjects.CodeBusy {
		t.Errorf("a message for a full mailbox: %v", f)
	}
	release <- struct{}{}
	if next := <-began; next != "3" {
		t.Errorf("the message that waited longest is 3, the next one was %s", next)
	}
	release <- struct{}{}
	if next := <-began; next != "4" {
		t.Errorf("the last one is 4, the next one was %s", next)
	}
	for range 3 {
		release <- struct{}{}
	}
	b.workers.Wait()
	if workers, waiting := count(); workers != 0 || waiting != 0 || len(handled) != 5 {
		t.Errorf("when all is done: %d workers, %d waiting, handled %v", workers, waiting, handled)
	}
	b.close()
	if f := b.put(&nats.Msg{Subject: "late"}, handle); f == nil || f.Code != subjects.CodeUnavailable {
		t.Errorf("a message for a closed mailbox: %v", f)
	}
}

// Workers end and start while messages arrive: each message is handled once, by at most max workers at a time, and a
// mailbox that is closed meanwhile either rejects a message or has it handled.
func TestMailboxUnderLoad(t *testing.T) {
	t.Parallel()
	const senders, each = 8, 500
	for _, workers := range []int{1, 4} {
		b := mailbox{size: 16, max: workers}
		var mu sync.Mutex
		handled := map[string]int{}
		running, most, accepted := 0, 0, 0
		handle := func(m *nats.Msg) {
			mu.Lock()
			running++
			most = max(most, running)
			handled[m.Subject]++
			mu.Unlock()
			mu.Lock()
			running--
			mu.Unlock()
		}
		var wg sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				for i := range each {
					f := b.put(&nats.Msg{Subject: strconv.Itoa(s*each + i)}, handle)
					if f == nil {
						mu.Lock()
						accepted++
						mu.Unlock()
					}
					if s == 0 && i == each*3/4 {
						b.close()
					}
				}
			})
		}
		wg.Wait()
		b.workers.Wait()
		if len(handled) != accepted || accepted == 0 || most > workers || b.running != 0 || len(b.waiting) != 0 {
			t.Errorf("%d workers: %d accepted, %d handled, %d at once, %d workers and %d messages left", workers,
				accepted, len(handled), most, b.running, len(b.waiting))
		}
		for id, n := range handled {
			if n != 1 {
				t.Errorf("%d workers: message %s was handled %d times", workers, id, n)
			}
		}
	}
}
