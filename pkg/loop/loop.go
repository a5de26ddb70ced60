// Package loop is the one implementation of "call a model with tools until it answers". Every agent uses it; agents
// differ in prompt, tools, limits and hooks. It uses no bus and no HTTP, and its clock and ids can be injected.
//
// [RunTurn] runs a turn. It can be stopped at any point and resumed from its last [State]: see [Hooks.Checkpoint].
//
// Calls that a model wrote as text are read in the forms that were seen from real models (text_calls.go), copied parts
// of prompts and frames are removed or asked about again (clean_answer.go, frame_filter.go).
//
// The patterns for announced actions know English, German, French, Spanish, Portuguese and Italian, those for hedges
// English only. On sentences that were written to measure them, by an author who had read them, and that none was
// changed for (testdata/held_answers.jsonl), they find 24 of 40 announcements (7 of 12 in English) and 7 of 10 hedges,
// and take none of 37 others for one. Removed were the patterns for hedges in the other languages, which found 7 of 28,
// and those for actions that an answer claims and no call did, which found 7 of 24: the critic's judge is given the
// list of calls.
package loop

import (
	"context"
	"time"

	"conclave/pkg/model"
)

// Agent is what stays the same from turn to turn.
type Agent struct {
	Chat model.Chat
	// RunTool runs one call. Several run at once. A call that does not return when ctx ends is abandoned.
	RunTool func(ctx context.Context, c model.Call) Result
	Model   string // "" = Chat chooses
	System  string // the system message
	// Plain is the system message of a conversation without untrusted content, in constrained mode only; nil = System.
	// An empty one gives a question that needs no tool the prompt of a plain chat: small models answer worse below
	// rules.
	Plain *string
	Tools []model.Tool // tools offered to the model
	Calls CallMode     // how the model calls tools; "" = CallNative. A turn that is resumed keeps its own
	// the user's own words, without attachments; "" = the last message of the user. Constrained mode only
	Question string
	// Withheld are names of tools that no decision of this turn may choose; constrained mode only.
	Withheld []string
	Stream   bool
	Think    *bool
	Options  model.Options // of every model call; the loop sets Predict, and Temperature 0 for decisions and arguments
	Limits   Limits
	Hedge    Hedge
	// Settings is the file that sets CallTimeout, FirstToken and TurnTimeout as call_timeout, first_token_timeout and
	// wall; messages about these limits name it. "" = none.
	Settings string
	Now      func() time.Time // nil = time.Now
	NewID    func() string    // id for a call whose own id is missing, invalid or already used; nil = random
}

// CallMode is how a model calls tools.
type CallMode string

// Call modes.
const (
	CallNative CallMode = "native" // by the tool calls of the model's own protocol
	// CallConstrained makes each step a decision under a JSON schema, a call of a tool or to answer, and the answer a
	// model call of its own without a schema. It is for models that call tools badly by themselves.
	CallConstrained CallMode = "constrained"
	CallText        CallMode = "text" // tools are described in the system message, calls are read from text
)

// Limits bound a turn. Zero means the default in brackets. A negative number means none: no nudges, no retries, no
// whole rounds, and for everything else no bound; for StepTokens and AnswerTokens then the backend's own holds, and a
// negative ReplyBytes means 64 MiB.
type Limits struct {
	// model calls that may ask for tools [5]; then one more without tools, which must answer
	Steps         int
	TokenBudget   int           // prompt and output tokens of all calls of a turn [no bound]
	TurnTimeout   time.Duration // of a turn [10 m]
	CallTimeout   time.Duration // between two chunks of a reply [120 s]
	FirstToken    time.Duration // before the first chunk of a reply [5 m]; see [Limits.firstTokenLimit]
	Nudges        int           // replies that announce or claim an action without a call and are sent back [2]
	Retries       int           // malformed or empty replies that are retried [2]
	Repeats       int           // the call with this number is refused when all have the same arguments and result [3]
	StepTokens    int           // output tokens while tools are offered [2048]
	AnswerTokens  int           // output tokens of the answer [4096]
	ReplyBytes    int           // of one reply; the rest is not read [256 KiB]
	ResultBytes   int           // of one tool result in the context [a quarter of the window]
	WholeRounds   int           // tool rounds kept whole; older ones are shortened to a line per message [3]
	CallsPerReply int           // calls beyond it are refused [20]
}

// Hedge is what to do about an answer that says it cannot know current facts.
type Hedge struct {
	SearchTool string // tool for one search when no tool ran; "" = off. It must be offered
	Query      string // of that search: the user's own words, since it leaves the machine; "" = no search
	Reask      bool   // ask once more when there are results
}

// Result is the result of a call. In a [State] the text has at most [Limits.ResultBytes], and a line about the omission
// if it was cut; [Hooks.Finished] gets all of it.
type Result struct {
	Text  string `json:"text"`            // for the model
	Fault string `json:"fault,omitempty"` // code of a call that failed, was denied or did not return; "" = it succeeded
	// Cause says to the user why the call failed and what to do, where the text does not; "" = the text says it.
	Cause string `json:"cause,omitempty"`
	// Ephemeral means that the text holds only at the time of the call.
	Ephemeral bool `json:"ephemeral,omitempty"`
}

// Layers in which a call was found.
const (
	LayerNative   = "native"
	LayerJSON     = "json"
	LayerXML      = "xml"
	LayerText     = "text"
	LayerDecision = "decision"   // under the JSON schema of a decision
	LayerSafety   = "safety_net" // not the model's: the search after a hedge
	LayerRecall   = "recall"     // not the model's: the search of memory before its first call
)

// FinishedCall is a call with its result.
type FinishedCall struct {
	Call   model.Call `json:"call"`
	Layer  string     `json:"layer"`
	Step   int        `json:"step"`
	Result Result     `json:"result"`
}

