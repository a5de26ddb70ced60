// Package modeltest is a model server that follows a script: it speaks Ollama's protocol over real HTTP, with the quirks
// of real servers as switches. Tests talk to it as they would to Ollama; nothing is mocked on our side of the wire.
package modeltest

import "time"

// Script is what the server answers. Exchanges are kept by model name ("*" is for models without their own) and used in
// order, each once, unless it says Always. A request that does not meet the conditions of its exchange, or for which none is left, fails the script:
// the server answers with HTTP 500 and a text that says why, and [Server.Err] returns it.
type Script map[string][]Exchange

// Exchange is one request and its reply.
type Exchange struct {
	When   When  `yaml:"when"`
	Reply  Reply `yaml:"reply"`
	Always bool  `yaml:"always"` // for every further request that meets When; tried after the ones that are used once
	// AnyOrder lets a request that does not meet When look further down the script. Without it the next exchange in line
	// must be met. It is for callers that work side by side.
	AnyOrder bool `yaml:"any_order"`
}

// When are conditions on a request; the zero value is met by any. Texts are compared without regard to case.
type When struct {
	LastRole     string   `yaml:"last_role"`     // of the last message
	LastContains string   `yaml:"last_contains"` // text of the last message
	Contains     []string `yaml:"contains"`      // each in some message
	Absent       []string `yaml:"absent"`        // each in no message
	System       string   `yaml:"system"`        // text of the system message
	ToolsInclude []string `yaml:"tools_include"` // offered
	NoTools      bool     `yaml:"no_tools"`      // none offered
	Messages     int      `yaml:"messages"`      // how many, the system message too; 0 = any
	ThinkIs      *bool    `yaml:"think"`         // as sent
	HistoryHas   []string `yaml:"history_has"`   // each in a message before the last one with role user
}

// Reply is what the server says. Thinking, Content and the texts of calls may quote the request, so that an asserted word
// can only come from where it really came from: {{tool_result 0}} (of this turn), {{user 0}}, {{last_user}}, each with
// "| line 3" (from 1) or "| match [0-9]+"; -1 is the last. {{"{{"}} is itself. What is not there fails the script.
type Reply struct {
	Thinking string `yaml:"thinking"`
	Content  string `yaml:"content"`
	Calls    []Call `yaml:"tool_calls"`
	Quirks   Quirks `yaml:"quirks"`
	// Prompt and Output are the counts to report; 0 = counted by the server.
	Prompt int `yaml:"prompt_tokens"`
	Output int `yaml:"output_tokens"`
}

// Call is a native tool call of a reply.
type Call struct {
	ID        string         `yaml:"id"` // "" = made, unless the quirk says otherwise
	Name      string         `yaml:"name"`
	Arguments map[string]any `yaml:"arguments"`
	// JSON is the arguments as the model wrote them, instead of Arguments, where the order of keys matters.
	JSON string `yaml:"arguments_json"`
}

// Quirks are what real servers and models do. The zero value is a well-behaved one.
type Quirks struct {
	CallsLast   bool          `yaml:"calls_last"`   // calls only in the chunk with done
	CallsSplit  bool          `yaml:"calls_split"`  // one call per chunk, text between
	NoIDs       bool          `yaml:"no_ids"`       // calls without ids
	DropCall    bool          `yaml:"drop_call"`    // an empty turn with eval_count > 0, HTTP 200
	ErrorLine   string        `yaml:"error_line"`   // {"error": ...} in mid-stream
	Status      int           `yaml:"status"`       // HTTP status instead of an answer, with ErrorLine as its text
	ThinkTags   bool          `yaml:"think_tags"`   // thinking as <think> in the content
	CallsAs     string        `yaml:"calls_as"`     // json, fenced, xml or text: calls in the content
	Length      bool          `yaml:"length"`       // cut at num_predict: done_reason length, eval_count = num_predict
	TokenDelay  time.Duration `yaml:"token_delay"`  // between chunks
	FirstDelay  time.Duration `yaml:"first_delay"`  // before the first
	CutAfter    int           `yaml:"cut_after"`    // chunks, then the connection breaks; -1 = before the first
	NoDone      bool          `yaml:"no_done"`      // the reply ends in good order, but without the chunk with done
	Busy        int           `yaml:"busy"`         // this many times HTTP 503 first
	RefuseThink bool          `yaml:"refuse_think"` // HTTP 400 when think is true; the exchange stays for the next try
	RefuseTools bool          `yaml:"refuse_tools"` // HTTP 400 when tools are offered; the exchange stays for the next try
	TooLong     bool          `yaml:"too_long"`     // HTTP 400: the input is longer than the context
	Truncate    int           `yaml:"truncate"`     // prompt_eval_count is this, whatever was sent
	RemoteHost  string        `yaml:"remote_host"`  // as a cloud model says
	Garbage     bool          `yaml:"garbage"`      // bytes that are no JSON
	BadUTF8     bool          `yaml:"bad_utf8"`     // content with invalid bytes
	Bytes       int           `yaml:"bytes"`        // content is repeated until it has this many
	Hang        bool          `yaml:"hang"`         // no answer until the client goes away
	ChunkRunes  int           `yaml:"chunk_runes"`  // runes per chunk; 0 = a word
}
