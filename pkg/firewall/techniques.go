package firewall

// technique is one way to make a model take data for instructions.
type technique string

const (
	techOverride  technique = "override"    // tells the reader to ignore, forget or override its instructions
	techAddress   technique = "address"     // speaks to an assistant or a model instead of to a human reader
	techRole      technique = "role"        // carries the marks that divide a conversation into turns
	techAuthority technique = "authority"   // claims to be the user
	techToolCall  technique = "tool_call"   // holds the marks of a tool call
	techHidden    technique = "hidden_text" // invisible characters that spell a text, or many of them
	techEncoding  technique = "encoding"    // holds instructions that are encoded or reversed
	techSecrecy   technique = "secrecy"     // asks that the user is not told or not asked
	techDelimiter technique = "delimiter"   // pretends that the document ends here, or that new instructions begin
	techLeak      technique = "prompt_leak" // asks for the system prompt or the instructions
)
