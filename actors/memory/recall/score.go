package recall

import (
	"math"
	"time"

	"conclave/pkg/date"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Weights are the weights of scoring.
//
// The score of a row is the best cosine of its vectors plus what its words, its neighbours, its speaker and its time
// add, plus shifts by grades, pins and age. Shifts reorder rows of about equal similarity and cannot lift an unrelated
// row above a related one: together they never exceed Bound.
type Weights struct {
	// Hashed is the part of a cosine and of When that counts when [Options.Hashed] is set, more than 0; otherwise all
	// of them counts.
	Hashed float64 `yaml:"hashed"`
	// Words is what all words of the query together add to a row that has them. A row that has some gets its share.
	Words float64 `yaml:"words"`
	// Alone is what all words of the query together stand for in place of a cosine, where there are no vectors to
	// compare. It puts rows whose vectors have not come beside the others: about as near as a good answer is.
	Alone float64 `yaml:"alone"`
	// Neighbours is how far a row is lifted towards the better of its neighbours in the conversation, as a part of the
	// way. A row never gets above its neighbour by that.
	Neighbours float64 `yaml:"neighbours"`
	Speaker    float64 `yaml:"speaker"` // for a row whose speaker the query names
	// for a row of a time that the query names, falling to 0 over a week outside of it
	When float64 `yaml:"when"`

	Critic   float64 `yaml:"critic"`   // up to this for the grade 5, down to this for 1, nothing for 3
	Pairwise float64 `yaml:"pairwise"` // for the better of two answers, against the other
	Reward   float64 `yaml:"reward"`   // for a mean reward of 1, against one of -1
	// Age is what an answer loses in the end. It has lost half of it after HalfLife. Only engrams that are not pinned
	// age: facts and documents do not.
	Age      float64       `yaml:"age"`
	HalfLife time.Duration `yaml:"half_life"`
	Pinned   float64       `yaml:"pinned"`
	Bound    float64       `yaml:"bound"` // of all shifts together

	cosine float64 // what a cosine of 1 counts; set by [New]
}

// DefaultWeights are the weights of a [Recall] without any.
func DefaultWeights() Weights {
	return Weights{
		Hashed: 0.2, Words: 0.8, Alone: 0.7, Neighbours: 0.5, Speaker: 0.1, When: 0.1,
		Critic: 0.05, Pairwise: 0.03, Reward: 0.05, Age: 0.03, HalfLife: 90 * 24 * time.Hour, Pinned: 0.05, Bound: 0.1,
	}
}

// OrDefault returns w, or [DefaultWeights] when all of w are zero.
func (w Weights) OrDefault() Weights {
	if w == (Weights{}) {
		return DefaultWeights()
	}
	return w
}

// Problems returns what is wrong with w by the name of the setting: each weight is between 0 and 1, hashed more than 0,
// and the half-life between an hour and a hundred years.
func (w Weights) Problems() (out strict.Problems) {
	weights := map[string]float64{
		"hashed": w.Hashed, "words": w.Words, "alone": w.Alone, "neighbours": w.Neighbours, "speaker": w.Speaker,
		"when": w.When, "critic": w.Critic, "pairwise": w.Pairwise,
		"reward": w.Reward, "age": w.Age, "pinned": w.Pinned, "bound": w.Bound,
	}
	for _, name := range strict.SortedKeys(weights) {
		if v := weights[name]; !(v >= 0 && v <= 1) {
			out.Add(name, "%v is not between 0 and 1", v)
		}
	}
	if w.Hashed == 0 {
		out.Add("hashed", "must be more than 0")
	}
	out.CheckDuration("half_life", w.HalfLife, time.Hour, 100*365*day)
	return out
}

// match is how a row matches the query: the cosine of its best vector and its share of the words.
type match struct {
	vectors bool    // cosine is known
	cosine  float32 // of the best vector
	best    vectorOf
	share   float32 // of the query's words that the row has
	found   uint32  // which of them
}

// vectorOf is what a vector was made of.
type vectorOf uint8

const (
	ofCorpus vectorOf = iota
	ofDescription
	ofName
)

// similarity returns how near a row is, between -1 and 1: the best cosine, or what the words stand for without one.
func (w Weights) similarity(m match) float64 {
	if m.vectors {
		return float64(m.cosine)
	}
	return w.Alone * float64(m.share)
}

// base returns what a row has by itself: similarity and words.
func (w Weights) base(m match) float64 {
	if m.vectors {
		return w.cosine*float64(m.cosine) + w.Words*float64(m.share)
	}
	return (w.Alone + w.Words) * float64(m.share)
}

// appendBase appends the parts of the base to an empty list. A row without vectors that shares no word gets none.
func (w Weights) appendBase(to []subjects.MemoryReason, m match) []subjects.MemoryReason {
	words := w.Words * float64(m.share)
	if m.vectors {
		to = append(to, subjects.MemoryReason{What: whatVector[m.best], Value: w.cosine * float64(m.cosine)})
	} else {
		words += w.Alone * float64(m.share)
	}
	if m.share > 0 {
		to = append(to, subjects.MemoryReason{What: whatWords, Value: words})
	}
	return to
}

// question is what a query asks for beside its words and its vector.
type question struct {
	speakers map[*speaker]bool
	dates    []date.Range
}

const (
	day = 24 * time.Hour
	// dateSlack is how far outside of a range a time still counts: people tell of things some days later.
	dateSlack = 7 * day
)

// rateCloseness returns 1 for a time within one of the ranges, falling to 0 over dateSlack outside of them.
func rateCloseness(ranges []date.Range, at time.Time) (most float64) {
	for _, r := range ranges {
		gap := max(r.From.Sub(at), at.Sub(r.Until), 0)
		most = max(most, 1-float64(gap)/float64(dateSlack))
	}
	return most
}

// appendContext appends what the speaker and the time of a row add. A row whose time is not known counts by when it was
// stored.
func (w Weights) appendContext(to []subjects.MemoryReason, rec *record, q question) []subjects.MemoryReason {
	if rec.speaker != nil && q.speakers[rec.speaker] {
		to = append(to, subjects.MemoryReason{What: whatSpeaker, Value: w.Speaker})
	}
	if len(q.dates) > 0 {
		if near := rateCloseness(q.dates, rec.time()); near > 0 {
			to = append(to, subjects.MemoryReason{What: whatWhen, Value: w.When * near})
		}
	}
	return to
}

// appendShifts appends what moves a row up or down beside its similarity: grades, age and pins, scaled down together
// when their sum exceeds Bound. Only engrams that are not pinned age, by whole days. A row without any of these gets
// none.
func (w Weights) appendShifts(to []subjects.MemoryReason, rec *record, now time.Time) []subjects.MemoryReason {
	from := len(to)
	add := func(what string, value float64) { to = append(to, subjects.MemoryReason{What: what, Value: value}) }
	if g := rec.grades; g != nil {
		if g.Critic > 0 {
			add(whatCritic, w.Critic*float64(g.Critic-3)/2)
		}
		if who := rec.respondent; g.Pairwise != "" && who != "" {
			switch g.Pairwise {
			case who:
				add(whatPairwise, w.Pairwise)
			case subjects.Tie:
				add(whatPairwise, 0)
			default:
				add(whatPairwise, -w.Pairwise)
			}
		}
		if g.Rewards > 0 || g.Reward != 0 {
			add(whatReward, w.Reward*g.Reward)
		}
	}
	switch days := rec.ageDays(now); {
	case rec.pinned:
		add(whatPinned, w.Pinned)
	case rec.kind == subjects.KindEngram && days > 0 && w.Age > 0:
		add(whatAge, -w.Age*(1-math.Exp2(-float64(days)*float64(24*time.Hour)/float64(w.HalfLife))))
	}
	if sum := math.Abs(sumReasons(to[from:])); sum > w.Bound { // each gives way in proportion
		for i := range to[from:] {
			to[from+i].Value *= w.Bound / sum
		}
	}
	return to
}

// ageDays returns the age of a row in days, never negative.
func (r *record) ageDays(now time.Time) int {
	return max(0, int(now.Sub(r.created)/day))
}

// sumReasons returns the sum of the values.
func sumReasons(reasons []subjects.MemoryReason) (sum float64) {
	for _, r := range reasons {
		sum += r.Value
	}
	return sum
}
