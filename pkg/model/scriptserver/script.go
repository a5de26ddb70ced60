// Package scriptserver is a model server that replies by a script: it serves the protocols of Ollama and OpenAI over
// real HTTP, with the quirks of real servers as switches. Stories and tests use it as they would use Ollama, so that
// nothing is mocked on the client's side.
package scriptserver

import "time"

// Script maps a model name to its exchanges; [AnyModel] is for models without their own. Exchanges are used in order,
// each once unless Always is set. A request that does not meet the conditions of the next exchange, or for which none
// is left, is a mismatch: the server replies with HTTP 500 and the reason, and [Server.Err] returns it.
type Script map[string][]Exchange

// Exchange is one request and its reply.
type Exchange struct {
	When   When  `yaml:"when"`
	Reply  Reply `yaml:"reply"`
	Always bool  `yaml:"always"` // for every request that meets When and no exchange that is used once
	// AnyOrder passes a request that does not meet When on to the following exchange, for concurrent callers. Without
	// it the next exchange must match.
	AnyOrder bool `yaml:"any_order"`
}

// When are conditions on a request; the zero value matches every request. Texts are compared case-insensitively.
type When struct {
	LastRole     string   `yaml:"last_role"`     // of the last message
	LastContains string   `yaml:"last_contains"` // text of the last message
	Contains     []string `yaml:"contains"`      // each in some message
	Absent       []string `yaml:"absent"`        // each in no message
	System       string   `yaml:"system"`        // text of the system message
	ToolsInclude []string `yaml:"tools_include"` // offered
	NoTools      bool     `yaml:"no_tools"`      // none offered
	Messages     int      `yaml:"messages"`      // count, with the system message; 0 = any
	ThinkIs      *bool    `yaml:"think"`         // as sent
	HistoryHas   []string `yaml:"history_has"`   // each in a message before the last one with role user
	// SHA-256 of each image of the request, in order; ["none"] = it has none
	Images []string `yaml:"images"`
}

// Reply is the server's reply. Thinking, Content and the arguments of calls may quote the request, which proves where
// an asserted word came from: {{tool_result 0}} (of this turn), {{user 0}}, {{last_user}}, each with "| line 3" (from
// 1) or "| match [0-9]+"; -1 is the last. {{"{{"}} is itself. A quote of something the request does not have is a
// mismatch.
type Reply struct {
	Thinking string `yaml:"thinking"`
	Content  string `yaml:"content"`
	Calls    []Call `yaml:"tool_calls"`
	Quirks   Quirks `yaml:"quirks"`
	// Prompt and Output are the token counts to report; 0 = estimated by the server.
	Prompt int `yaml:"prompt_tokens"`
	Output int `yaml:"output_tokens"`
}

// Call is a native tool call of a reply.
type Call struct {
	ID        string         `yaml:"id"` // "" = generated, unless Quirks.NoIDs is set
	Name      string         `yaml:"name"`
	Arguments map[string]any `yaml:"arguments"`
	// JSON is the arguments as written by the model, in place of Arguments, where the order of keys matters.
	JSON string `yaml:"arguments_json"`
}

// Quirks are deviations of real servers and models. The zero value is a well-behaved server.
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
	Busy        int           `yaml:"busy"`         // number of HTTP 503 replies before the real one
	RefuseThink bool          `yaml:"refuse_think"` // HTTP 400 when think is true; the exchange stays for the retry
	RefuseTools bool          `yaml:"refuse_tools"` // HTTP 400 when tools are offered; the exchange stays for the retry
	TooLong     bool          `yaml:"too_long"`     // HTTP 400: the input is longer than the context
	Truncate    int           `yaml:"truncate"`     // prompt_eval_count to report, whatever was sent
	RemoteHost  string        `yaml:"remote_host"`  // set as for a cloud model
	Garbage     bool          `yaml:"garbage"`      // bytes that are not JSON
	BadUTF8     bool          `yaml:"bad_utf8"`     // content with invalid bytes
	Bytes       int           `yaml:"bytes"`        // content is repeated to this size
	Hang        bool          `yaml:"hang"`         // no reply until the client disconnects
	ChunkRunes  int           `yaml:"chunk_runes"`  // runes per chunk; 0 = a word
}
