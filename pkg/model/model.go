// Package model is the interface to inference: requests, replies, embeddings and errors, independent of the protocol.
// The backends are in its subpackages ollama, openai, anthropic, genai and scripted; wire reaches the model actor over
// the bus. This package imports none of them.
package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// Roles of a message.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	ToolRole  = "tool"
)

// Message is one message of a conversation, in the form in which it is sent, stored and displayed.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// returned to the model with its calls within one turn, never stored in the history
	Thinking string `json:"thinking,omitempty"`
	Calls    []Call `json:"tool_calls,omitempty"`
	ToolName string `json:"tool_name,omitempty"`    // of a tool result
	CallID   string `json:"tool_call_id,omitempty"` // of a tool result
	// Images belong to the content of a user message. Only a model whose [Info] has Vision can read them.
	Images []Image `json:"images,omitempty"`
}

// Image is an image of a message. On the bus and in stored state it is a reference to an attachment of a session; the
// model actor reads it and sets Data.
type Image struct {
	Session string `json:"session"`
	SHA256  string `json:"sha256"` // of Data, hexadecimal
	Type    string `json:"type"`   // media type
	Size    int    `json:"size"`   // bytes
	Data    []byte `json:"-"`      // never encoded with the message
}

// Call is a tool call of a model. Arguments keep the key order of the model's output, because prompt caches depend on
// it; they are untrusted and not validated against the tool's schema.
type Call struct {
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// Tool is a tool definition for a model.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // JSON schema of an object
}

// Request is a request for the next message of a conversation.
type Request struct {
	Model    string          `json:"model"`
	Messages []Message       `json:"messages"`
	Tools    []Tool          `json:"tools,omitempty"`
	Format   json.RawMessage `json:"format,omitempty"` // JSON schema of the reply; not together with Tools
	Think    *bool           `json:"think,omitempty"`  // nil = the model's default
	Options  Options         `json:"options"`
	Stream   bool            `json:"stream"`
}

// Options are the parameters of one request. Callers must use the same Window and KeepAlive for all requests to a
// model, because another value makes the server reload the model.
type Options struct {
	Window      int      `json:"window,omitempty"`  // num_ctx, in tokens; 0 = the backend's default
	Predict     int      `json:"predict,omitempty"` // num_predict, maximum of output tokens; 0 = the backend's default
	Temperature *float64 `json:"temperature,omitempty"`
	Seed        *int     `json:"seed,omitempty"`
	Stop        []string `json:"stop,omitempty"`
	KeepAlive   string   `json:"keep_alive,omitempty"` // a duration, "-1" = for ever, "" = the backend's default
}

// Chunk is a part of a reply. Texts and calls of all chunks are concatenated, the last included. Exactly one chunk, the
// last, is Done; a reply without it was cut off.
type Chunk struct {
	Content  string
	Thinking string
	Calls    []Call // complete calls; a backend assembles fragments
	Done     bool
	Final    Final    // valid when Done; RemoteHost may be set before, with Model in a chunk without anything else
	Reading  *Reading // set in a chunk without anything else, before the reply; nil = none
	Notice   string   // a message for the user about the reply, in a chunk without anything else; "" = none
}

// Reading says that the server begins to read a prompt.
type Reading struct {
	Tokens   int           // to read, estimated; those that the server has cached are left out
	Expected time.Duration // until the first token, by the measured speed of the model; 0 = nothing is measured
	Whole    bool          // the reply comes in one piece: Expected is for the longest reply that the request permits
}

// Final describes a complete reply.
type Final struct {
	Model        string        // the model that replied, which may differ from the requested one
	Reason       string        // stop, length, ...: for display only, because servers disagree on the values
	PromptTokens int           // as counted by the server
	OutputTokens int           // as counted by the server
	Load, Total  time.Duration // as measured by the server; 0 = not reported
	PromptTime   time.Duration // for the part of the prompt that was not cached; 0 = not reported
	OutputTime   time.Duration // for the output; 0 = not reported
	RemoteHost   string        // the host to which the local server forwarded the request; "" = none
}

