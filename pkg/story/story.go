// Package story runs acceptance stories: a YAML file with questions and expectations. The questions go to a complete
// system, and the expectations are checked against the event log: which events are there, which are not, in which
// order.
//
// Besides questions and expectations a story can have:
//
//	manifest:     the complete manifest of the story, as fields or as the text of a file
//	web:          the pages that the web tools reach, and which of them a search finds; no other page is reachable
//	credentials:  names and invented values in the keyring at the start
//	server.key:   the credential that the scripted model server requires
//
// and in a turn, in the order of execution:
//
//	mode:         who is asked: assistant (default), committee, with personas, or task
//	after:        events to wait for before the turn starts, one or a list; events of earlier turns count, times=2
//	              means at least two. Memory stores answers asynchronously: after: memory.stored
//	override:     the override of the session: level, once, disable, grant
//	memory:       a change that the user makes to memory: add {text, name, tags, pinned}, import {from, text, trust},
//	              or words for forget, pin, unpin, accept and reject (all = every proposal); with refused: true memory
//	              must reject it
//	feedback:     the user's rating of the answer of an earlier turn: of, thumb, stars, words
//	approve:      the user's decision on approval requests of the turn: approve, deny or ignore
//	crash:        an actor or tool that is killed at a moment: an event, a text in the answer, or a request for a page
//	request:      in place of a question, a tool call of an agent, perhaps of agents that it spawns first; of is the
//	              turn whose question it belongs to
//
// A turn that only acts or waits needs no question.
//
// The package has no bus, web or model server of its own: the caller of [Run] provides a [System].
package story

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"conclave/pkg/attachment"
	"conclave/pkg/file"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Story is one acceptance story.
type Story struct {
	ID    string `yaml:"story"`
	Title string `yaml:"title"`
	Why   string `yaml:"why"` // what is broken when it fails, in one line
	// ScriptedOnly skips the story with a real model: it tests misbehaviour of a model or its server.
	ScriptedOnly bool `yaml:"scripted_only"`
	// Programs are optional programs, such as bwrap, without which the story is skipped.
	Programs []string `yaml:"programs"`
	// Needs are the abilities that a real model must have, by the names in abilities. A live run skips the story when
	// the assistant's model lacks one.
	Needs []string `yaml:"needs"`
	// Config overrides the shipped configuration, by file: generator: {steps: 2}.
	Config map[string]map[string]any `yaml:"config"`
	// Manifest replaces the shipped manifest: fields, or the text of a file.
	Manifest any    `yaml:"manifest"`
	Web      *Web   `yaml:"web"`
	Server   Server `yaml:"server"`
	// Credentials are in the keyring at the start, by name. Their values are in this file, so they must be invented.
	Credentials map[string]string `yaml:"credentials"`
	// Model is the script of the model server, by role.
	Model  scriptserver.Script `yaml:"model"`
	Turns  []Turn              `yaml:"turns"`
	Events Events              `yaml:"events"`

	file  string
	lines strict.Lines
}

// abilities are the abilities of models that a story can need.
var abilities = map[string]func(subjects.RoleModel) bool{
	"tools":        func(m subjects.RoleModel) bool { return m.Tools },
	"native_calls": func(m subjects.RoleModel) bool { return m.Tools && m.Calls != subjects.CallConstrained },
	"thinking":     func(m subjects.RoleModel) bool { return m.Thinking },
	"vision":       func(m subjects.RoleModel) bool { return m.Vision },
}

// Lacks returns the first ability that the story needs and m lacks; "" = m has all of them.
func (s *Story) Lacks(m subjects.RoleModel) string {
	for _, need := range s.Needs {
		if !abilities[need](m) {
			return need
		}
	}
	return ""
}

// Server changes the scripted model server, which by default has the models of the script and no others.
type Server struct {
	Down   bool             `yaml:"down"`   // no server listens
	Models map[string]Model `yaml:"models"` // by role
	// Key is the name of a credential. The server then uses OpenAI's protocol and rejects requests without it.
	Key string `yaml:"key"`
}

// Model is the abilities of a model; nil means that it has the ability. Without an entry it cannot read images.
type Model struct {
	Tools    *bool `yaml:"tools"`
	Thinking *bool `yaml:"thinking"`
	Vision   bool  `yaml:"vision"` // false = it cannot read images
	Window   int   `yaml:"window"` // context window in tokens; 0 = 131072
}

