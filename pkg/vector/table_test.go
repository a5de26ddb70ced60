package vector

import (
	"math/rand/v2"
	"sync"
	"testing"
)

func TestTableMatchesMap(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for name, key := range map[string]func() uint64{
		"counting up": func() func() uint64 {
			var n uint64
			return func() uint64 { n++; return n % 3000 }
		}(),
		"anywhere":        func() uint64 { return r.Uint64N(1000) * 0x123456789abcdef },
		"all in one slot": func() uint64 { return r.Uint64N(200) * 0xf1de83e19937733d }, // what undoes the spreading
		"the ends":        func() uint64 { return r.Uint64N(3) - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			table, model := newTable(), map[uint64]place{}
			for i := range 6000 {
				k := key()
				if i%3 == 0 {
					table.remove(k)
					delete(model, k)
				} else {
					table.put(k, place(i))
					model[k] = place(i)
				}
				k = key()
				want, ok := model[k]
				if got, there := table.get(k); there != ok || ok && got != want {
					t.Fatalf("step %d: key %d is at %d (%v), want %d (%v)", i, k, got, there, want, ok)
				}
			}
			for k, want := range model {
				if got, ok := table.get(k); !ok || got != want {
					t.Fatalf("key %d is at %d (%v), want %d", k, got, ok, want)
				}
			}
			if n := int(table.live.Load()); n != len(model) {
				t.Errorf("%d keys, want %d", n, len(model))
			}
			if most := int64(max(firstSlot, 6*3000) * 16); table.bytes() > most {
				t.Errorf("%d bytes for %d keys: removed ones stay", table.bytes(), len(model))
			}
		})
	}
}

// TestTableLookupsDuringGrowth: a key that stays is always where it was put, while others come and go.
func TestTableLookupsDuringGrowth(t *testing.T) {
	table := newTable()
	for k := range uint64(50) {
		table.put(k, place(k+7))
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				for k := range uint64(50) {
					if at, ok := table.get(k); !ok || at != place(k+7) {
						t.Errorf("key %d is at %d (%v)", k, at, ok)
						return
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for k := range uint64(30_000) {
		table.put(k+100, 1)
		if k%2 == 0 {
			table.remove(k + 50)
		}
	}
	close(done)
	readers.Wait()
}