// Chat generates replies.
type Chat interface {
	// Chat yields the chunks of the reply, a single one if r.Stream is false. An error ends the sequence. When the
	// caller stops iterating or ctx is cancelled, the request is cancelled at the server. Each iteration sends the
	// request anew.
	Chat(ctx context.Context, r Request) iter.Seq2[Chunk, error]
}

// Embedder computes embeddings.
type Embedder interface {
	// Embed returns one vector per text, in the order of texts. It truncates no text.
	Embed(ctx context.Context, model string, texts []string) (Vectors, error)
}

// Vectors are embeddings, one per text.
type Vectors struct {
	Model        string
	Values       [][]float32
	PromptTokens int
	Failed       map[int]error // texts without a vector, by index: only of the model actor, backends fail as a whole
}

// Backend is a client of a model server.
type Backend interface {
	Chat
	Embedder
	// List returns the models that the server has. Fields of Info that only Show knows may be zero.
	List(ctx context.Context) ([]Info, error)
	// Show returns the capabilities of a model, or [ErrMissing].
	Show(ctx context.Context, model string) (Info, error)
	// Pull downloads a model to the server and yields the progress, or [ErrUnsupported].
	Pull(ctx context.Context, model string) iter.Seq2[Progress, error]
}

// LoadLister is a backend whose server loads models on demand and reports which ones are loaded.
type LoadLister interface {
	// Loaded returns the names of the loaded models. A chat request without messages loads a model.
	Loaded(ctx context.Context) ([]string, error)
}

// Info describes a model.
type Info struct {
	Name       string
	Size       int64  // bytes; 0 = unknown
	Family     string // as reported by the server
	Parameters string // "12B", as reported by the server
	Digest     string // of the weights and the template; "" = unknown
	Window     int    // maximum context in tokens; 0 = unknown
	Tools      bool   // supports tool calls
	Thinking   bool
	Vision     bool
	Embedding  bool
	Loaded     bool
	Remote     string // the host to which the server forwards requests; "" = the model runs on the server
}

// Progress is the progress of a pull. Total and Completed are bytes of the layer Digest.
type Progress struct {
	Status    string
	Digest    string
	Total     int64
	Completed int64
}

// Sentinel errors, for errors.Is. Backends wrap them with details and with what a user can do.
var (
	ErrUnreachable = errors.New("the model server is unreachable")
	ErrMissing     = errors.New("model not found")
	ErrNoTools     = errors.New("the model does not support tools")
	ErrNoThinking  = errors.New("the model does not support thinking")
	ErrNoVision    = errors.New("the model cannot read images")
	ErrTooLong     = errors.New("the prompt exceeds the model's context window")
	ErrBusy        = errors.New("the model server is busy")
	// for example a tool call that the server could not parse; worth a retry
	ErrMalformed = errors.New("malformed model output")
	// the connection was lost before the last chunk
	ErrCut = errors.New("the reply was cut off")
	// the server's process that runs the model stopped; the server starts it again for the next request
	ErrRunner = errors.New("the model runner stopped")
	// and the configuration does not allow the model by name
	ErrRemote       = errors.New("the request would leave this machine")
	ErrUnsupported  = errors.New("not supported by the backend")
	ErrUnauthorized = errors.New("the model server requires a valid key")
	// only of the model actor, for background calls and embeddings
	ErrSwap = errors.New("the model unloads another one")
	// only over the bus: no model actor received the request; one that restarts is back soon
	ErrAway = fmt.Errorf("%w: the model actor is not running", ErrUnreachable)
)

// IsAny reports whether err is any of some errors, for errors.Is.
func IsAny(err error, all ...error) bool {
	return slices.ContainsFunc(all, func(one error) bool { return errors.Is(err, one) })
}

// NoVisionError returns an error about images for a model that cannot read them. It wraps [ErrNoVision], names the
// model and says how to choose one that can: able are the names of such models that are installed, if any are known.
func NoVisionError(name string, able []string) error {
	how := "install one that can, for example with: conclave model pull gemma3:4b, and ask it with --model gemma3:4b"
	if len(able) > 0 {
		how = "ask one that can with --model: " + strings.Join(able, ", ")
	}
	return fmt.Errorf("%w: %s; %s, or make it the assistant's model in models.yaml", ErrNoVision, name, how)
}
