// Package story turns a YAML file into questions and expectations. A story is asked of a whole Conclave, and what came of
// it is read from the event stream: what was said, what was not, and in which order.
//
// Besides questions and expectations a story can say:
//
//	manifest:     the whole manifest of this story, as fields or as the text of a file
//	web:          pages of a web of its own, and which of them a search finds; nothing else can be reached
//	credentials:  names and made-up values that the keyring holds when the story begins
//	server.key:   the credential that the scripted model server wants to see
//
// and of a turn, in the order in which it happens:
//
//	after:        events that must be there before the turn begins, one or a list; those of earlier turns count, and
//	              times=2 means at least two. Memory keeps answers beside the conversation: after: memory.stored
//	override:     what the user sets for the session before the question: level, once, disable, grant
//	memory:       what the user does to memory by hand: add {text, name, tags, pinned}, import {from, text, trust},
//	              edit {of, name, text}, or words for forget, pin, unpin, accept and reject (all = every proposal);
//	              with refused: true memory must say no
//	grade:        what the critic says of the answer of a turn: of, score, feedback. One that is still to come is graded
//	              before it is asked. reward {of, value} and pairwise {of, winner} go the same way
//	approve:      what the user answers when a call needs a yes: approve, deny, or ignore
//	crash:        an actor or a tool that is killed at a moment: an event, words of the answer, or a page that is asked for
//	request:      instead of a question, an agent's own call, made by agents that it spawns first if the story says so; of
//	              is the turn whose question it is for
//
// A turn that only does or waits for something needs no question.
//
// The package knows no bus, no web and no model server. Whoever runs a story gives it a [System].
package story

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"conclave/pkg/model/scriptserver"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Story is one acceptance story.
type Story struct {
	ID    string `yaml:"story"`
	Title string `yaml:"title"`
	Why   string `yaml:"why"` // what would be broken if it failed, in one line
	// ScriptedOnly leaves the story out with a real model: it is about what a model or its server does wrong.
	ScriptedOnly bool `yaml:"scripted_only"`
	// Config is laid over the shipped configuration, by file: generator: {steps: 2}.
	Config map[string]map[string]any `yaml:"config"`
	// Manifest is the manifest of the story, and all of it: fields, or the text of a file.
	Manifest any    `yaml:"manifest"`
	Web      *Web   `yaml:"web"`
	Server   Server `yaml:"server"`
	// Credentials are in the keyring when the story begins, by name. Their values stand in the file: they are made up.
	Credentials map[string]string `yaml:"credentials"`
	// Model is what the scripted model server answers, by role.
	Model  scriptserver.Script `yaml:"model"`
	Turns  []Turn              `yaml:"turns"`
	Events Events              `yaml:"events"`

	file  string
	lines strict.Lines
}

// Server is how the scripted model server differs from one that has the models of the script and no others.
type Server struct {
	Down   bool             `yaml:"down"`   // nobody listens there
	Models map[string]Model `yaml:"models"` // by role
	// Key is the name of a credential. The server then speaks OpenAI's protocol and answers nobody who does not show it.
	Key string `yaml:"key"`
}

// Model is what a model can do. Nothing said means yes.
type Model struct {
	Tools    *bool `yaml:"tools"`
	Thinking *bool `yaml:"thinking"`
	Window   int   `yaml:"window"` // tokens; 0 = plenty
}

