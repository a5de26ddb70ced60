package policy

import (
	"sync"
	"testing"
)

// TestZeroActiveRulesDenyAll: without rules every call is denied.
func TestZeroActiveRulesDenyAll(t *testing.T) {
	var none *ActiveRules
	for name, b := range map[string]*ActiveRules{
		"nil": none, "zero value": {},
		"empty rules": NewActiveRules(Rules{}),
	} {
		if d := b.Load().Chain.Decide(t.Context(), newCall()); d.Allowed() || d.Denial().Rule != ruleEmptyChain {
			t.Errorf("%s: allowed %v, %+v", name, d.Allowed(), d.Denial())
		}
	}
}

// TestActiveRulesReplaceAtomically: a concurrent Load returns a manifest with the chain built from it.
func TestActiveRulesReplaceAtomically(t *testing.T) {
	rules := func(account string) Rules {
		return Rules{
			Manifest: Manifest{Accounts: map[string]string{account: "assistant"}},
			Chain:    Chain{passingLayer(account)},
		}
	}
	both := []Rules{rules("generator"), rules("committee")}
	b := NewActiveRules(both[0])
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := range 2000 {
				b.Replace(both[i%2])
			}
		})
		wg.Go(func() {
			for range 2000 {
				r := b.Load()
				if _, ok := r.Manifest.Accounts[r.Chain[0].Name()]; !ok {
					t.Errorf("the chain of %s with the manifest of another", r.Chain[0].Name())
					return
				}
			}
		})
	}
	wg.Wait()
}
