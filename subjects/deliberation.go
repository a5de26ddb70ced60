package subjects

import "strings"

// Deliberation is one persona's contribution in one round: an event when it begins, and one when it has ended.
type Deliberation struct {
	SessionID string `json:"session_id,omitempty"`
	QueryID   string `json:"query_id"`
	Persona   string `json:"persona"`
	Round     int    `json:"round"`             // from 1; that of the closing persona follows the last round
	Status    string `json:"status,omitempty"`  // DeliberationWorking, DeliberationDone or DeliberationFailed
	Closing   bool   `json:"closing,omitempty"` // the persona that gives the answer
	Response  string `json:"response"`
	// Dissents means that the persona disagrees with the others; Dissent is its reason, one line.
	Dissents bool       `json:"dissents,omitempty"`
	Dissent  string     `json:"dissent,omitempty"`
	Thinking string     `json:"thinking,omitempty"`
	Calls    []ToolCall `json:"tool_calls,omitempty"`
	Model    string     `json:"model,omitempty"`
	Usage    Usage      `json:"usage"`
	Notes    []Note     `json:"notes,omitempty"`
	Labels   *Labels    `json:"labels,omitempty"`  // joined from all inputs of the contribution
	Partial  bool       `json:"partial,omitempty"` // incomplete
	Error    *Fault     `json:"error,omitempty"`   // why it failed
	// Query and Rubric are for the critic, which grades the contribution by the rubric; both empty = it is not graded.
	Query  string `json:"query,omitempty"`
	Rubric string `json:"rubric,omitempty"`
}

// Values of [Deliberation.Status].
const (
	DeliberationWorking = "working"
	DeliberationDone    = "done"
	DeliberationFailed  = "failed"
)

// DeliberationSummary is a deliberation in the record of an answer, without its text.
type DeliberationSummary struct {
	Persona   string `json:"persona"`
	Round     int    `json:"round"`
	Status    string `json:"status"`
	Dissents  bool   `json:"dissents,omitempty"`
	Dissent   string `json:"dissent,omitempty"`
	ToolCalls int    `json:"tool_calls,omitempty"` // how many
	Usage     Usage  `json:"usage"`
	Error     string `json:"error,omitempty"` // fault code
}

// PersonaToken is the name of a persona as a token of a subject: in lower case, without a leading article, with "_" for
// every run of characters other than ASCII letters and digits. Two names with the same token are the same persona. It
// is "" for a name without such a letter or digit.
func PersonaToken(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	if len(words) > 1 && (words[0] == "the" || words[0] == "a" || words[0] == "an") {
		words = words[1:]
	}
	token := strings.Join(words, "_")
	return token[:min(len(token), maxPersonaToken)]
}

// maxPersonaToken bounds the token of a persona: it is one of several in a key.
const maxPersonaToken = 40

// PersonaRespondent is the respondent id of a persona in a [Critique].
func PersonaRespondent(name string) string { return Committee + "." + PersonaToken(name) }
