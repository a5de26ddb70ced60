package vector

import "sync"

// background runs queued work in one goroutine, one function at a time.
type background struct {
	mu      sync.Mutex
	idle    *sync.Cond
	busy    bool
	waiting []func()
	closing bool
	stop    chan struct{} // closed by close; long work polls it with stopped
}

func (b *background) init() {
	b.idle = sync.NewCond(&b.mu)
	b.stop = make(chan struct{})
}

// start queues work, which runs after the work queued before it, one at a time. It does not wait. After close it does
// nothing.
func (b *background) start(work func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return
	}
	b.waiting = append(b.waiting, work)
	if !b.busy {
		b.busy = true
		go b.run()
	}
}

// run works off the queue until it is empty or close was called. At most one run is active; start sets busy for it.
func (b *background) run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.waiting) > 0 && !b.closing {
		work := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.mu.Unlock()
		work()
		b.mu.Lock()
	}
	b.busy = false
	b.idle.Broadcast()
}

// stopped reports whether close was called.
func (b *background) stopped() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// wait returns when the queue is empty.
func (b *background) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.busy {
		b.idle.Wait()
	}
}

// close waits for the running function, which [background.stopped] tells to end, and drops the queued ones. It is
// idempotent. The caller must not hold a lock that the function needs.
func (b *background) close() {
	b.mu.Lock()
	if !b.closing {
		b.closing = true
		close(b.stop)
	}
	b.mu.Unlock()
	b.wait()
}
