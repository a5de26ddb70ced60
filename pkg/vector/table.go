package vector

import (
	"math/bits"
	"sync/atomic"
)

// place is the position of a row: its segment and its index there.
type place uint64

func placeOf(segment uint32, row int) place { return place(segment)<<32 | place(uint32(row)) }

func (p place) segment() uint32 { return uint32(p >> 32) }

func (p place) row() uint32 { return uint32(p) }

// table is a hash table from keys to places for one writer and lock-free readers: a slot gets its key, which never
// changes, before its place, and a table that is too full is replaced by a larger one.
type table struct {
	slots atomic.Pointer[[]slot]
	taken int // slots with a key, removed ones included; the writer's
	live  atomic.Int64
}

type slot struct {
	key   atomic.Uint64
	value atomic.Uint64 // 0 = free, 1 = removed, else the place plus 2
}

const (
	free      = 0
	removed   = 1
	firstSlot = 64 // slots of an empty table, a power of two
)

func newTable() *table {
	t := new(table)
	slots := make([]slot, firstSlot)
	t.slots.Store(&slots)
	return t
}

// search returns the slot of key, or the free one where it would be stored, and its value. slots must have a free slot
// and a length that is a power of two.
func search(slots []slot, key uint64) (s *slot, value uint64) {
	mask := uint64(len(slots) - 1)
	// Fibonacci hashing: keys are mostly sequential.
	for i := key * 0x9e3779b97f4a7c15 >> bits.LeadingZeros64(mask); ; i = (i + 1) & mask {
		s = &slots[i]
		if value = s.value.Load(); value == free || s.key.Load() == key {
			return s, value
		}
	}
}

// get returns the place of key.
func (t *table) get(key uint64) (place, bool) {
	_, v := search(*t.slots.Load(), key)
	return place(v - 2), v > removed
}

// put sets the place of key and grows the table when three quarters are taken. Only the writer may call it.
func (t *table) put(key uint64, at place) {
	s, v := search(*t.slots.Load(), key)
	if v == free {
		if slots := *t.slots.Load(); (t.taken+1)*4 > len(slots)*3 {
			t.grow()
			s, _ = search(*t.slots.Load(), key)
		}
		t.taken++
		s.key.Store(key)
	}
	if v <= removed {
		t.live.Add(1)
	}
	s.value.Store(uint64(at) + 2)
}

// remove deletes key. Only the writer may call it.
func (t *table) remove(key uint64) {
	if s, v := search(*t.slots.Load(), key); v > removed {
		s.value.Store(removed)
		t.live.Add(-1)
	}
}

// grow replaces the slots by a table that is at least half free, without the removed keys. Readers of the old slots
// still find the keys in them. Only the writer may call it.
func (t *table) grow() {
	old, size := *t.slots.Load(), firstSlot
	for size < int(t.live.Load()+1)*2 {
		size *= 2
	}
	slots := make([]slot, size)
	t.taken = 0
	for i := range old {
		if v := old[i].value.Load(); v > removed {
			s, _ := search(slots, old[i].key.Load())
			s.key.Store(old[i].key.Load())
			s.value.Store(v)
			t.taken++
		}
	}
	t.slots.Store(&slots)
}

func (t *table) bytes() int64 { return int64(len(*t.slots.Load())) * 16 }

// clear removes all keys. Only the writer may call it.
func (t *table) clear() {
	slots := make([]slot, firstSlot)
	t.slots.Store(&slots)
	t.taken = 0
	t.live.Store(0)
}
