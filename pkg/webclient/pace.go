package webclient

import (
	"context"
	"sync"
	"time"
)

// maxPacedHosts is how many hosts are tracked; those idle longest are evicted first.
const maxPacedHosts = 1024

// Pace limits the request rate per host with a token bucket.
type Pace struct {
	every time.Duration
	burst int

	mu     sync.Mutex
	fullAt map[string]time.Time // when the host's bucket is full again
}

// NewPace allows burst requests at once and one more after every interval.
func NewPace(every time.Duration, burst int) *Pace {
	return &Pace{every: every, burst: max(burst, 1), fullAt: map[string]time.Time{}}
}

// Reserve takes the next token for host and returns how long the caller must wait for it; it does not wait itself. ok
// is false, and no token is taken, when the wait exceeds most.
func (p *Pace) Reserve(host string, now time.Time, most time.Duration) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full, known := p.fullAt[host]
	if !known || full.Before(now) {
		full = now
	}
	// The bucket holds burst turns; it is short of one for every interval until it is full.
	wait = max(full.Add(p.every).Sub(now)-time.Duration(p.burst)*p.every, 0)
	if wait > most {
		return wait, false
	}
	if !known && len(p.fullAt) >= maxPacedHosts {
		p.evictHosts(now)
	}
	p.fullAt[host] = full.Add(p.every)
	return wait, true
}

// evictHosts drops the hosts whose bucket is full, and when that is not enough the one that is full soonest. The caller
// holds mu.
func (p *Pace) evictHosts(now time.Time) {
	var first string
	for h, full := range p.fullAt {
		if !full.After(now) {
			delete(p.fullAt, h)
		} else if first == "" || full.Before(p.fullAt[first]) {
			first = h
		}
	}
	if len(p.fullAt) >= maxPacedHosts {
		delete(p.fullAt, first)
	}
}

// Wait waits for a token of host. It fails with ErrBusy at once, and takes no token, when the deadline of ctx is too
// near; when ctx ends during the wait, the token is used up. Without a deadline it waits as long as needed.
func (p *Pace) Wait(ctx context.Context, host string, now time.Time) error {
	most := time.Duration(1<<63 - 1)
	if d, ok := ctx.Deadline(); ok {
		most = time.Until(d)
	}
	wait, ok := p.Reserve(host, now, most)
	if !ok {
		return ErrBusy
	}
	if wait == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
