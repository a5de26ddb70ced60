package subjects

import "strings"

// Critique is a grade, or the reason why there is none.
type Critique struct {
	SessionID    string  `json:"session_id"`
	QueryID      string  `json:"query_id"`
	RespondentID string  `json:"respondent_id"`     // the account that answered, or [PersonaRespondent]
	Persona      string  `json:"persona,omitempty"` // a deliberation of this persona was graded, not an answer
	Round        int     `json:"round,omitempty"`   // of the deliberation
	Score        int     `json:"score"`             // 1 to 5, 0 = ungraded
	Feedback     string  `json:"feedback"`
	Rubric       string  `json:"rubric"` // plain, search, memory, task, persona
	Model        string  `json:"model"`
	SelfGraded   bool    `json:"self_graded,omitempty"` // by the model that answered: see [GradedByItself]
	Ungraded     string  `json:"ungraded,omitempty"`    // why there is no grade
	Notice       string  `json:"notice,omitempty"`      // why another model than the critic's own judged
	Claims       []Claim `json:"claims,omitempty"`      // only in critiques that earlier versions stored
	Retry        bool    `json:"retry,omitempty"`       // the grade is low enough to offer a retry
	Labels       *Labels `json:"labels,omitempty"`      // of the answer: feedback on untrusted content may quote it
	Millis       int64   `json:"ms,omitempty"`
}

// GradedByItself is said with every grade that the model of the answer gave itself. The feedback that memory stores
// begins with it.
const GradedByItself = "graded by itself"

// IsSelfGraded reports whether a stored grade is one that the model of the answer gave itself.
func (g Grades) IsSelfGraded() bool { return strings.HasPrefix(g.Feedback, GradedByItself) }

// Rubrics, chosen by the tool calls of the turn.
const (
	RubricPlain  = "plain"
	RubricSearch = "search"
	RubricMemory = "memory"
	RubricTask   = "task"

	RubricPersona = "persona" // the persona's own
)

// Claim is an action that an answer reports although no tool call did it, in critiques that earlier versions stored.
type Claim struct {
	Said  string   `json:"said"`  // quoted from the answer
	Needs []string `json:"needs"` // the tools any of which does it
}

// Pairwise is the comparison of two answers to one question.
type Pairwise struct {
	SessionID string   `json:"session_id,omitempty"`
	QueryID   string   `json:"query_id"`
	Winner    string   `json:"winner"`            // respondent id, or [Tie]; "" = undecided
	Between   []string `json:"between,omitempty"` // the two respondents
	// the winner of each comparison: in the order of Between, then swapped
	Verdicts []string `json:"verdicts,omitempty"`
	Reason   string   `json:"reason"`
	Model    string   `json:"model,omitempty"`
	// the model judged an answer of its own
	SelfGraded bool   `json:"self_graded,omitempty"`
	Undecided  string `json:"undecided,omitempty"` // why there is no verdict
	Notice     string `json:"notice,omitempty"`    // why another model than the critic's own judged
}

// Tie is the winner of two equal answers, and of a comparison whose result depends on their order.
const Tie = "tie"

// Feedback is the user's rating of an answer. Omitted fields are zero.
type Feedback struct {
	QueryID string `json:"query_id"`
	Thumb   int    `json:"thumb,omitempty"` // -1, 1
	Stars   int    `json:"stars,omitempty"` // 1 to 5
	Words   string `json:"words,omitempty"`
}

// Reward is feedback for the agent that produced the answer. It supersedes earlier rewards for the same answer.
type Reward struct {
	SessionID    string  `json:"session_id,omitempty"`
	QueryID      string  `json:"query_id"`
	RespondentID string  `json:"respondent_id"`
	Value        float64 `json:"value"` // -1 to 1
	Count        int     `json:"count"` // increases per answer: the highest is valid, in whatever order events arrive
	Source       Source  `json:"source"`
	Thumb        int     `json:"thumb,omitempty"`
	Stars        int     `json:"stars,omitempty"`
	Words        string  `json:"words,omitempty"`
}

// Sources of a [Reward].
const (
	RewardUser         = "user"         // stated by the user
	RewardConversation = "conversation" // inferred by a model from the conversation
)
