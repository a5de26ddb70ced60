package recall

import (
	"fmt"
	"time"

	"conclave/subjects"
)

// Reasons that a row has its score, as [subjects.MemoryReason] names them.
const (
	whatWords      = "words"
	whatNeighbours = "neighbours"
	whatSpeaker    = "speaker"
	whatWhen       = "when"
	whatCritic     = "critic"
	whatPairwise   = "pairwise"
	whatReward     = "reward"
	whatAge        = "age"
	whatPinned     = "pinned"
	whatRerank     = "rerank"
)

// whatVector names the reason of a cosine by what its vector was made of.
var whatVector = [...]string{ofCorpus: "corpus", ofDescription: "description", ofName: "name"}

// explainReason returns the text of the reason named what for users; what itself when it has no text. The row must have
// the grades that the reason is about.
func (c *candidate) explainReason(what string, words *wordQuery, now time.Time) string {
	g := c.rec.grades
	switch what {
	case whatVector[ofCorpus]:
		return fmt.Sprintf("the text is near by %.2f", c.match.cosine)
	case whatVector[ofDescription], whatVector[ofName]:
		return fmt.Sprintf("the %s is near by %.2f", what, c.match.cosine)
	case whatNeighbours:
		return "next to a better match in the conversation"
	case whatSpeaker:
		return "said by " + c.rec.speaker.name
	case whatWhen:
		return "of " + c.rec.time().Format(time.DateOnly)
	case whatWords:
		return words.explain(c.match.found)
	case whatCritic:
		return fmt.Sprintf("critic gave %d of 5", g.Critic)
	case whatPairwise:
		switch g.Pairwise {
		case c.rec.respondent:
			return "the better of two answers"
		case subjects.Tie:
			return "as good as another answer"
		}
		return "another answer was better"
	case whatReward:
		if g.Rewards > 1 {
			return fmt.Sprintf("reward %+.2f, the mean of %d", g.Reward, g.Rewards)
		}
		return fmt.Sprintf("reward %+.2f", g.Reward)
	case whatAge:
		if days := c.rec.ageDays(now); days != 1 {
			return fmt.Sprintf("asked %d days ago", days)
		}
		return "asked yesterday"
	}
	return what
}