// Note tells the user about a guard that fired, a fallback or a truncation.
type Note struct {
	Code string `json:"code"` // one of the Note constants
	Text string `json:"text"`
}

// Codes of notes.
const (
	NoteRecovered   = "recovered_call" // a call was read from text
	NoteCopied      = "quoted_call"    // a call that the model copied from a tool result was not run
	NoteCleaned     = "copied_prompt"  // text that the model copied from its prompt was taken out of the answer
	NoteInvalid     = "invalid_call"   // arguments that do not fit the schema were returned to the model
	NoteUnknown     = "unknown_tool"   // a tool that is not offered was called
	NoteInvented    = "invented_url"   // a call with an address that the model made up was refused
	NoteRepeated    = "repetition"     // an identical call with an identical result was refused
	NoteStepCap     = "step_cap"       // the answer was forced after the last step
	NoteTokenBudget = "token_budget"   // the answer was forced by the token budget
	NoteTurnTimeout = "wall_clock"     // the answer was forced, or the turn ended, by the turn timeout
	NoteNudged      = "nudged"         // a reply announced an action without a call
	NoteRetried     = "retried"        // an empty or malformed reply was retried
	NoteMoreTokens  = "more_room"      // the output hit its token limit and was retried with twice the limit
	NoteCut         = "cut"            // the answer was cut off by a limit or a timeout
	NoteTrimmed     = "trimmed"        // history did not fit into the context
	NoteTruncated   = "truncated"      // the server read less than was sent
	NoteClipped     = "clipped_result" // a result was larger than its share of the context
	NoteSearched    = "safety_net"     // a hedge led to a search
	NoteReasked     = "asked_again"    // a hedge although there are results
	NoteNoTools     = "no_tools"       // the model does not support tools: text form
	NoteStatic      = "static_context" // text form failed too: the answer comes from the prompt alone
	NoteNoThinking  = "no_thinking"    // the model does not support thinking
	NoteStopped     = "stopped"        // the user stopped the turn
	NoteFailed      = "model_failed"   // the model failed; the progress so far is kept
	NoteEmpty       = "no_answer"      // there is no answer of the model; the loop wrote the text
	NoteBadText     = "invalid_utf8"   // invalid bytes were replaced
	NoteMachine     = "machine"        // the model actor reports the state of the machine that the model runs on
)

// State is the progress of a turn: plain data that is stored at a checkpoint and read back after a crash. On resume, a
// call without its FinishedCall is run again with the same id; RunTool must know by the id whether it ran before.
type State struct {
	Messages []model.Message `json:"messages"`         // the question and everything since
	Layers   []string        `json:"layers,omitempty"` // of the calls in the last message, in their order
	Step     int             `json:"step"`             // model calls whose reply was accepted
	Finished []FinishedCall  `json:"done,omitempty"`
	Thinking string          `json:"thinking,omitempty"`
	Notes    []Note          `json:"notes,omitempty"`
	Usage    Usage           `json:"usage"`
	Spent    time.Duration   `json:"spent"` // time used so far, restarts not counted
	Attempts Attempts        `json:"tries"`
	// how the model calls tools in this turn; "" = the turn has not begun
	Calls   CallMode `json:"calls,omitempty"`
	Forced  bool     `json:"forced,omitempty"` // the next reply must be the answer
	Final   bool     `json:"final,omitempty"`  // Answer is the answer
	Answer  string   `json:"answer,omitempty"`
	Partial bool     `json:"partial,omitempty"` // Answer is incomplete
}

// Attempts counts what may happen only a limited number of times in a turn.
type Attempts struct {
	Nudges     int `json:"nudges,omitempty"`
	Retries    int `json:"retries,omitempty"`
	MoreTokens int `json:"room,omitempty"`
	Search     int `json:"search,omitempty"`
	Reask      int `json:"reask,omitempty"`
}

// Usage is the sum over the model calls of a turn.
type Usage struct {
	Calls     int    `json:"calls"`
	Prompt    int    `json:"prompt"`          // tokens
	Output    int    `json:"output"`          // tokens
	Estimated int    `json:"estimated"`       // the loop's estimate of the last prompt
	Counted   int    `json:"counted"`         // the server's count of the same
	Model     string `json:"model,omitempty"` // of the last reply
	// Hosts got the prompts; "" = this machine.
	Hosts []string `json:"hosts,omitempty"`
}

// Hooks report a turn as it happens. Each may be nil. All are called in the goroutine of [RunTurn].
type Hooks struct {
	Generating func(step int)                  // a model call begins
	Reading    func(step int, r model.Reading) // the server begins to read the prompt
	Thinking   func(step int, text string)     // a piece of thinking
	// a piece of text that may be the answer; never part of a call
	Token    func(step int, text string)
	Interim  func(step int, text string)                // text of a reply that is not the answer
	Started  func(step int, c model.Call, layer string) // a call begins
	Finished func(step int, d FinishedCall)             // a call has its result
	Note     func(n Note)
	// Checkpoint stores the turn: after each reply with calls before any of them runs, after the results of a step, and
	// with the answer. It must not change the state. An error ends the turn: no call runs without its checkpoint.
	Checkpoint func(ctx context.Context, s *State) error
}

// Input is one turn: the conversation before, and the question or a state to resume.
type Input struct {
	Summary string          // of turns that are no longer in History; sent as data, not in the system message
	History []model.Message // earlier turns
	State   State           // Messages holds at least the question
	// Recalled is a call that was made for the question before the turn, with [LayerRecall] and an id of its own; nil =
	// none. The first decision of constrained mode does not see it.
	Recalled *FinishedCall
}
