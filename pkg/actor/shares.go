package actor

import (
	"maps"
	"sync"
	"time"
)

// Shares divide a quota of the last day among the accounts that cause its use, so that none of them uses up the part of
// the others: what an account has used may not exceed what is left for all, divided by the weight of the use. An
// account alone gets half of the quota with weight 1, the next one half of the rest. A question gets at most an eighth
// of what is left for its account in the same way. It counts in memory, by hours, and forgets with the process; the
// limit of the stream behind it remains. The zero value admits nothing.
type Shares struct {
	Quota int64 // of one day

	mu    sync.Mutex
	hours map[int64]hourUse // by hour since 1970
}

// hourUse is the use within an hour.
type hourUse struct {
	accounts  map[shareKey]int64
	questions map[shareKey]int64 // part of that of accounts
}

// shareKey is an account and the weight of a use: uses of another weight are counted apart.
type shareKey struct {
	account  string
	weight   int64
	question string // "" for all
}

const (
	// shareHours are the hours that count: a day, and the current one.
	shareHours = 25
	// questionWeight divides what is left for an account among its questions.
	questionWeight = 8
)

// Admit counts a use of n by account for a question, and reports false, without counting it, when the share of one of
// them is used up. weight must be positive; a use without a question has the share of the account.
func (s *Shares) Admit(account, question string, n, weight int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	hour, all, part := now.Unix()/3600, shareKey{account, weight, ""}, shareKey{account, weight, question}
	maps.DeleteFunc(s.hours, func(h int64, _ hourUse) bool { return h <= hour-shareHours })
	own, ofQuestion, left := n, n, s.Quota-n
	for _, used := range s.hours {
		own += used.accounts[all]
		ofQuestion += used.questions[part]
		for _, u := range used.accounts {
			left -= u
		}
	}
	leftOfAccount := left/weight - own
	if leftOfAccount < 0 || question != "" && ofQuestion > leftOfAccount/questionWeight {
		return false
	}
	if _, found := s.hours[hour]; !found {
		if s.hours == nil {
			s.hours = map[int64]hourUse{}
		}
		s.hours[hour] = hourUse{map[shareKey]int64{}, map[shareKey]int64{}}
	}
	s.hours[hour].accounts[all] += n
	if question != "" {
		s.hours[hour].questions[part] += n
	}
	return true
}
