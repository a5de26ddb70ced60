package recall

import (
	"fmt"
	"time"

	"conclave/subjects"
)

// Reasons that a row has its score, as [subjects.MemoryReason] names them.
const (
	whatName        = "name"
	whatDescription = "description"
	whatWords       = "words"
	whatCritic      = "critic"
	whatPairwise    = "pairwise"
	whatReward      = "reward"
	whatAge         = "age"
	whatPinned      = "pinned"
	whatRerank      = "rerank"
)

// explainReasons returns a copy of the reasons with texts for users. Only rows that are shown get them. said is the query of the
// search.
func (c *candidate) explainReasons(said *wordQuery, now time.Time) []subjects.MemoryReason {
	out := make([]subjects.MemoryReason, len(c.reasons))
	for i, r := range c.reasons {
		r.Text = c.explainReason(r.What, said, now)
		out[i] = r
	}
	return out
}

// explainReason returns the text of the reason named what for users; what itself when it has no text. The row must have the
// grades that the reason is about.
func (c *candidate) explainReason(what string, said *wordQuery, now time.Time) string {
	g := c.rec.grades
	switch what {
	case whatName:
		return fmt.Sprintf("the name is near by %.2f", c.likeness.name)
	case whatDescription:
		return fmt.Sprintf("the description is near by %.2f", c.likeness.description)
	case whatWords:
		return said.explain(c.likeness.found)
	case whatCritic:
		return fmt.Sprintf("critic gave %d of 5", g.critic)
	case whatPairwise:
		switch g.pairwise {
		case c.rec.respondent():
			return "the better of two answers"
		case tie:
			return "as good as another answer"
		}
		return "another answer was better"
	case whatReward:
		if g.rewards > 1 {
			return fmt.Sprintf("reward %+.2f, the mean of %d", g.reward, g.rewards)
		}
		return fmt.Sprintf("reward %+.2f", g.reward)
	case whatAge:
		if days := c.rec.ageDays(now); days != 1 {
			return fmt.Sprintf("asked %d days ago", days)
		}
		return "asked yesterday"
	}
	return what
}
