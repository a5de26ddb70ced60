package subjects

import "strings"

// Registry is the account that keeps the run-time principals.
const Registry = "registry"

// MCP is the account of the actor that starts MCP servers. The credentials that it may request begin with
// [MCPSecretPrefix].
const (
	MCP             = "mcp"
	MCPSecretPrefix = "mcp_"
)

// MCPPrincipal returns the name of the principal by which an MCP server serves its tools.
func MCPPrincipal(server string) string { return MCP + "-" + server }

// MCPSecretServer returns the MCP server that a credential belongs to: its name is mcp_<server> or mcp_<server>_<rest>,
// and the name of a server has no "_". It returns "" for every other name.
func MCPSecretServer(name string) string {
	rest, ok := strings.CutPrefix(name, MCPSecretPrefix)
	server, _, _ := strings.Cut(rest, "_")
	if !ok || CheckToken(name) != nil || strings.ToLower(name) != name {
		return ""
	}
	return server
}

// Accounts on the way from a question to its answer.
const (
	// Router orders questions by session.
	Router = "router"
	// Generator answers query.received. The author's account is part of the stored subject, so no other account's
	// response, respondent B's included, is taken for the answer.
	Generator = "generator"
	// RespondentB answers the same questions for comparison only: its response is never shown as the answer.
	RespondentB = "respondent_b"
	// Committee is the account whose personas deliberate.
	Committee = "committee"
	// Orchestrator is the account that plans tasks and spawns agents for them.
	Orchestrator = "orchestrator"
)

// Modes are the ways to ask a question, each with the account that answers.
var Modes = map[string]string{"assistant": Generator, "committee": Committee, "task": Orchestrator}

// QuestionTopic is the topic of questions to a respondent. It reports false for an account that answers none.
func QuestionTopic(respondent string) (Topic[Query], bool) {
	switch respondent {
	case Generator:
		return QueryReceived, true
	case Committee:
		return QueryCommittee, true
	case Orchestrator:
		return QueryTask, true
	}
	return Topic[Query]{}, false
}

// Roles of models. The configuration maps each to a model.
const (
	RoleAssistant  = "assistant"  // answers; fallback for other roles whose model is missing
	RoleSummaries  = "summaries"  // summarizes long conversations
	RoleEmbeddings = "embeddings" // makes embeddings; has no fallback
	RoleTools      = "tools"      // chooses the tools that fit a task
	RoleCritic     = "critic"     // judges answers

	RoleOrchestrator = "orchestrator" // plans tasks
	RoleResearcher   = "researcher"   // spawned agents that research
	RoleCoder        = "coder"        // spawned agents that write code or administer the machine
)

// StateBucket is the bucket of a respondent: conversations and turn checkpoints.
func StateBucket(account string) string { return "state_" + account }

// StoredBy is the stored subject of an event by one author account. Other wildcards remain.
func (s Spec) StoredBy(account string) string {
	return strings.Replace(s.Subscription(), "from.*.", "from."+account+".", 1)
}

// StoredAs is the stored subject of one event by an author account: [Spec.StoredBy] with the other wildcards filled by
// tokens, as [Topic.With] does.
func (s Spec) StoredAs(account string, tokens ...string) (string, error) {
	return fillWildcards(s.StoredBy(account), tokens)
}

// LiveSubject is the subject under which an event is republished for watchers, without its author.
func (s Spec) LiveSubject() string { return strings.TrimPrefix(s.Subscription(), "from.*.") }