// Turn is one question and what is expected of its answer. An error or half an answer that was not announced fails it, and so
// does an empty answer.
type Turn struct {
	Query string `yaml:"query"` // "" = nothing is asked: the turn only does or waits for what stands below
	// Request is asked instead of a question: an agent goes to the broker past any model. Its result is the answer.
	Request *Request `yaml:"request"`
	// Reference is what a good answer says. The critic is shown it, and nobody else.
	Reference string `yaml:"reference"`
	Session   string `yaml:"session"` // as sent; "" = one session for the whole story
	// After are events that must be there before the turn begins: one, or a list of them.
	After    any       `yaml:"after"`
	Override *Override `yaml:"override"`
	Memory   *Memory   `yaml:"memory"`
	Feedback *Feedback `yaml:"feedback"`
	Approve  *Approve  `yaml:"approve"`
	// ScriptedOnly leaves out the expectations of this turn with a real model. The question is asked all the same.
	ScriptedOnly bool      `yaml:"scripted_only"`
	Answer       *Answer   `yaml:"answer"`
	Thinking     *Thinking `yaml:"thinking"`
	// ToolCalls must be among the calls of the answer, in this order. An empty list means that there are none.
	ToolCalls []Call   `yaml:"tool_calls"`
	Notes     []string `yaml:"notes"` // codes that must be there
	NoNotes   bool     `yaml:"no_notes"`
	Partial   bool     `yaml:"partial"`
	Error     string   `yaml:"error"`      // code of the fault that ends the turn
	StopAfter *Moment  `yaml:"stop_after"` // when the user stops it
	Crash     *Crash   `yaml:"crash"`

	after []EventPattern
}

// Request is a tool call that an agent makes by itself.
type Request struct {
	As string `yaml:"as"` // the agent's account
	// Of is the turn whose question it is for, from 1. Otherwise it is for none that anybody asked, and the broker takes
	// whatever is in the session for a stranger's.
	Of int `yaml:"of"`
	// Spawn makes agents first, each below the one before. The last of them calls.
	Spawn []Child        `yaml:"spawn"`
	Tool  string         `yaml:"tool"`
	Args  map[string]any `yaml:"args"`
}

// Child is an agent that is spawned.
type Child struct {
	Type  string   `yaml:"type"`
	Tools []string `yaml:"tools"` // no others; none = all that its type may have there
}

// Override is what the user sets for the session before the question.
type Override struct {
	Level   string   `yaml:"level"` // NONE, RELAX, ALL
	Once    bool     `yaml:"once"`  // for this question alone
	Disable []string `yaml:"disable"`
	Grant   []string `yaml:"grant"` // type:tool
}

// Approve is what the user answers to every question of the turn whether a call may run. A turn in which nobody asks has
// failed: what the answer does has not been seen then.
type Approve struct {
	Answer   string `yaml:"answer"`   // approve, deny or ignore
	Remember string `yaml:"remember"` // session or always; "" = this once
}

// Answers of the user.
const (
	AnswerApprove = "approve"
	AnswerDeny    = "deny"
	AnswerIgnore  = "ignore"
)

// Answer is expected of the words of an answer. Contained texts are compared without regard to case.
type Answer struct {
	Contains     []string `yaml:"contains"`
	NotContains  []string `yaml:"not_contains"`
	Equals       string   `yaml:"equals"`
	Matches      string   `yaml:"matches"` // regular expression
	NotEmpty     bool     `yaml:"not_empty"`
	ContainsFrom *Source  `yaml:"contains_from"`
	ScriptedOnly bool     `yaml:"scripted_only"`

	matches *regexp.Regexp
}

// Source is where expected words come from: a field of the last such event of the turn. Without Line, the answer must
// contain one line of it.
type Source struct {
	Event string `yaml:"event"` // subject; wildcards are fine
	Field string `yaml:"field"`
	Line  int    `yaml:"line"` // from 1
}

// Thinking is expected of what the model thought aloud.
type Thinking struct {
	NotEmpty     bool     `yaml:"not_empty"`
	Empty        bool     `yaml:"empty"`
	Contains     []string `yaml:"contains"`
	ScriptedOnly bool     `yaml:"scripted_only"`
}

// Call is expected of one tool call of the answer's record.
type Call struct {
	Tool           string         `yaml:"tool"`
	Args           map[string]any `yaml:"args"` // these, whatever else is there
	Layer          string         `yaml:"layer"`
	ResultContains string         `yaml:"result_contains"`
	Error          string         `yaml:"error"` // code; "" = it worked
	ScriptedOnly   bool           `yaml:"scripted_only"`
}

// Moment is when something is seen: an event, a text in the growing answer, or that somebody asks for a page of the
// story's web.
type Moment struct {
	Event *EventPattern `yaml:"event"`
	Delta string        `yaml:"delta"`
	Page  string        `yaml:"page"`
}

