package actor

import (
	"maps"
	"sync"
	"time"
)

// Shares divide a quota of the last day among the accounts that cause its use, so that none of them uses up the part of
// the others: what an account has used may not exceed what is left for all, divided by the weight of the use. An
// account alone gets half of the quota with weight 1, the next one half of the rest. It counts in memory, by hours, and
// forgets with the process; the limit of the stream behind it remains. The zero value admits nothing.
type Shares struct {
	Quota int64 // of one day

	mu    sync.Mutex
	hours map[int64]map[shareKey]int64 // use by hour since 1970
}

// shareKey is an account and the weight of a use: uses of another weight are counted apart.
type shareKey struct {
	account string
	weight  int64
}

// shareHours are the hours that count: a day, and the current one.
const shareHours = 25

// Admit counts a use of n by account, and reports false, without counting it, when the share is used up. weight must be
// positive.
func (s *Shares) Admit(account string, n, weight int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	hour, key := now.Unix()/3600, shareKey{account, weight}
	maps.DeleteFunc(s.hours, func(h int64, _ map[shareKey]int64) bool { return h <= hour-shareHours })
	own, left := n, s.Quota-n
	for _, used := range s.hours {
		own += used[key]
		for _, u := range used {
			left -= u
		}
	}
	if own > left/weight {
		return false
	}
	if s.hours == nil {
		s.hours = map[int64]map[shareKey]int64{}
	}
	if s.hours[hour] == nil {
		s.hours[hour] = map[shareKey]int64{}
	}
	s.hours[hour][key] += n
	return true
}
