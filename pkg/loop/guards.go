package loop

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"conclave/pkg/model"
)

// seed of the hashes by which calls and results are compared. They never leave the process.
var seed = maphash.MakeSeed()

// withDefaults fills in what is zero. A negative number means none: none of these for Nudges, Retries and Verbatim, and
// no bound for the rest. Most is bounded even so.
func (l Limits) withDefaults(window int) Limits {
	def := func(v *int, d, none int) {
		if *v == 0 {
			*v = d
		} else if *v < 0 {
			*v = none
		}
	}
	const unbounded = int(^uint(0) >> 2)
	def(&l.Steps, 5, unbounded)
	def(&l.Tokens, 0, 0)
	def(&l.Nudges, 2, 0)
	def(&l.Retries, 2, 0)
	def(&l.Repeats, 3, 0)
	def(&l.Predict, 2048, 0)
	def(&l.Answer, 4096, 0)
	def(&l.Most, 256<<10, 64<<20)
	def(&l.Verbatim, 3, 0)
	def(&l.Calls, 8, 0)
	share := 32 << 10
	if window > 0 {
		share = max(512, window/4*3) // a quarter of the tokens, at three bytes each
	}
	def(&l.Result, share, unbounded)
	dur := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
		*v = max(0, *v)
	}
	dur(&l.Wall, 10*time.Minute)
	dur(&l.Call, 2*time.Minute)
	return l
}

// guard looks at the bounds of the turn before each call. Beyond one of them the next reply must be the answer.
func (t *turn) guard() {
	if t.s.Forced || len(t.names) == 0 {
		return
	}
	used := t.s.Usage.Prompt + t.s.Usage.Output
	switch {
	case t.s.Step >= t.lim.Steps:
		t.force(NoteSteps, fmt.Sprintf("%s with tools %s used up; the answer was asked for without tools",
			count(t.lim.Steps, "step"), was(t.lim.Steps)))
	case t.lim.Tokens > 0 && used+t.nextCost() > t.lim.Tokens:
		t.force(NoteBudget, fmt.Sprintf("%d of %d tokens were used; the answer was asked for without tools", used, t.lim.Tokens))
	case t.lim.Wall > 0 && t.s.Step > 0 && t.lim.Wall-t.spentAt(t.now) < t.reserve():
		t.force(NoteWall, fmt.Sprintf("%s of %s were used; the answer was asked for without tools",
			t.spentAt(t.now).Round(time.Second), t.lim.Wall))
	}
}

// nextCost is about what the next prompt costs: as much as the last one.
func (t *turn) nextCost() int {
	sum := t.p.sysCost[0] + t.p.sumCost + t.p.toolCost
	for _, h := range t.p.turns {
		sum += h.cost
	}
	for _, c := range t.p.costs {
		sum += c
	}
	return sum
}

// reserve is the time that is kept for the answer.
func (t *turn) reserve() time.Duration {
	r := t.lim.Wall / 5
	if t.lim.Call > 0 {
		r = min(r, t.lim.Call)
	}
	return r
}

// force makes the next reply the answer.
func (t *turn) force(code, text string) {
	t.s.Forced = true
	t.note(code, text)
}

// retry reports whether another try is left, and takes it.
func (t *turn) retry(why string) bool {
	if t.s.Tries.Retries >= t.lim.Retries {
		return false
	}
	t.s.Tries.Retries++
	t.note(NoteRetried, fmt.Sprintf("%s; asked again (%d of %d)", why, t.s.Tries.Retries, t.lim.Retries))
	return true
}

// unreadable is a reply that is empty or holds a call that cannot be read. It is asked again with say, then without
// tools, then in the plainest words; after that the words are ours.
func (t *turn) unreadable(ctx context.Context, r reply, say string) error {
	t.interim(t.s.Step+1, r.words)
	t.think(r.thinking)
	if !t.s.Forced {
		why := "the reply was empty"
		switch {
		case r.unknown != "":
			t.note(NoteUnknown, "the model asked for "+clip(r.unknown, 64)+", which is not offered")
			why = "the reply named a tool that is not offered"
		case r.bad != "":
			why = r.bad
		case say == sayMalformed:
			why = "the reply could not be read"
		case say == sayDropped:
			why = "the reply was empty although the model wrote something: its call could not be read"
		}
		if t.retry(why) {
			t.setAside(r.words, say)
			return nil
		}
		t.setAside("", "")
		if t.s.Text && len(t.names) > 0 {
			t.goStatic()
		} else {
			t.force(NoteRetried, "no readable reply came; the answer was asked for without tools")
		}
		return nil
	}
	if !t.plain {
		t.plain = true
		t.setAside("", "")
		return nil
	}
	return t.ours(ctx)
}

// ours ends the turn with words of our own: what the tools returned, or that nothing came.
func (t *turn) ours(ctx context.Context) error {
	t.note(NoteEmpty, "the model gave no answer; these words are not the model's")
	var b strings.Builder
	for _, d := range t.s.Done {
		if d.Result.Fault != "" {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("The model gave no answer. This is what the tools returned:\n")
		}
		fmt.Fprintf(&b, "\n%s %s:\n%s\n", d.Call.Name, clip(string(d.Call.Arguments), 120),
			clip(strings.TrimSpace(d.Result.Text), 600))
	}
	if b.Len() == 0 {
		b.WriteString("The model gave no answer. Please ask again, perhaps in other words.")
	}
	return t.finish(ctx, strings.TrimSpace(b.String()), true)
}

