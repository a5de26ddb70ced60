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

// start queues work. After close it does nothing.
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

// close waits for the running function and drops the queued ones.
func (b *background) close() {
	b.mu.Lock()
	if !b.closing {
		b.closing = true
		close(b.stop)
	}
	b.mu.Unlock()
	b.wait()
}