// Turn is one question and the expectations of its answer. An unexpected error, a partial answer or an empty one fails
// the turn.
type Turn struct {
	Query string `yaml:"query"` // "" = no question: the turn only acts or waits
	// Mode is how the question is asked, one of [subjects.Modes]; "" = assistant. Personas go with the question.
	Mode     string   `yaml:"mode"`
	Personas []string `yaml:"personas"`
	// Attachments are untrusted content that the question is about.
	Attachments []Attachment `yaml:"attachments"`
	// Request replaces the question: an agent calls a tool without a model. The tool result is the answer.
	Request *Request `yaml:"request"`
	// Reference is what a good answer says. Only the critic gets it.
	Reference string `yaml:"reference"`
	Session   string `yaml:"session"` // as sent; "" = one session for the whole story
	// After is an event, or a list of events, to wait for before the turn starts.
	After    any       `yaml:"after"`
	Override *Override `yaml:"override"`
	Memory   *Memory   `yaml:"memory"`
	Feedback *Feedback `yaml:"feedback"`
	Approve  *Approve  `yaml:"approve"`
	// ScriptedOnly skips the expectations of this turn with a real model. The question is still asked.
	ScriptedOnly bool      `yaml:"scripted_only"`
	Answer       *Answer   `yaml:"answer"`
	Thinking     *Thinking `yaml:"thinking"`
	// ToolCalls must be among the calls of the answer, in this order. An empty list allows no call.
	ToolCalls []Call   `yaml:"tool_calls"`
	Notes     []string `yaml:"notes"` // codes that are required
	NoNotes   bool     `yaml:"no_notes"`
	Partial   bool     `yaml:"partial"`
	Error     string   `yaml:"error"`      // code of the fault that ends the turn
	StopAfter *Moment  `yaml:"stop_after"` // when the user cancels the question
	Crash     *Crash   `yaml:"crash"`

	after []EventPattern
}

// respondent is the account that the question is for.
func (t Turn) respondent() string { return subjects.Modes[cmp.Or(t.Mode, "assistant")] }

// Attachment is content that comes with a question and that the user did not type; see [subjects.Attachment].
type Attachment struct {
	Name   string `yaml:"name"`
	Source string `yaml:"source"`
	Text   string `yaml:"text"`
	File   string `yaml:"file"` // instead of Text: the content of a file, base64
}

// attached returns the attachments of the turn's question, and the content of the images among them.
func (t Turn) attached(ctx context.Context) (out []subjects.Attachment, images [][]byte, err error) {
	for _, a := range t.Attachments {
		f := attachment.File{Attachment: subjects.Attachment{Name: a.Name, Source: a.Source, Text: a.Text}}
		if a.File != "" {
			data, err := base64.StdEncoding.DecodeString(a.File)
			if err == nil {
				f, err = attachment.Decode(ctx, a.Source, a.Name, data)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("attachment %s: %w", a.Name, err)
			}
		}
		out = append(out, f.Attachment)
		if f.Image != nil {
			images = append(images, f.Image)
		}
	}
	return out, images, nil
}

// Request is a tool call of an agent without a model.
type Request struct {
	As string `yaml:"as"` // the agent's account
	// Of is the turn whose question it belongs to, from 1. With 0 it belongs to no question of the user, and the broker
	// treats everything in the session as untrusted content.
	Of int `yaml:"of"`
	// Spawn creates agents first, each a child of the one before. The last one calls the tool.
	Spawn []Child        `yaml:"spawn"`
	Tool  string         `yaml:"tool"`
	Args  map[string]any `yaml:"args"`
}

// Child is an agent that is spawned.
type Child struct {
	Type  string   `yaml:"type"`
	Tools []string `yaml:"tools"` // granted tools; empty = all that its type may have
}

// Override is the override that the user sets for the session before the question.
type Override struct {
	Level   string   `yaml:"level"` // NONE, RELAX, ALL
	Once    bool     `yaml:"once"`  // for this question alone
	Disable []string `yaml:"disable"`
	Grant   []string `yaml:"grant"` // type:tool
}

// Approve is the user's decision on every approval request of the turn. A turn without an approval request fails,
// because the decision has not been tested.
type Approve struct {
	Answer   string `yaml:"answer"`   // approve, deny or ignore
	Remember string `yaml:"remember"` // session or always; "" = this once
}

// Decisions of the user.
const (
	AnswerApprove = "approve"
	AnswerDeny    = "deny"
	AnswerIgnore  = "ignore"
)

// Answer is the expectations of the text of an answer. Contains and NotContains are case-insensitive.
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

// Source is the origin of an expected quote: a field of the last matching event of the turn. Without Line, the answer
// must contain any one line of it.
type Source struct {
	Event string `yaml:"event"` // subject; wildcards are fine
	Field string `yaml:"field"`
	Line  int    `yaml:"line"` // from 1
	// ScriptedOnly skips the quote with a real model, which may say the same in other words.
	ScriptedOnly bool `yaml:"scripted_only"`
}

