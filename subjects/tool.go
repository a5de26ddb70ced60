package subjects

// ToolDeclaration is what the user declared about a tool of a run-time principal: which agents may call it, the facts
// by which the policy judges its calls, and the definition that the user saw. The fields from Act to People are those
// of a tool in the manifest, whose entry takes precedence. The zero value gives the tool to no agent.
type ToolDeclaration struct {
	// agent types that may call it, besides those to which the manifest gives it
	Agents []string `json:"agents,omitempty"`
	Act    string   `json:"act,omitempty"` // "" = undeclared: each call of an agent needs approval
	// null = those of the act, and reading private and untrusted data
	Effects []string          `json:"effects"`
	Args    map[string]string `json:"args,omitempty"`
	About   []string          `json:"about,omitempty"`
	IDs     []string          `json:"ids,omitempty"`
	People  []string          `json:"people,omitempty"`
	// Pin is the hash of the definition that the user saw when the tool was added, as the broker computes it. Until a
	// definition is accepted, any other one waits for the user. "" = the user saw none: the first definition that the
	// tool announces is accepted.
	Pin string `json:"pin,omitempty"`
}

// States of a tool of a run-time principal.
const (
	ToolReady   = "ready"   // announced with the accepted definition
	ToolChanged = "changed" // announced with another definition, which waits for the user: the tool is not offered
	ToolSilent  = "silent"  // not announced since the broker started
)

// ToolQuery asks for the tools of run-time principals: one by name, with its definitions, or all of them without.
type ToolQuery struct {
	Tool string `json:"tool,omitempty"`
}

// ToolStatus is the state of a tool of a run-time principal.
type ToolStatus struct {
	Principal string          `json:"principal"`
	Tool      string          `json:"tool"`
	State     string          `json:"state"`
	Running   bool            `json:"running"`       // it answers the broker's request for its definition
	Agents    []string        `json:"agents"`        // agent types that may call it, by the manifest or the declaration
	Declared  ToolDeclaration `json:"declared"`      // of the principal
	Effects   string          `json:"effects"`       // as the policy reads them
	Pin       string          `json:"pin,omitempty"` // hash of the accepted definition
	// Accepted is the accepted definition; nil when only its hash is stored: by an earlier build, or because the tool
	// first announced another one than the user saw.
	Accepted *ToolSchema `json:"accepted,omitempty"`
	// Rejected is why the last announcement was rejected, "" when it was not. It may quote the tool.
	Rejected string `json:"rejected,omitempty"`
	// NewPin and New are the definition that waits for the user, in state changed.
	NewPin string      `json:"new_pin,omitempty"`
	New    *ToolSchema `json:"new,omitempty"`
}

// ToolList lists tools of run-time principals, by name.
type ToolList struct {
	Tools []ToolStatus `json:"tools"`
}

// ToolAccept accepts the changed definition of a tool: the one with this hash, which the user has seen, and no other.
type ToolAccept struct {
	Tool string `json:"tool"`
	Pin  string `json:"pin"`
}
