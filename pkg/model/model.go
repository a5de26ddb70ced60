// Package model is inference behind one interface: what is asked of a model, what comes back, and nothing of how it gets
// there. Its folders are the ways: ollama, openai, anthropic, genai, scripted, and wire for a model that is reached over
// the bus. It imports none of them.
package model

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"
)

// Roles of a message.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	ToolRole  = "tool"
)

// Message is one message of a conversation, as it is sent, stored and shown.
type Message struct {
	Role     string `json:"role"`
	Content  string `json:"content"`
	Thinking string `json:"thinking,omitempty"` // goes back with the calls inside one tool loop, never into stored history
	Calls    []Call `json:"tool_calls,omitempty"`
	ToolName string `json:"tool_name,omitempty"`    // of a result
	CallID   string `json:"tool_call_id,omitempty"` // of a result
}

// Call is a tool call as the model made it. Arguments keep the order in which the model wrote them: prompt caches depend
// on it.
type Call struct {
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// Tool is a definition offered to a model.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // JSON schema of an object
}

// Request asks for the next message.
type Request struct {
	Model    string          `json:"model"`
	Messages []Message       `json:"messages"`
	Tools    []Tool          `json:"tools,omitempty"`
	Format   json.RawMessage `json:"format,omitempty"` // JSON schema of the answer; never together with Tools
	Think    *bool           `json:"think,omitempty"`  // nil = do not say
	Options  Options         `json:"options"`
	Stream   bool            `json:"stream"`
}

// Options of one request. Window and KeepAlive are frozen per model: another value would make the server load the model
// anew.
type Options struct {
	Window      int      `json:"window,omitempty"`  // num_ctx, tokens; 0 = the backend's own
	Predict     int      `json:"predict,omitempty"` // num_predict, most tokens to write; 0 = the backend's own
	Temperature *float64 `json:"temperature,omitempty"`
	Seed        *int     `json:"seed,omitempty"`
	Stop        []string `json:"stop,omitempty"`
	KeepAlive   string   `json:"keep_alive,omitempty"` // duration, or "-1" for ever; "" = the backend's own
}

// Chunk is a piece of a reply. Text and calls add up over all chunks, the last included. Exactly one chunk, the last, is
// Done; a reply without it was cut off.
type Chunk struct {
	Content  string
	Thinking string
	Calls    []Call // whole calls; a backend that gets them in pieces puts them together
	Done     bool
	Final    Final // with Done
}

// Final is what is known when a reply is complete.
type Final struct {
	Model        string        // who really answered
	Reason       string        // stop, length, ...: to be shown, never to be decided by
	PromptTokens int           // as the server counted
	OutputTokens int           //
	Load, Total  time.Duration // as the server measured; 0 = not said
	RemoteHost   string        // where the local server passed it on to; "" = nowhere
}

// Chat answers.
type Chat interface {
	// Chat yields the reply in pieces; with Stream false in one. An error ends it. Breaking off ends the request, and the
	// server stops working on it.
	Chat(ctx context.Context, r Request) iter.Seq2[Chunk, error]
}

// Embedder makes vectors.
type Embedder interface {
	Embed(ctx context.Context, model string, texts []string) (Vectors, error)
}

// Vectors are embeddings, one per text.
type Vectors struct {
	Model        string
	Values       [][]float32
	PromptTokens int
}

// Backend is a server of models.
type Backend interface {
	Chat
	Embedder
	// List names the models at hand.
	List(ctx context.Context) ([]Info, error)
	// Show tells what a model can do. ErrMissing when it is not there.
	Show(ctx context.Context, model string) (Info, error)
	// Pull fetches a model and yields how far it is. ErrUnsupported where models cannot be fetched.
	Pull(ctx context.Context, model string) iter.Seq2[Progress, error]
}

// Info describes a model.
type Info struct {
	Name       string
	Size       int64  // bytes; 0 = not known
	Family     string // as the server says
	Parameters string // "12B"; as the server says
	Window     int    // largest context in tokens; 0 = not known
	Tools      bool   // reads tool definitions and makes calls
	Thinking   bool
	Vision     bool
	Embedding  bool
	Loaded     bool
	Remote     string // host the server would pass requests on to; "" = it runs here
}

// Progress of a pull.
type Progress struct {
	Status    string
	Digest    string
	Total     int64
	Completed int64
}

// What can go wrong, for errors.Is. Backends wrap them with what a user can do about it.
var (
	ErrUnreachable  = errors.New("the model server does not answer")
	ErrMissing      = errors.New("the model is not there")
	ErrNoTools      = errors.New("the model does not take tools")
	ErrNoThinking   = errors.New("the model does not think aloud")
	ErrTooLong      = errors.New("the prompt is longer than the model's context")
	ErrBusy         = errors.New("the model server is busy")
	ErrMalformed    = errors.New("the model's output could not be read") // a call the server could not parse: worth another try
	ErrCut          = errors.New("the reply was cut off")                // connection lost in the middle
	ErrRemote       = errors.New("the model would leave this machine")   // and nobody allowed it by name
	ErrUnsupported  = errors.New("the backend cannot do that")
	ErrUnauthorized = errors.New("the model server does not accept the key")
)
