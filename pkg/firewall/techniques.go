package firewall

// technique is one way to make a model take data for instructions.
type technique int

const (
	techNone technique = iota
	techOverride
	techAddress
	techRole
	techAuthority
	techExfiltration
	techToolCall
	techHidden
	techEncoding
	techSecrecy
	techDelimiter
	techLeak
)

// TechniqueInfo is the name of a technique and a sentence for users.
type TechniqueInfo struct{ Name, Sentence string }

// Catalog describes every technique, in the order of Techniques.
var Catalog = []TechniqueInfo{
	{"override", "Tells the reader to ignore, forget or override the instructions it has."},
	{"address", "Speaks to an assistant or a model instead of to a human reader."},
	{"role", "Carries the marks that divide a conversation into turns."},
	{"authority", "Claims to be the user."},
	{"exfiltration", "Builds an image whose link carries data away."},
	{"tool_call", "Holds the marks of a tool call."},
	{"hidden_text", "Holds invisible characters that spell a text, or many of them."},
	{"encoding", "Holds instructions that are encoded, reversed, spaced out or spelled with look-alikes."},
	{"secrecy", "Asks that the user is not told or not asked."},
	{"delimiter", "Pretends that the document, the session or the data ends here, or that new instructions begin."},
	{"prompt_leak", "Asks for the system prompt or the instructions."},
}

// Techniques are the names of all techniques.
var Techniques = techniqueNames()

func techniqueNames() []string {
	all := make([]string, len(Catalog))
	for i, a := range Catalog {
		all[i] = a.Name
	}
	return all
}

// String returns the name of t as Techniques lists it.
func (t technique) String() string { return Catalog[t-1].Name }