// Thinking is the expectations of the model's thinking.
type Thinking struct {
	NotEmpty     bool     `yaml:"not_empty"`
	Empty        bool     `yaml:"empty"`
	Contains     []string `yaml:"contains"`
	ScriptedOnly bool     `yaml:"scripted_only"`
}

// Call is the expectations of one tool call in the answer.
type Call struct {
	Tool           string         `yaml:"tool"`
	Args           map[string]any `yaml:"args"` // required arguments; others are allowed
	Layer          string         `yaml:"layer"`
	ResultContains string         `yaml:"result_contains"`
	Error          string         `yaml:"error"` // code; "" = success
	ScriptedOnly   bool           `yaml:"scripted_only"`
}

// Moment is a point in a turn: an event, a text in the streamed answer, or a request for a page of the story. One of
// the three is set.
type Moment struct {
	Event *EventPattern `yaml:"event"`
	Delta string        `yaml:"delta"`
	Page  string        `yaml:"page"`
}

// Crash kills an actor.
type Crash struct {
	Actor string `yaml:"actor"` // name of the actor or tool
	After Moment `yaml:"after"`
}

// Events is the expectations of the event log over the whole story.
type Events struct {
	Present []EventPattern `yaml:"present"`
	Absent  []EventPattern `yaml:"absent"`
	InOrder []EventPattern `yaml:"in_order"` // with other events between them
}

// Load reads the story in a file.
func Load(path string) (*Story, error) {
	data, err := file.Read(path, strict.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("reading a story: %w", err)
	}
	return Parse(data, path)
}

// Parse reads and validates a story strictly: unknown fields are rejected. name is the file in errors and failures. The
// error is the first one, with its line.
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

// File is the file of the story.
func (s *Story) File() string { return s.file }

// Line is the line of a field such as turns[0].answer, or of the nearest field around it.
func (s *Story) Line(path string) int { return s.lines.At(path) }

// invalid returns an error about a field.
func (s *Story) invalid(path, format string, a ...any) error {
	return &strict.Error{File: s.file, Line: s.Line(path), Path: path, Text: fmt.Sprintf(format, a...)}
}

// validate returns the first error of the story. It rejects missing titles and turns, names of files that are none, and
// a story without an expectation, which could not fail. Any other wrong name, page or credential fails when it is run.
func (s *Story) validate() error {
	for i, need := range s.Needs {
		if abilities[need] == nil {
			return s.invalid(fmt.Sprintf("needs[%d]", i), "there is no ability %q; abilities are %s", need,
				strings.Join(strict.SortedKeys(abilities), ", "))
		}
	}
	for _, f := range []struct{ path, value string }{{"story", s.ID}, {"title", s.Title}, {"why", s.Why}} {
		if strings.TrimSpace(f.value) == "" {
			return s.invalid(f.path, "is required")
		}
	}
	if strings.Contains(strings.TrimSpace(s.Why), "\n") {
		return s.invalid("why", "must be one line")
	}
	for _, name := range strict.SortedKeys(s.Config) {
		if subjects.CheckToken(name) != nil {
			return s.invalid(strict.JoinPath("config", name), "is not the name of a configuration file")
		}
	}
	if len(s.Turns) == 0 {
		return s.invalid("turns", "a story needs at least one turn")
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
		return s.invalid("", "has no expectation, so it cannot fail")
	}
	for i, w := range s.Events.InOrder {
		if w.times >= 0 {
			return s.invalid(fmt.Sprintf("events.in_order[%d]", i), "times is not allowed in in_order; use present")
		}
	}
	return s.validateQuotes()
}

// validateTurn checks the turn at path and returns the number of its expectations, 0 when it has none. It rejects
// contradictory expectations, and compiles the regular expression of its answer.
func (s *Story) validateTurn(path string, t *Turn) (expected int, err error) {
	if err := s.validateAsk(path, *t); err != nil {
		return 0, err
	}
	if t.Answer != nil {
		if err := s.validateAnswer(path+".answer", t.Answer); err != nil {
			return 0, err
		}
		expected++
	}
	if h := t.Thinking; h != nil {
		if h.Empty == (h.NotEmpty || len(h.Contains) > 0) {
			return 0, s.invalid(path+".thinking", "is contradictory: use empty, or not_empty and contains")
		}
		expected++
	}
	if t.NoNotes && len(t.Notes) > 0 {
		return 0, s.invalid(path+".no_notes", "contradicts notes")
	}
	if err := s.validateApprove(path, t.Approve); err != nil {
		return 0, err
	}
	if t.StopAfter != nil {
		if err := s.validateMoment(path+".stop_after", *t.StopAfter); err != nil {
			return 0, err
		}
	}
	if c := t.Crash; c != nil {
		if err := s.validateMoment(path+".crash.after", c.After); err != nil {
			return 0, err
		}
	}
	if t.ToolCalls != nil || len(t.Notes) > 0 || t.NoNotes || t.Partial || t.Error != "" {
		expected++
	}
	return expected, nil
}