// worked reports whether some call of this turn worked.
func (t *turn) worked() bool {
	for i := range t.s.Done {
		if t.s.Done[i].Result.Fault == "" {
			return true
		}
	}
	return false
}

// nudged asks again when the reply only says what it would do, or claims what did not happen.
func (t *turn) nudged(r reply) bool {
	if !r.offer || t.s.Tries.Nudges >= t.lim.Nudges {
		return false
	}
	say, why := "", ""
	switch {
	case announces(r.words):
		say, why = sayAnnounce, "the model said what it would do, but made no call"
	case !t.claimed && len(t.s.Done) == 0 && claims(r.words, t.names):
		t.claimed = true
		say, why = sayClaimed, "the model said that something was done, but no call was made"
	default:
		return false
	}
	t.s.Tries.Nudges++
	t.note(NoteNudged, fmt.Sprintf("%s; asked again (%d of %d)", why, t.s.Tries.Nudges, t.lim.Nudges))
	t.interim(t.s.Step+1, r.words)
	t.think(r.thinking)
	t.setAside(r.words, say)
	return true
}

// hedged deals with an answer that says it cannot know: one search of our own when no tool ran, or one more question
// when results are there. It reports whether the turn goes on.
func (t *turn) hedged(ctx context.Context, r reply) (bool, error) {
	search, reask := t.maySearch(), t.mayReask()
	if !search && !reask || !hedges(r.words) {
		return false, nil
	}
	t.interim(t.s.Step+1, r.words)
	t.think(r.thinking)
	if reask {
		t.s.Tries.Reask++
		t.note(NoteReasked, "the answer said it cannot know, although results are there; asked once more")
		t.setAside(r.words, sayUseResults)
		return true, nil
	}
	t.s.Tries.Search++
	t.note(NoteSearched, "the answer said it cannot know, and no tool had run; "+t.a.Hedge.Search+" was called for it")
	args := append(append([]byte(`{"query":`), quote(t.question())...), '}')
	call := found{Call: model.Call{Name: t.a.Hedge.Search, Arguments: args}, layer: LayerSafety}
	return true, t.accept(ctx, reply{calls: []found{call}})
}

// maySearch reports whether the one search of our own is left.
func (t *turn) maySearch() bool {
	return t.a.Hedge.Search != "" && t.names.has(t.a.Hedge.Search) && len(t.s.Done) == 0 && t.s.Tries.Search == 0 &&
		!t.s.Forced && !t.static
}

// mayReask reports whether the one more question is left.
func (t *turn) mayReask() bool {
	return t.a.Hedge.Reask && t.s.Tries.Reask == 0 && t.worked() && !t.has(NoteWall) && !t.has(NoteBudget)
}

// question is what the user asked, short enough to search for.
func (t *turn) question() string {
	for i := len(t.s.Messages) - 1; i >= 0; i-- {
		if m := &t.s.Messages[i]; m.Role == model.User {
			return firstRunes(strings.Join(strings.Fields(m.Content), " "), 400)
		}
	}
	return ""
}

// seen is how often a call came to the same result in a row.
type seen struct {
	call, result uint64
	times        int
}

// seen is what is known of a call; nil when it was not made yet.
func (t *turn) seen(call uint64) *seen {
	for i := range t.calls {
		if t.calls[i].call == call {
			return &t.calls[i]
		}
	}
	return nil
}

// callHash is the same for calls that ask for the same.
func callHash(c *model.Call) uint64 {
	return mix(maphash.String(seed, c.Name)) + same(seed, c.Arguments)
}

// remember counts a finished call; key is its hash, 0 when it is not known. One that did not run says nothing.
func (t *turn) remember(d *Done, key uint64) {
	if t.lim.Repeats <= 0 || refused(d.Result.Fault) {
		return
	}
	if key == 0 {
		key = callHash(&d.Call)
	}
	result := maphash.String(seed, d.Result.Text) + mix(maphash.String(seed, d.Result.Fault))
	was := t.seen(key)
	switch {
	case was == nil:
		t.calls = append(t.calls, seen{key, result, 1})
	case was.result == result:
		was.times++
	default:
		was.result, was.times = result, 1
	}
}

// repeated reports whether the i-th call of a reply would come to the same result too often. before are the calls ahead
// of it.
func (t *turn) repeated(c *model.Call, i int, before []model.Call) bool {
	if t.lim.Repeats <= 0 {
		return false
	}
	key := callHash(c)
	if i < len(t.keys) {
		t.keys[i] = key
	}
	n := 0
	if was := t.seen(key); was != nil {
		n = was.times
	}
	for i := range before {
		if before[i].Name == c.Name && callHash(&before[i]) == key {
			n++
		}
	}
	return n >= t.lim.Repeats-1
}

// stuck forces the answer when the model goes on repeating after it was refused.
func (t *turn) stuck() {
	if t.s.Forced {
		return
	}
	steps, last := 0, -1
	for i := range t.s.Done {
		if d := &t.s.Done[i]; d.Result.Fault == FaultRepeated && d.Step != last {
			steps, last = steps+1, d.Step
		}
	}
	if steps >= 2 {
		t.force(NoteRepeated, "the model went on repeating a call; the answer was asked for without tools")
	}
}
