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
	techUrgency
	techDelimiter
	techRequest
	techReply
	techPersona
	techLeak
	techCompletion
	numTechniques
)

// maxWeight is the greatest weight that one sign may have.
const maxWeight = 10

// TechniqueInfo is the name of a technique and a sentence for users.
type TechniqueInfo struct{ Name, Sentence string }

// Catalog describes every technique, in the order of Techniques.
var Catalog = []TechniqueInfo{
	{"override", "Tells the reader to ignore, forget or override the instructions it has."},
	{"address", "Speaks to an assistant, a model or an automated reader instead of to a human reader."},
	{"role", "Carries the markers that divide a conversation into turns, or plays a turn of its own."},
	{"authority", "Claims to be the system, the developer, the administrator or the user."},
	{"exfiltration", "Asks to send data to an address, or builds a link or an image that carries data away."},
	{"tool_call", "Holds the text of a tool call, or orders the use of a tool."},
	{"hidden_text", "Holds instructions that a user would not see: comments, invisible styles, invisible characters."},
	{"encoding", "Holds instructions that are encoded, reversed, spaced out or spelled with look-alikes."},
	{"secrecy", "Asks that the user is not told or not asked."},
	{"urgency", "Cries out that an order is important, critical or urgent."},
	{"delimiter", "Pretends that the document, the session or the data ends here, or that new instructions begin."},
	{"request", "Asks for an action on someone's things where only data belongs."},
	{"reply", "Dictates what the answer must hold or how it must be written."},
	{"persona", "Gives the reader another role, character or mode."},
	{"prompt_leak", "Asks for the system prompt or the instructions."},
	{"completion", "Reports a task as done and goes on with another."},
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
