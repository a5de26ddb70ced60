package model

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Account is what one account has asked of one model since the start.
type Account struct {
	Model, Account             string
	Calls, Failed              int
	PromptTokens, OutputTokens int
	Waited                     time.Duration // for their turn
	Worked                     time.Duration // from their turn to the end
}

// books add up calls.
type books struct {
	mu  sync.Mutex
	all map[[2]string]*Account // by model and account: both are bounded, by the configuration and by what servers have
}

// entry is one call. A call that never had its turn has no time of entering.
type entry struct {
	begun, entered, ended time.Time
	prompt, output        int
	failed                bool
}

func (b *books) add(model, account string, e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[[2]string]*Account{}
	}
	a := b.all[[2]string{model, account}]
	if a == nil {
		a = &Account{Model: model, Account: account}
		b.all[[2]string{model, account}] = a
	}
	a.Calls++
	if e.failed {
		a.Failed++
	}
	a.PromptTokens += e.prompt
	a.OutputTokens += e.output
	if e.entered.IsZero() {
		e.entered = e.ended
	}
	a.Waited += e.entered.Sub(e.begun)
	a.Worked += e.ended.Sub(e.entered)
}

// Accounts are the sums by model and account, in this order.
func (m *Model) Accounts() []Account {
	m.books.mu.Lock()
	defer m.books.mu.Unlock()
	out := make([]Account, 0, len(m.books.all))
	for _, a := range m.books.all {
		out = append(out, *a)
	}
	slices.SortFunc(out, func(a, b Account) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Account, b.Account))
	})
	return out
}