// Crash kills an actor.
type Crash struct {
	Actor string `yaml:"actor"` // its name; a tool goes by its own
	After Moment `yaml:"after"`
}

// Events is expected of the event stream of the whole story.
type Events struct {
	Present []EventPattern `yaml:"present"`
	Absent  []EventPattern `yaml:"absent"`
	InOrder []EventPattern `yaml:"in_order"` // others may stand between
}

// Load reads the story in a file.
func Load(file string) (*Story, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading a story: %w", err)
	}
	return Parse(data, file)
}

// Parse reads a story. name stands for the file in errors and in failures.
func Parse(data []byte, name string) (*Story, error) {
	s := &Story{file: name}
	var err error
	if s.lines, err = strict.Decode(data, name, s); err != nil {
		return nil, err
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	return s, nil
}

// File is where the story stands.
func (s *Story) File() string { return s.file }

// Line is the line of a field such as turns[0].answer, or of what is around it.
func (s *Story) Line(path string) int { return s.lines.At(path) }

func (s *Story) invalid(path, format string, a ...any) error {
	return &strict.Error{File: s.file, Line: s.Line(path), Path: path, Text: fmt.Sprintf(format, a...)}
}

// validate reports the first thing that cannot be meant.
func (s *Story) validate() error {
	for _, f := range []struct{ path, value string }{{"story", s.ID}, {"title", s.Title}, {"why", s.Why}} {
		if strings.TrimSpace(f.value) == "" {
			return s.invalid(f.path, "must be there")
		}
	}
	if strings.Contains(strings.TrimSpace(s.Why), "\n") {
		return s.invalid("why", "must be one line")
	}
	for _, name := range strict.Keys(s.Config) {
		if subjects.CheckToken(name) != nil {
			return s.invalid(strict.Join("config", name), "is not the name of a configuration file")
		}
	}
	if err := s.validateEnvironment(); err != nil {
		return err
	}
	for _, role := range append(strict.Keys(s.Model), strict.Keys(s.Server.Models)...) {
		if subjects.CheckToken(role) != nil {
			return s.invalid(strict.Join("model", role), "is not the name of a role")
		}
	}
	if len(s.Turns) == 0 {
		return s.invalid("turns", "a story needs at least one question")
	}
	expected := len(s.Events.Present) + len(s.Events.Absent) + len(s.Events.InOrder)
	for i := range s.Turns {
		n, err := s.validateTurn(fmt.Sprintf("turns[%d]", i), &s.Turns[i])
		if err != nil {
			return err
		}
		if err := s.validateActions(i); err != nil {
			return err
		}
		expected += n + len(s.Turns[i].after)
	}
	if expected == 0 {
		return s.invalid("", "expects nothing: it cannot fail")
	}
	for i, w := range s.Events.InOrder {
		if w.times >= 0 {
			return s.invalid(fmt.Sprintf("events.in_order[%d]", i), "times has no meaning in an order; use present")
		}
	}
	return s.validateQuotes()
}

// validateTurn also counts what the turn expects.
func (s *Story) validateTurn(path string, t *Turn) (expected int, err error) {
	if err := s.validateAsk(path, *t); err != nil {
		return 0, err
	}
	if a := t.Answer; a != nil {
		if len(a.Contains)+len(a.NotContains) == 0 && a.Equals == "" && a.Matches == "" && !a.NotEmpty && a.ContainsFrom == nil {
			return 0, s.invalid(path+".answer", "expects nothing")
		}
		if a.matches, err = regexp.Compile(a.Matches); err != nil {
			return 0, s.invalid(path+".answer.matches", "%v", err)
		}
		if f := a.ContainsFrom; f != nil {
			if err := checkPattern(f.Event); err != nil {
				return 0, s.invalid(path+".answer.contains_from.event", "%v", err)
			}
			if f.Field == "" || f.Line < 0 {
				return 0, s.invalid(path+".answer.contains_from", "needs a field, and a line from 1 if any")
			}
		}
		expected++
	}
	if h := t.Thinking; h != nil {
		if h.Empty == (h.NotEmpty || len(h.Contains) > 0) {
			return 0, s.invalid(path+".thinking", "is either empty or not")
		}
		expected++
	}
	for i, c := range t.ToolCalls {
		if subjects.CheckToken(c.Tool) != nil {
			return 0, s.invalid(fmt.Sprintf("%s.tool_calls[%d].tool", path, i), "is not the name of a tool")
		}
	}
	if t.NoNotes && len(t.Notes) > 0 {
		return 0, s.invalid(path+".no_notes", "there are notes, or there are none")
	}
	if err := s.validateUserActions(path, *t); err != nil {
		return 0, err
	}
	if t.StopAfter != nil {
		if err := s.validateMoment(path+".stop_after", *t.StopAfter); err != nil {
			return 0, err
		}
	}
	if c := t.Crash; c != nil {
		if subjects.CheckToken(c.Actor) != nil {
			return 0, s.invalid(path+".crash.actor", "is not the name of an actor")
		}
		if err := s.validateMoment(path+".crash.after", c.After); err != nil {
			return 0, err
		}
	}
	if t.ToolCalls != nil || len(t.Notes) > 0 || t.NoNotes || t.Partial || t.Error != "" {
		expected++
	}
	return expected, nil
}

func (s *Story) validateAsk(path string, t Turn) error {
	asked := t.Thinking != nil || t.ToolCalls != nil || len(t.Notes) > 0 || t.NoNotes || t.StopAfter != nil || t.Crash != nil || t.Approve != nil
	switch r := t.Request; {
	case t.asksNothing() && !t.hasActions():
		return s.invalid(path+".query", "must be there")
	case t.asksNothing() && (asked || t.Answer != nil || t.Error != "" || t.Partial || t.ScriptedOnly):
		return s.invalid(path, "asks nothing, so there is no answer to expect something of")
	case r == nil:
		return nil
	case strings.TrimSpace(t.Query) != "" || asked:
		return s.invalid(path+".request", "has an answer and an error, and nothing else of a turn")
	case subjects.CheckToken(r.As) != nil || subjects.CheckToken(r.Tool) != nil:
		return s.invalid(path+".request", "needs the account of an agent under as, and a tool")
	}
	for i, c := range t.Request.Spawn {
		if subjects.CheckToken(c.Type) != nil {
			return s.invalid(fmt.Sprintf("%s.request.spawn[%d].type", path, i), "is not a type of agents")
		}
	}
	return nil
}

func (s *Story) validateMoment(path string, m Moment) error {
	n := 0
	for _, there := range []bool{m.Event != nil, m.Delta != "", m.Page != ""} {
		if there {
			n++
		}
	}
	if n != 1 {
		return s.invalid(path, "needs either an event or a delta, or a page")
	}
	if m.Page != "" && !s.hasPage(m.Page) {
		return s.invalid(path+".page", "is no page of the story's web")
	}
	if m.Event != nil && m.Event.times >= 0 {
		return s.invalid(path+".event", "times has no meaning for a moment")
	}
	return nil
}

// validateQuotes refuses a story that would prove nothing: words that are to come from an event must be quoted by some reply. That
// they are not written out in one is checked when the event is there, see [check.checkQuote].
func (s *Story) validateQuotes() error {
	if len(s.Model) == 0 {
		return nil
	}
	for i, t := range s.Turns {
		if t.Answer == nil || t.Answer.ContainsFrom == nil {
			continue
		}
		quotes := false
		for _, text := range s.scriptedTexts() {
			quotes = quotes || strings.Contains(text, "{{")
		}
		if !quotes {
			return s.invalid(fmt.Sprintf("turns[%d].answer.contains_from", i), "no scripted reply quotes anything; write {{tool_result 0}} where the words belong")
		}
	}
	return nil
}

// scriptedTexts are the texts that the script says, as they are written.
func (s *Story) scriptedTexts() (out []string) {
	for _, role := range strict.Keys(s.Model) {
		for _, x := range s.Model[role] {
			out = append(out, x.Reply.Content)
		}
	}
	return out
}
