package subjects

// Judgement is how the broker judged a call, in its copy of the call: the facts that the layers used and are in no
// other event, and their verdicts. It lets other rules judge the call again later. It holds no text of the arguments or
// of the session.
type Judgement struct {
	Type    string         `json:"type,omitempty"`    // agent type of the caller
	Lineage []LineageAgent `json:"lineage,omitempty"` // of a spawned agent, the caller last

	Override string   `json:"override,omitempty"` // the user's level for the session
	Disabled []string `json:"disabled,omitempty"` // tools that the user disabled for the session
	Granted  []string `json:"granted,omitempty"`  // type:tool

	Identical int `json:"identical,omitempty"` // identical calls in a row before this one, for the same question
	Calls     int `json:"calls,omitempty"`     // calls before this one, for the same question

	Undoable bool `json:"undoable,omitempty"` // it needed no question, because it can be undone

	// ToolFacts is a hash of the manifest's facts about a tool outside of the build; "" for a tool of the build.
	ToolFacts string `json:"tool_facts,omitempty"`
	Redacted  bool   `json:"redacted,omitempty"` // the arguments of the copy are not those that were judged

	// Layers are the verdicts of all layers, each by itself, also of those after a denial, without reasons.
	Layers    []LayerVerdict `json:"layers,omitempty"`
	Monitored []string       `json:"monitored,omitempty"` // violated monitor-only rules, as layer.rule
	Denied    string         `json:"denied,omitempty"`    // the denial of a rule outside of the layers, as layer.rule
}

// LineageAgent is one agent of a lineage, as the broker registered it.
type LineageAgent struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Narrowed bool     `json:"narrowed,omitempty"` // spawned with no more than Tools
	Tools    []string `json:"tools,omitempty"`
}
