package undo

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxMergeBytes = 4 << 20
	maxEdits      = 1000 // changed lines between two texts that are merged
)

// hunk is a difference between two texts: the lines from to to of the first are replaced by lines.
type hunk struct {
	from, to int
	lines    []string
}

// isText reports whether data can be merged and shown by lines.
func isText(data []byte) bool {
	return len(data) <= maxMergeBytes && utf8.Valid(data) && !slices.Contains(data, 0)
}

// mergeText applies the difference from base to ours to theirs. It reports false when both changed the same lines, and
// when equal lines leave it open where a change belongs: it never guesses.
func mergeText(base, ours, theirs []byte) ([]byte, bool) {
	if !isText(base) || !isText(ours) || !isText(theirs) {
		return nil, false
	}
	b := splitLines(base)
	mine, ok1 := diffLines(b, splitLines(ours))
	other, ok2 := diffLines(b, splitLines(theirs))
	if !ok1 || !ok2 {
		return nil, false
	}
	return joinHunks(b, mine, other)
}

// splitLines returns the lines of a text with their ends.
func splitLines(data []byte) []string {
	lines := strings.SplitAfter(string(data), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// diffLines returns the shortest difference from a to b by the algorithm of Myers, false when it has more than maxEdits
// lines.
func diffLines(a, b []string) ([]hunk, bool) {
	most := min(len(a)+len(b), maxEdits)
	reach := map[int]int{1: 0} // by diagonal x-y, the furthest x
	var trace []map[int]int
	for d := 0; d <= most; d++ {
		next := map[int]int{}
		for k := -d; k <= d; k += 2 {
			x := reach[k-1] + 1
			if k == -d || k != d && reach[k-1] < reach[k+1] {
				x = reach[k+1]
			}
			for x < len(a) && x-k < len(b) && a[x] == b[x-k] {
				x++
			}
			next[k] = x
			if x >= len(a) && x-k >= len(b) {
				return backtrack(a, b, append(trace, reach)), true
			}
		}
		trace = append(trace, reach)
		for k, x := range reach {
			if _, ok := next[k]; !ok {
				next[k] = x
			}
		}
		reach = next
	}
	return nil, false
}

// backtrack returns the hunks of the path that diffLines found. trace has what it reached before each edit.
func backtrack(a, b []string, trace []map[int]int) (out []hunk) {
	x, y := len(a), len(b)
	for d := len(trace) - 1; d > 0; d-- {
		reach, k := trace[d], x-y
		isAddition := k == -d || k != d && reach[k-1] < reach[k+1]
		from := k - 1
		if isAddition {
			from = k + 1
		}
		x, y = reach[from], reach[from]-from
		h := hunk{from: x, to: x + 1}
		if isAddition {
			h = hunk{from: x, to: x, lines: []string{b[y]}}
		}
		if n := len(out) - 1; n >= 0 && out[n].from == h.to {
			out[n].from, out[n].lines = h.from, append(h.lines, out[n].lines...)
			continue
		}
		out = append(out, h)
	}
	slices.Reverse(out)
	return out
}

// isAddition reports whether h only adds lines.
func (h hunk) isAddition() bool { return h.from == h.to }

// slide moves the hunk number i of a difference, if it only adds or only removes lines, as far as equal lines permit,
// forward (by 1) or backward (by -1). The difference stays the same.
func slide(base []string, hunks []hunk, i, by int) hunk {
	h := hunks[i]
	if h.isAddition() == (len(h.lines) == 0) {
		return h
	}
	low, high := 0, len(base)
	if i > 0 {
		low = hunks[i-1].to
	}
	if i+1 < len(hunks) {
		high = hunks[i+1].from
	}
	moved := slices.Clone(h.lines)
	if len(moved) == 0 {
		moved = slices.Clone(base[h.from:h.to])
	}
	for {
		last := len(moved) - 1
		switch {
		case by > 0 && h.to < high && base[h.to] == moved[0]:
			moved = append(moved[1:], moved[0])
		case by < 0 && h.from > low && base[h.from-1] == moved[last]:
			moved = append([]string{moved[last]}, moved[:last]...)
		default:
			if len(h.lines) > 0 {
				h.lines = moved
			}
			return h
		}
		h.from, h.to = h.from+by, h.to+by
	}
}

// conflicts reports whether two hunks touch the same lines, or add lines at the same place. A hunk may add lines at the
// edge of what the other one removes.
func (h hunk) conflicts(o hunk) bool {
	from, to := max(h.from, o.from), min(h.to, o.to)
	switch {
	case h.isAddition() && o.isAddition():
		return from == to
	case h.isAddition():
		return o.from < h.from && h.from < o.to
	case o.isAddition():
		return h.from < o.from && o.from < h.to
	}
	return from < to
}

// widen returns the lines that a hunk may mean, because equal lines permit to slide it.
func widen(base []string, hunks []hunk, i int) hunk {
	return hunk{from: slide(base, hunks, i, -1).from, to: slide(base, hunks, i, 1).to}
}

// joinHunks applies two differences to base, false when a hunk of one may conflict with one of the other.
func joinHunks(base []string, mine, other []hunk) ([]byte, bool) {
	all := slices.Clone(mine)
	for i := range other {
		h, ok := placeHunk(base, mine, other, i)
		if !ok {
			return nil, false
		}
		all = append(all, h)
	}
	slices.SortStableFunc(all, func(x, y hunk) int {
		return cmp.Or(x.from-y.from, x.to-y.to) // what is added before a line comes before the removal of it
	})
	var text strings.Builder
	at := 0
	for _, h := range all {
		if h.from < at {
			return nil, false
		}
		text.WriteString(strings.Join(base[at:h.from], ""))
		text.WriteString(strings.Join(h.lines, ""))
		at = h.to
	}
	text.WriteString(strings.Join(base[at:], ""))
	return []byte(text.String()), true
}

// placeHunk returns the hunk number i of other where it conflicts with none of mine. Lines that are added are slid to
// the edge of what mine removes, unless there is a choice.
func placeHunk(base []string, mine, other []hunk, i int) (hunk, bool) {
	conflicts := func(h hunk) bool {
		for j := range mine {
			if h.conflicts(widen(base, mine, j)) {
				return true
			}
		}
		return false
	}
	if !other[i].isAddition() {
		return other[i], !conflicts(widen(base, other, i))
	}
	up, down := slide(base, other, i, -1), slide(base, other, i, 1)
	for j := range mine {
		if m := widen(base, mine, j); up.from <= m.from && m.to <= down.from && up.from < down.from {
			return hunk{}, false
		}
	}
	if conflicts(down) {
		return up, !conflicts(up)
	}
	return down, true
}