// validateAnswer checks the expectations of an answer and compiles its regular expression. It rejects an answer without
// an expectation, and contains_from without a field or with a negative line.
func (s *Story) validateAnswer(path string, a *Answer) (err error) {
	if len(a.Contains)+len(a.NotContains) == 0 && a.Equals == "" && a.Matches == "" && !a.NotEmpty &&
		a.ContainsFrom == nil {
		return s.invalid(path, "has no expectation")
	}
	if a.matches, err = regexp.Compile(a.Matches); err != nil {
		return s.invalid(path+".matches", "%v", err)
	}
	f := a.ContainsFrom
	if f == nil {
		return nil
	}
	if err := checkPattern(f.Event); err != nil {
		return s.invalid(path+".contains_from.event", "%v", err)
	}
	if f.Field == "" || f.Line < 0 {
		return s.invalid(path+".contains_from", "needs a field, and a line from 1 if any")
	}
	return nil
}

// validateAsk checks that a turn has a question, a request or an action, and only the fields that go with it.
func (s *Story) validateAsk(path string, t Turn) error {
	asked := t.Thinking != nil || t.ToolCalls != nil || len(t.Notes) > 0 || t.NoNotes || t.StopAfter != nil ||
		t.Crash != nil || t.Approve != nil
	if t.respondent() == "" {
		return s.invalid(path+".mode", "is not one of %s", strings.Join(strict.SortedKeys(subjects.Modes), ", "))
	}
	switch {
	case t.asksNothing() && !t.hasActions():
		return s.invalid(path+".query", "is required")
	case t.asksNothing() && (asked || t.Answer != nil || t.Error != "" || t.Partial || t.ScriptedOnly):
		return s.invalid(path, "has expectations of an answer and no question")
	case t.Request == nil:
		return nil
	case strings.TrimSpace(t.Query) != "" || asked:
		return s.invalid(path+".request", "allows only answer and error in its turn")
	}
	return nil
}

// validateApprove checks the decision on approval requests, nil for none. It rejects unknown values, and remember for
// anything but approve.
func (s *Story) validateApprove(path string, a *Approve) error {
	switch {
	case a == nil:
	case !slices.Contains([]string{AnswerApprove, AnswerDeny, AnswerIgnore}, a.Answer):
		return s.invalid(path+".approve.answer", "is not one of %s, %s, %s", AnswerApprove, AnswerDeny, AnswerIgnore)
	case !slices.Contains([]string{"", subjects.RememberSession, subjects.RememberAlways}, a.Remember):
		return s.invalid(path+".approve.remember", "is not one of %s, %s", subjects.RememberSession,
			subjects.RememberAlways)
	case a.Remember != "" && a.Answer != AnswerApprove:
		return s.invalid(path+".approve.remember", "only approve can be remembered")
	}
	return nil
}

// validateMoment checks that exactly one field of a moment is set. It rejects a page that the story has not, and an
// event with times.
func (s *Story) validateMoment(path string, m Moment) error {
	switch {
	case countTrue(m.Event != nil, m.Delta != "", m.Page != "") != 1:
		return s.invalid(path, "needs one of event, delta or page")
	case m.Page != "" && !s.hasPage(m.Page):
		return s.invalid(path+".page", "is not a page of the story")
	case m.Event != nil && m.Event.times >= 0:
		return s.invalid(path+".event", "times is not allowed in a moment")
	}
	return nil
}

func countTrue(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

// validateQuotes rejects contains_from when the story has a script and no reply of it quotes with {{: it would prove
// nothing. [checker.checkQuote] checks later that no reply has the words itself.
func (s *Story) validateQuotes() error {
	if len(s.Model) == 0 {
		return nil
	}
	quotes := strings.Contains(strings.Join(s.scriptedTexts(), ""), "{{")
	for i, t := range s.Turns {
		if !quotes && t.Answer != nil && t.Answer.ContainsFrom != nil {
			return s.invalid(fmt.Sprintf("turns[%d].answer.contains_from", i), "no scripted reply quotes the "+
				"request; write {{tool_result 0}} where the words belong")
		}
	}
	return nil
}

// scriptedTexts returns the contents of the scripted replies, not expanded.
func (s *Story) scriptedTexts() (out []string) {
	for _, role := range strict.SortedKeys(s.Model) {
		for _, x := range s.Model[role] {
			out = append(out, x.Reply.Content)
		}
	}
	return out
}
