// Package loop is the one implementation of "call a model with tools until it answers". Every agent uses it: what differs
// between them is the prompt, the tools, the limits and the hooks. It knows no bus, no HTTP and no clock of its own.
//
// A turn can be stopped at any point and taken up again from its last [State]: see [Hooks.Checkpoint].
package loop

import (
	"context"
	"time"

	"conclave/pkg/model"
)

// Agent is what stays the same from turn to turn. The zero Limits are the defaults.
type Agent struct {
	Chat      model.Chat
	RunTool   func(ctx context.Context, c model.Call) Result // runs one call until ctx ends; several at once
	Model     string                                         // "" = whoever Chat chooses
	System    string                                         // the one system message, with its few-shot examples
	Tools     []model.Tool                                   // what is offered
	TextTools bool                                           // no native tools: describe them in the prompt, read calls from text
	// Obeys says that Run always returns soon after its ctx ends. Then a single call runs in the goroutine of the turn.
	// Without it a call that does not return is left behind when the turn stops or is out of time, which costs a few
	// microseconds in each turn with calls.
	Obeys  bool
	Stream bool
	Think  *bool
	// Options for every call; Predict is set by the loop.
	Options model.Options
	Limits  Limits
	Hedge   Hedge
	Now     func() time.Time // nil = time.Now
	NewID   func() string    // ids of calls that came without one, or with one that is no token or was used before
}

// Limits bound a turn. Zero means the default in brackets; a negative number means none: no nudges, no retries, no
// rounds kept whole, and for everything else no bound.
type Limits struct {
	Steps         int           // model calls that may ask for tools [5]; then one more without tools, which must answer
	TokenBudget   int           // prompt and output of all calls of a turn [0 = no budget]
	TurnTimeout   time.Duration // of a turn [10 m]
	CallTimeout   time.Duration // of one model call [120 s]
	Nudges        int           // "you said you would, but did not" [2]
	Retries       int           // malformed or empty replies [2]
	Repeats       int           // the same call with the same result: this one is refused [3]
	StepTokens    int           // tokens to write while tools are offered [2048]
	AnswerTokens  int           // tokens to write for the answer [4096]
	ReplyBytes    int           // bytes of one reply; what comes after is not read [256 KiB]
	ResultBytes   int           // bytes of one tool result that enter the context [a quarter of the window]
	WholeRounds   int           // tool rounds kept whole; older ones become one line each [3]
	CallsPerReply int           // calls in one reply; the rest is refused [8]
}

// Hedge is what to do about an answer that says it cannot know.
type Hedge struct {
	SearchTool string // tool for one safety-net search when no tool ran; "" = off. It must be offered
	Reask      bool   // ask once more when it hedges although results are there
}

// Result is what came of a call. Text goes to the model; Fault says that it failed, was denied or never came. In a
// [State] the text is no longer than [Limits.ResultBytes]; [Hooks.Finished] gets all of it.
type Result struct {
	Text  string `json:"text"`
	Fault string `json:"fault,omitempty"` // a code, as on the bus; "" = it worked
}

// Layers in which a call was found.
const (
	LayerNative = "native"
	LayerJSON   = "json"
	LayerXML    = "xml"
	LayerText   = "text"
	LayerSafety = "safety_net" // not the model's: the search after a hedge
)

// FinishedCall is a finished call.
type FinishedCall struct {
	Call   model.Call `json:"call"`
	Layer  string     `json:"layer"`
	Step   int        `json:"step"`
	Result Result     `json:"result"`
}

// Note is something that a person should see: a guard that fired, a fallback, a truncation.
type Note struct {
	Code string `json:"code"` // one of the Note constants
	Text string `json:"text"`
}

