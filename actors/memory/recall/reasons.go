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

// explained is the candidate's reasons with words for people. They are made for those rows only that somebody gets to see.
func (c *candidate) explained(said *said, now time.Time) []subjects.MemoryReason {
	out := make([]subjects.MemoryReason, len(c.reasons))
	for i, r := range c.reasons {
		r.Text = c.text(r.What, said, now)
		out[i] = r
	}
	return out
}

func (c *candidate) text(what string, said *said, now time.Time) string {
	g := c.rec.grades
	switch what {
	case whatName:
		return fmt.Sprintf("the name is near by %.2f", c.like.name)
	case whatDescription:
		return fmt.Sprintf("the description is near by %.2f", c.like.description)
	case whatWords:
		return said.text(c.like.found)
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
		if days := c.rec.days(now); days != 1 {
			return fmt.Sprintf("asked %d days ago", days)
		}
		return "asked yesterday"
	}
	return what
}
