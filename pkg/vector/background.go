package vector

import "sync"

// background is work that nobody waits for, one piece at a time.
type background struct {
	mu      sync.Mutex
	idle    *sync.Cond
	busy    bool
	waiting []func()
	closing bool
	stop    chan struct{} // closed at the end: what takes long looks at it
}

func (b *background) init() {
	b.idle = sync.NewCond(&b.mu)
	b.stop = make(chan struct{})
}

// start does the work soon. After close nothing is done any more.
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

// stopped reports whether the end has come.
func (b *background) stopped() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// wait returns when there is nothing left to do.
func (b *background) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.busy {
		b.idle.Wait()
	}
}

// close lets what is under way end, and drops the rest.
func (b *background) close() {
	b.mu.Lock()
	if !b.closing {
		b.closing = true
		close(b.stop)
	}
	b.mu.Unlock()
	b.wait()
}
