package recall

import (
	"errors"
	"fmt"
	"math"
	"time"

	"conclave/subjects"
)

// Weights are the weights of scoring. Similarity is between -1 and 1; shifts are added to it.
//
// Shifts reorder rows of about equal similarity and cannot lift an unrelated row above a related one: together they never
// exceed Bound, so two rows whose similarity differs by more than twice that keep their order.
type Weights struct {
	// Name and Description are how much of the similarity the two cosines are. Only their proportion counts.
	Name, Description float64
	// Words is how far a row that has all words of the query is lifted, as a part of the way from where it is to 1. A row
	// that has some is lifted by its share.
	Words float64
	// Alone is what all words of the query together are worth where there are no vectors to compare. It puts rows whose
	// vectors have not come beside the others: about as near as a good answer is.
	Alone float64

	Critic   float64 // up to this for the grade 5, down to this for 1, nothing for 3
	Pairwise float64 // for the better of two answers, against the other
	Reward   float64 // for a mean reward of 1, against one of -1
	// Age is what an answer loses in the end. It has lost half of it after HalfLife. Only engrams that are not pinned age:
	// facts and documents do not.
	Age      float64
	HalfLife time.Duration
	Pinned   float64
	Bound    float64 // of all shifts together
}

// DefaultWeights are the weights of a [Recall] without any. With cosines of text models, the answers to a question lie about
// 0.1 apart and unrelated rows about 0.3 below.
func DefaultWeights() Weights {
	return Weights{
		Name: 0.4, Description: 0.6, Words: 0.15, Alone: 0.7,
		Critic: 0.05, Pairwise: 0.03, Reward: 0.05, Age: 0.03, HalfLife: 90 * 24 * time.Hour, Pinned: 0.05, Bound: 0.1,
	}
}

// validate rejects weights outside 0 to 1 and NaN, Name and Description both 0, a negative half-life, and an Age without a
// half-life.
func (w Weights) validate() error {
	for _, v := range []float64{w.Name, w.Description, w.Words, w.Alone, w.Critic, w.Pairwise, w.Reward, w.Age, w.Pinned, w.Bound} {
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("a weight of %v: weights are between 0 and 1", v)
		}
	}
	switch {
	case w.Name+w.Description == 0:
		return errors.New("neither name nor description has a weight: nothing would be similar")
	case w.HalfLife < 0 || w.HalfLife == 0 && w.Age > 0:
		return errors.New("a row that ages needs a half-life")
	}
	return nil
}

// likeness is what of a row was compared with the query.
type likeness struct {
	vectors           bool // the next two are known
	name, description float32
	share             float64 // of the query's words that the row has
	found             uint32  // which of them
}

// appendSimilarity appends the parts of the similarity to an empty list. described is false in the first stage, where only the
// name is compared and counts in full. Without vectors only words count; a row that shares none gets no reason.
func (w Weights) appendSimilarity(to []subjects.MemoryReason, l likeness, described bool) []subjects.MemoryReason {
	words := w.Alone * l.share
	if l.vectors {
		name, description := w.Name/(w.Name+w.Description), w.Description/(w.Name+w.Description)
		if !described {
			name, description = 1, 0
		}
		if name > 0 {
			to = append(to, subjects.MemoryReason{What: whatName, Value: name * float64(l.name)})
		}
		if description > 0 {
			to = append(to, subjects.MemoryReason{What: whatDescription, Value: description * float64(l.description)})
		}
		words = w.Words * l.share * (1 - sumReasons(to)) // what is near already is not lifted much
	}
	if l.share > 0 {
		to = append(to, subjects.MemoryReason{What: whatWords, Value: words})
	}
	return to
}

// appendShifts appends what moves a row up or down beside its similarity: grades, age and pins, scaled down together when their
// sum exceeds Bound. Only engrams that are not pinned age, by whole days. A row without any of these gets none.
func (w Weights) appendShifts(to []subjects.MemoryReason, rec *record, now time.Time) []subjects.MemoryReason {
	from := len(to)
	add := func(what string, value float64) { to = append(to, subjects.MemoryReason{What: what, Value: value}) }
	if g := rec.grades; g != nil {
		if g.critic > 0 {
			add(whatCritic, w.Critic*float64(g.critic-3)/2)
		}
		if who := rec.respondent(); g.pairwise != "" && who != "" {
			switch g.pairwise {
			case who:
				add(whatPairwise, w.Pairwise)
			case tie:
				add(whatPairwise, 0)
			default:
				add(whatPairwise, -w.Pairwise)
			}
		}
		if g.rewards > 0 || g.reward != 0 {
			add(whatReward, w.Reward*g.reward)
		}
	}
	switch days := rec.ageDays(now); {
	case rec.pinned:
		add(whatPinned, w.Pinned)
	case rec.labels.kind == subjects.KindEngram && days > 0 && w.Age > 0:
		add(whatAge, -w.Age*(1-math.Exp2(-float64(days)*float64(24*time.Hour)/float64(w.HalfLife))))
	}
	if sum := math.Abs(sumReasons(to[from:])); sum > w.Bound { // each gives way in proportion
		for i := range to[from:] {
			to[from+i].Value *= w.Bound / sum
		}
	}
	return to
}

// tie is the winner of a comparison without one.
const tie = "tie"

// ageDays returns the age of a row in days, never negative.
func (r *record) ageDays(now time.Time) int {
	return max(0, int(now.Sub(time.UnixMicro(r.created))/(24*time.Hour)))
}

// sumReasons returns the sum of the values.
func sumReasons(reasons []subjects.MemoryReason) (sum float64) {
	for _, r := range reasons {
		sum += r.Value
	}
	return sum
}
