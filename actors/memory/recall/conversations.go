package recall

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxSkipped is how many rows that a query does not admit, such as superseded ones, may stand between two
	// neighbours.
	maxSkipped = 8
	// maxGap is how far apart neighbours may have happened, where both times are known.
	maxGap = 24 * time.Hour
)

// conversations orders rows by their position in a conversation, to find the neighbours of a row. Trusted and untrusted
// rows of one id are apart: the author of an untrusted entry chooses its conversation and position, and so would lift
// entries of the user.
type conversations map[conversationKey]*conversation

type conversationKey struct {
	id      string
	trusted bool
}

// conversation is the rows of one conversation with a position, by position, then key.
type conversation struct {
	conversationKey
	turns []turn
}

type turn struct {
	position int
	key      uint64
}

func compareTurns(a, b turn) int {
	return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.key, b.key))
}

// add inserts a row and returns its conversation, nil for a row without an id or a position, which has no neighbours.
func (c conversations) add(key conversationKey, t turn) *conversation {
	if key.id == "" || t.position <= 0 {
		return nil
	}
	v := c[key]
	if v == nil {
		v = &conversation{conversationKey: key}
		c[key] = v
	}
	if at, ok := slices.BinarySearchFunc(v.turns, t, compareTurns); !ok {
		v.turns = slices.Insert(v.turns, at, t)
	}
	return v
}

// remove removes a row that add inserted. v may be nil.
func (c conversations) remove(v *conversation, t turn) {
	if v == nil {
		return
	}
	if at, ok := slices.BinarySearchFunc(v.turns, t, compareTurns); ok {
		v.turns = slices.Delete(v.turns, at, at+1)
	}
	if len(v.turns) == 0 {
		delete(c, v.conversationKey)
	}
}

// appendNeighbours appends the keys of the rows directly before and after a row of v that admit lets through, at most
// maxSkipped others between, to list. v may be nil. The relation is symmetric: a row is a neighbour of its neighbours.
func (v *conversation) appendNeighbours(list []uint64, t turn, admit func(key uint64) bool) []uint64 {
	if v == nil {
		return list
	}
	at, ok := slices.BinarySearchFunc(v.turns, t, compareTurns)
	for i := at - 1; i >= max(0, at-1-maxSkipped); i-- {
		if key := v.turns[i].key; admit(key) {
			list = append(list, key)
			break
		}
	}
	if ok {
		at++
	}
	for i := at; i <= min(len(v.turns)-1, at+maxSkipped); i++ {
		if key := v.turns[i].key; admit(key) {
			return append(list, key)
		}
	}
	return list
}