// Codes of notes.
const (
	NoteRecovered   = "recovered_call" // a call was read from text
	NoteCopied      = "quoted_call"    // a call that the model copied from a tool's result was not run
	NoteInvalid     = "invalid_call"   // arguments that do not fit the schema went back to the model
	NoteUnknown     = "unknown_tool"   // a name that was not offered
	NoteRepeated    = "repetition"     // the same call with the same result was refused
	NoteStepCap     = "step_cap"       // the answer was forced
	NoteTokenBudget = "token_budget"   //
	NoteTurnTimeout = "wall_clock"     //
	NoteNudged      = "nudged"         //
	NoteRetried     = "retried"        // an empty or malformed reply
	NoteMoreTokens  = "more_room"      // the output hit its limit and was asked again
	NoteCut         = "cut"            // the answer is longer than what is kept, or the output limit was hit for good
	NoteTrimmed     = "trimmed"        // history did not fit
	NoteTruncated   = "truncated"      // the server read less than was sent
	NoteClipped     = "clipped_result" // a result was larger than its share of the window
	NoteSearched    = "safety_net"     // a hedging answer led to a search
	NoteReasked     = "asked_again"    // a hedging answer although results were there
	NoteNoTools     = "no_tools"       // the model takes no tools: text form
	NoteStatic      = "static_context" // nor that: the answer is from the prompt alone
	NoteNoThinking  = "no_thinking"    // the model does not think aloud
	NoteStopped     = "stopped"        // the user stopped it
	NoteFailed      = "model_failed"   // the model failed; what is there is kept
	NoteEmpty       = "no_answer"      // nothing came; the words are ours
	NoteBadText     = "invalid_utf8"   // bytes that are no text were replaced
)

// State is a turn as far as it has come. It is plain data: written down at a checkpoint and read back after a crash.
// A call that has no Done yet is run again with the same id; whoever runs it knows whether it ran before.
type State struct {
	Messages  []model.Message `json:"messages"`         // the question and everything since
	Layers    []string        `json:"layers,omitempty"` // of the calls in the last message, in their order
	Step      int             `json:"step"`             // model calls that counted
	Finished  []FinishedCall  `json:"done,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	Notes     []Note          `json:"notes,omitempty"`
	Usage     Usage           `json:"usage"`
	Spent     time.Duration   `json:"spent"` // wall clock of earlier lives
	Attempts  Attempts        `json:"tries"`
	TextTools bool            `json:"text,omitempty"`   // fell back to the text form
	Forced    bool            `json:"forced,omitempty"` // the next reply must be the answer
	Final     bool            `json:"final,omitempty"`  // Answer is the answer
	Answer    string          `json:"answer,omitempty"`
	Partial   bool            `json:"partial,omitempty"` // not all of an answer
}

// Attempts count what may happen only so often.
type Attempts struct {
	Nudges     int `json:"nudges,omitempty"`
	Retries    int `json:"retries,omitempty"`
	MoreTokens int `json:"room,omitempty"`
	Search     int `json:"search,omitempty"`
	Reask      int `json:"reask,omitempty"`
}

// Usage adds up over the model calls of a turn.
type Usage struct {
	Calls     int    `json:"calls"`
	Prompt    int    `json:"prompt"`
	Output    int    `json:"output"`
	Estimated int    `json:"estimated"`       // our own count of the last prompt
	Counted   int    `json:"counted"`         // the server's count of the same
	Model     string `json:"model,omitempty"` // who answered last
}

// Hooks show a turn as it happens. Each may be nil. None is called by two goroutines at once.
type Hooks struct {
	Generating func(step int)                             // a model call begins
	Thinking   func(step int, text string)                //
	Token      func(step int, text string)                // a piece of what may be the answer; never part of a call
	Interim    func(step int, words string)               // what the model said beside its calls: not the answer
	Started    func(step int, c model.Call, layer string) // a call begins
	Finished   func(step int, d FinishedCall)             //
	Note       func(n Note)                               //
	// Checkpoint writes the turn down: after each reply with calls before any of them runs, after the results of a step,
	// and when the answer is there. An error ends the turn: what cannot be written down must not be acted upon.
	Checkpoint func(ctx context.Context, s *State) error
}

// Input is one turn: what was said before, and the question or a state to go on from.
type Input struct {
	Summary string          // of turns that are no longer in History; sent as data, not in the system message
	History []model.Message // earlier turns, without thinking
	State   State           // Messages holds at least the question
}
