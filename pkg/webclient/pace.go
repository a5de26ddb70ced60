package webclient

import (
	"context"
	"sync"
	"time"
)

// maxPaced is how many hosts are remembered; those that were quiet longest are forgotten first.
const maxPaced = 1024

// Pace keeps requests to one host apart: so many at once, then one every so often.
type Pace struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	next map[string]time.Time // when the host's bucket is full again
}

// NewPace allows burst requests at once and one more after every.
func NewPace(every time.Duration, burst int) *Pace {
	return &Pace{every: every, burst: max(burst, 1), next: map[string]time.Time{}}
}

// Reserve takes the next turn for host and says how long until it comes. It takes none when that is longer than most.
func (p *Pace) Reserve(host string, now time.Time, most time.Duration) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full, known := p.next[host]
	if !known || full.Before(now) {
		full = now
	}
	// The bucket holds burst turns; it is short of one for every interval until it is full.
	wait = max(full.Add(p.every).Sub(now)-time.Duration(p.burst)*p.every, 0)
	if wait > most {
		return wait, false
	}
	if !known && len(p.next) >= maxPaced {
		p.forget(now)
	}
	p.next[host] = full.Add(p.every)
	return wait, true
}

// forget drops the hosts whose bucket is full, and when there are none the one that is full soonest.
func (p *Pace) forget(now time.Time) {
	var first string
	for h, full := range p.next {
		if !full.After(now) {
			delete(p.next, h)
		} else if first == "" || full.Before(p.next[first]) {
			first = h
		}
	}
	if len(p.next) >= maxPaced {
		delete(p.next, first)
	}
}

// Wait waits for the host's turn, as long as ctx has time for it.
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
