package subjects

import (
	"encoding/json"
	"time"
)

// ChatRequest asks a model for the next message.
type ChatRequest struct {
	Role     string          `json:"role"` // assistant, critic, ...: routed to a model
	Model    string          `json:"model,omitempty"`
	Hint     string          `json:"hint,omitempty"` // simple, reasoning, code
	Messages json.RawMessage `json:"messages"`
	Tools    json.RawMessage `json:"tools,omitempty"`
	Format   json.RawMessage `json:"format,omitempty"`
	Options  json.RawMessage `json:"options,omitempty"`
	Think    *bool           `json:"think,omitempty"` // nil = as the model supports
	Stream   bool            `json:"stream,omitempty"`
	// Background means that no user waits: every other request goes before it.
	Background bool `json:"background,omitempty"`
}

// ChatChunk is a piece of the model's reply; the last has Done and the usage. Before a model is asked, a chunk with
// nothing but Model and Remote names it: so does one when its server turns out to forward the prompt. A request without
// such a chunk that fails was given to no model.
type ChatChunk struct {
	Content   string          `json:"content,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	ToolCalls json.RawMessage `json:"tool_calls,omitempty"`
	Done      bool            `json:"done,omitempty"`
	Model     string          `json:"model,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	// host that gets the prompt; empty = this machine
	Remote    string `json:"remote,omitempty"`
	DemoModel bool   `json:"demo_model,omitempty" was:"stand_in"` // the built-in demo model replied
	// Notice is why another model than requested replied, in the last chunk. In any other it is a message for the user
	// about the reply, and the chunk has nothing else.
	Notice string `json:"notice,omitempty"`
	Usage  Usage  `json:"usage"`
	// in a chunk of its own, before the reply, when the first token takes long
	Reading *PromptReading `json:"reading,omitempty"`
}

// PromptReading says that a model begins to read a prompt, and how long that takes by its measured speed.
type PromptReading struct {
	Tokens int   `json:"tokens"`          // estimated; those that the server has cached are left out
	Millis int64 `json:"ms"`              // until the first token, estimated
	Whole  bool  `json:"whole,omitempty"` // the reply comes in one piece, and Millis is for the longest one permitted
}

// EmbedRequest requests embeddings.
type EmbedRequest struct {
	Model string   `json:"model,omitempty"` // empty = the model of the role embeddings
	Texts []string `json:"texts"`
	Task  string   `json:"task,omitempty"` // query, document: the model's prefix for it is added; empty = none
}

// Tasks of [EmbedRequest].
const (
	EmbedQuery    = "query"
	EmbedDocument = "document"
)

// EmbedReply holds one vector per text, an empty one for each text in Failed.
type EmbedReply struct {
	Vectors [][]float32    `json:"vectors"`
	Model   string         `json:"model"`
	Failed  []EmbedFailure `json:"failed,omitempty"`
}

// EmbedFailure is a text without a vector.
type EmbedFailure struct {
	Index  int    `json:"index"` // of the text
	Reason string `json:"reason"`
}

// ModelList lists the available models and the model of each role.
type ModelList struct {
	Models []ModelInfo `json:"models"`
	Roles  []RoleModel `json:"roles"`
	// Machines are the other machines with models, connected or not.
	Machines []ModelMachine `json:"machines,omitempty"`
}

// ModelInfo describes a model.
type ModelInfo struct {
	Name       string `json:"name"`
	Backend    string `json:"backend"`
	Machine    string `json:"machine,omitempty"` // that has it; empty = this machine
	Queue      int    `json:"queue,omitempty"`   // requests that run or wait at its server
	Size       int64  `json:"size,omitempty"`
	Family     string `json:"family,omitempty"`
	Parameters string `json:"parameters,omitempty"`
	Window     int    `json:"window,omitempty"` // largest context window, in tokens
	Tools      bool   `json:"tools,omitempty"`
	Thinking   bool   `json:"thinking,omitempty"`
	Vision     bool   `json:"vision,omitempty"`
	Embedding  bool   `json:"embedding,omitempty"`
	// how it calls tools: CallNative, CallConstrained; empty = it does not chat or may not be used
	Calls string `json:"calls,omitempty"`
	// CallTest is the self-test of its native tool calls, by which Calls was decided; nil = it was not tested, or
	// models.yaml decides.
	CallTest *CallTest `json:"call_test,omitempty"`
	Loaded   bool      `json:"loaded,omitempty"`
	Remote   string    `json:"remote,omitempty"`  // host that it runs on; empty = this machine
	Refused  string    `json:"refused,omitempty"` // why its use is denied
	// Measured speed on this machine in tokens per second, 0 = not measured yet: of the prompt where it is not cached,
	// and of the output.
	PromptSpeed float64 `json:"prompt_speed,omitempty"`
	OutputSpeed float64 `json:"output_speed,omitempty"`
}

// CallTest is the result of a self-test of native tool calls.
type CallTest struct {
	Passed int       `json:"passed"` // replies that were right
	Total  int       `json:"total"`
	Tested time.Time `json:"tested"`
}

// How a model calls tools.
const (
	CallNative      = "native"      // by the tool calls of its own protocol
	CallConstrained = "constrained" // each step is a decision under a JSON schema
)

// Seeing lists models that can be used and read images, at most five.
func (l ModelList) Seeing() (names []string) {
	for _, m := range l.Models {
		if m.Vision && m.Refused == "" && len(names) < 5 {
			names = append(names, m.Name)
		}
	}
	return names
}

// RoleModel is the model that a role uses now, with its capabilities.
type RoleModel struct {
	Role   string `json:"role"`
	Model  string `json:"model"`
	Wanted string `json:"wanted,omitempty"` // the configured model, when a fallback replaces it
	Notice string `json:"notice,omitempty"` // why a fallback is used, and what to do
	// what installing Wanted would improve; set only when Wanted is optional
	Improves  string `json:"improves,omitempty"`
	Window    int    `json:"window"` // context window in tokens, fixed for the role
	Stream    bool   `json:"stream"`
	Tools     bool   `json:"tools"`
	Thinking  bool   `json:"thinking"`
	Calls     string `json:"calls,omitempty"`  // how it calls tools: CallNative, CallConstrained; empty = unknown
	Vision    bool   `json:"vision,omitempty"` // reads images
	DemoModel bool   `json:"demo_model,omitempty" was:"stand_in"`
}

// PullRequest requests the download of a model.
type PullRequest struct {
	Model string `json:"model"`
}

// PullProgress is the state of a download.
type PullProgress struct {
	Status    string `json:"status"`
	Digest    string `json:"digest,omitempty"`
	Total     int64  `json:"total,omitempty"`
	Completed int64  `json:"completed,omitempty"`
}
