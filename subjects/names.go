package subjects

import "strings"

// Accounts that stand between a question and its answer.
const (
	// Router puts questions into the order of their sessions.
	Router = "router"
	// Generator answers query.received. The author stands in the stored subject, so nobody else's words, respondent B's among
	// them, are taken for the answer.
	Generator = "generator"
	// RespondentB answers the same questions for comparison only: nothing of it is shown as the answer.
	RespondentB = "respondent_b"
)

// Roles of models: what a model is asked for, whichever model that is today.
const (
	RoleAssistant  = "assistant"  // answers, also when the model of another role is not there
	RoleSummaries  = "summaries"  // makes a long conversation short
	RoleEmbeddings = "embeddings" // makes vectors; no other model may do so in its place
	RoleTools      = "tools"      // chooses the tools that fit a task
	RoleCritic     = "critic"     // judges answers
)

// StateBucket is the bucket in which an answerer keeps its conversations and what it is working at.
func StateBucket(account string) string { return "state_" + account }

// StoredBy is the stored subject of an event that one account said. The other wildcards stay.
func (s Spec) StoredBy(account string) string {
	return strings.Replace(s.Subscription(), "from.*.", "from."+account+".", 1)
}

// LiveSubject is the subject under which people hear an event: the author is left out.
func (s Spec) LiveSubject() string { return strings.TrimPrefix(s.Subscription(), "from.*.") }
