package scriptserver

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// Request is a request independent of its protocol.
type Request struct {
	model.Request             // arguments and schemas as they were sent
	Path          string      // of the URL
	Header        http.Header //
	Raw           []byte      // the body
	Texts         []string    // of an embedding request, which is recorded and not matched with the script
}

// Refusal is the reason for an error reply. Each protocol has its own text for it.
type Refusal string

// The refusals.
const (
	RefusedBusy     Refusal = "busy"
	RefusedTools    Refusal = "tools"
	RefusedThinking Refusal = "thinking"
	RefusedLength   Refusal = "length"   // the prompt is too long
	RefusedMissing  Refusal = "missing"  // no such model
	RefusedStatus   Refusal = "status"   // set by the script
	RefusedMismatch Refusal = "mismatch" // the request does not match the script
	RefusedRequest  Refusal = "request"  // the request cannot be decoded
)

// Answer is a refusal or the chunks of a reply, independent of the protocol: templates are expanded and the quirks of
// the content applied. The sender applies the quirks of the connection.
type Answer struct {
	Model   string
	Refusal Refusal // "" = a reply
	Status  int     // HTTP status of a refusal
	Text    string  // of a refusal

	Chunks []Chunk // in order, without Last; may be empty
	Last   Chunk   // sent with the end of the stream: calls with Quirks.CallsLast
	Reason string  // stop or length
	Prompt int     // tokens
	Output int     //
	Quirks Quirks
}

// Chunk is one part of a streamed reply.
type Chunk struct {
	Thinking string
	Content  string
	Calls    []model.Call // complete, each with an id unless Quirks.NoIDs is set
}

// Join returns everything the answer says, Last included, in one chunk.
func (a *Answer) Join() Chunk {
	var all Chunk
	var thinking, content strings.Builder
	for _, p := range append(slices.Clip(a.Chunks), a.Last) {
		thinking.WriteString(p.Thinking)
		content.WriteString(p.Content)
		all.Calls = append(all.Calls, p.Calls...)
	}
	all.Thinking, all.Content = thinking.String(), content.String()
	return all
}

// TextOr is the error text of the script, or that of a protocol when the script has none.
func (a *Answer) TextOr(text string) string { return cmp.Or(a.Quirks.ErrorLine, text) }

// Place is a place in a script.
type Place struct {
	Model string
	N     int // of the exchange, from 0; -1 = none
}

// Mismatch is a request that did not match the script.
type Mismatch struct {
	Place
	Text string
}

// Error implements error.
func (m Mismatch) Error() string { return m.Text }

// Engine matches requests with a script. It is independent of the protocol and safe for concurrent use.
type Engine struct {
	mu         sync.Mutex
	scripts    map[string][]*exchangeState // by model
	mismatches []Mismatch
	calls      int // ids generated so far
}

type exchangeState struct {
	Exchange
	n       int // index in the script, for errors
	used    bool
	touched bool // it matched a request, perhaps with a refusal
	busy    int  // remaining busy refusals
}

// AnyModel is the key of the exchanges for models without their own.
const AnyModel = "*"

// NewEngine returns an engine at the start of s. Model names are the same with and without :latest.
func NewEngine(s Script) *Engine {
	e := &Engine{scripts: make(map[string][]*exchangeState, len(s))}
	for name, exchanges := range s {
		all := make([]*exchangeState, len(exchanges))
		for i, x := range exchanges {
			all[i] = &exchangeState{Exchange: x, n: i, busy: x.Reply.Quirks.Busy}
		}
		e.scripts[trimTag(name)] = all
	}
	return e
}

// trimTag removes the default tag from a model name.
func trimTag(name string) string { return strings.TrimSuffix(name, ":latest") }

// Next returns the answer of the script to r. On a mismatch the answer is a refusal with the reason, which [Engine.Err]
// returns too. A conditional refusal (busy, refuse_think, refuse_tools) does not use the exchange up, so that the
// client's retry gets its reply.
func (e *Engine) Next(r Request) *Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, n, why := e.findExchange(r)
	if x == nil {
		return e.mismatch(r, n, why)
	}
	x.touched = true
	if a := x.refuseRequest(r); a != nil {
		return a
	}
	x.used = !x.Always
	a, err := e.buildAnswer(x.Reply, r)
	if err != nil {
		return e.mismatch(r, x.n, fmt.Sprintf("exchange %d: expanding the reply: %v", x.n, err))
	}
	return a
}

// findExchange returns the exchange for r, or nil and the reason, with the number of the exchange that it did not match
// (-1 = none was left): the next unused one of its model (or of [AnyModel]), which must match unless it is AnyOrder,
// else the first matching one with Always. It does not mark it as used. The caller holds the lock.
func (e *Engine) findExchange(r Request) (x *exchangeState, n int, why string) {
	all, ok := e.scripts[trimTag(r.Model)]
	if !ok {
		all, ok = e.scripts[AnyModel]
	}
	if !ok {
		return nil, -1, "the script has nothing for this model; it has " +
			strings.Join(slices.Sorted(maps.Keys(e.scripts)), ", ")
	}
	n, why = -1, "no exchange is left"
	for _, x := range all {
		if x.Always || x.used {
			continue
		}
		unmet := x.When.firstUnmet(r)
		if unmet == "" {
			return x, x.n, ""
		}
		n, why = x.n, fmt.Sprintf("exchange %d wants %s", x.n, unmet)
		if !x.AnyOrder {
			break
		}
	}
	for _, x := range all {
		if x.Always && x.When.firstUnmet(r) == "" {
			return x, x.n, ""
		}
	}
	return nil, n, why
}

// Fail refuses a request that a protocol cannot decode, and records it as a mismatch.
func (e *Engine) Fail(r Request, why string) *Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.mismatch(r, -1, why)
	a.Refusal, a.Status = RefusedRequest, http.StatusBadRequest
	return a
}

// mismatch records why r does not match exchange n, unless 100 are recorded, and returns the refusal for it. The caller
// holds the lock.
func (e *Engine) mismatch(r Request, n int, why string) *Answer {
	text := fmt.Sprintf("script of %s: %s; the request has %s", r.Model, why, r.describe())
	if len(e.mismatches) < 100 { // later ones follow from the first
		e.mismatches = append(e.mismatches, Mismatch{Place{r.Model, n}, text})
	}
	return &Answer{Model: r.Model, Refusal: RefusedMismatch, Status: http.StatusInternalServerError, Text: text}
}

// Err returns the mismatches so far.
func (e *Engine) Err() error {
	var errs []error
	for _, m := range e.Mismatches() {
		errs = append(errs, m)
	}
	return errors.Join(errs...)
}

// Mismatches returns the mismatches so far, at most 100.
func (e *Engine) Mismatches() []Mismatch {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.mismatches)
}

// Unused lists the exchanges that no request has matched, by model, without those with Always. An exchange that only
// refused counts as matched.
func (e *Engine) Unused() (left []Place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(e.scripts)) {
		for _, x := range e.scripts[name] {
			if !x.used && !x.touched && !x.Always {
				left = append(left, Place{name, x.n})
			}
		}
	}
	return left
}

// describe summarizes a request for an error message.
func (r Request) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d messages", len(r.Messages))
	if n := len(r.Messages); n > 0 {
		fmt.Fprintf(&b, ", the last from %s: %q", r.Messages[n-1].Role, text.Clip(r.Messages[n-1].Content, 200))
	}
	var tools []string
	for _, t := range r.Tools {
		tools = append(tools, t.Name)
	}
	think := "not set"
	if r.Think != nil {
		think = strconv.FormatBool(*r.Think)
	}
	fmt.Fprintf(&b, ", tools %v, think %s", tools, think)
	return b.String()
}

// firstUnmet describes the first condition that r does not meet, for an error message, "" when it meets all. Texts are
// compared case-insensitively.
func (w When) firstUnmet(r Request) string {
	var last model.Message
	if n := len(r.Messages); n > 0 {
		last = r.Messages[n-1]
	}
	switch {
	case w.LastRole != "" && w.LastRole != last.Role:
		return fmt.Sprintf("the last message from %s, not %q", w.LastRole, last.Role)
	case !containsFold(last.Content, w.LastContains):
		return fmt.Sprintf("%q in the last message", w.LastContains)
	case w.Messages != 0 && w.Messages != len(r.Messages):
		return fmt.Sprintf("%d messages, not %d", w.Messages, len(r.Messages))
	case w.NoTools && len(r.Tools) > 0:
		return "no tools offered"
	case len(w.Images) > 0 && !slices.Equal(w.Images, r.imageHashes()):
		return fmt.Sprintf("the images %v, not %v", w.Images, r.imageHashes())
	case w.ThinkIs != nil && r.Think == nil:
		return fmt.Sprintf("think %t, which is not set", *w.ThinkIs)
	case w.ThinkIs != nil && *w.ThinkIs != *r.Think:
		return fmt.Sprintf("think %t", *w.ThinkIs)
	}
	if w.System != "" && !anyMessageContains(r.Messages, model.System, w.System) {
		return fmt.Sprintf("%q in the system message", w.System)
	}
	for _, text := range w.Contains {
		if !anyMessageContains(r.Messages, "", text) {
			return fmt.Sprintf("%q in some message", text)
		}
	}
	for _, text := range w.Absent {
		if anyMessageContains(r.Messages, "", text) {
			return fmt.Sprintf("%q in no message", text)
		}
	}
	for _, text := range w.HistoryHas {
		if !anyMessageContains(r.history(), "", text) {
			return fmt.Sprintf("%q before the last question", text)
		}
	}
	for _, name := range w.ToolsInclude {
		if !slices.ContainsFunc(r.Tools, func(t model.Tool) bool { return t.Name == name }) {
			return fmt.Sprintf("the tool %s offered", name)
		}
	}
	return ""
}

// imageHashes returns the SHA-256 of each image, hexadecimal and in order, and "none" when there is no image.
func (r Request) imageHashes() (out []string) {
	for _, m := range r.Messages {
		for _, i := range m.Images {
			out = append(out, fmt.Sprintf("%x", sha256.Sum256(i.Data)))
		}
	}
	if out == nil {
		return []string{"none"}
	}
	return out
}

// history returns the messages before the last user message, nil when there is none.
func (r Request) history() []model.Message {
	for i, m := range slices.Backward(r.Messages) {
		if m.Role == model.User {
			return r.Messages[:i]
		}
	}
	return nil
}

// anyMessageContains reports whether the content, or the name or arguments of a call, of a message of a role contains
// text in any case; role "" is any.
func anyMessageContains(messages []model.Message, role, text string) bool {
	return slices.ContainsFunc(messages, func(m model.Message) bool {
		if role != "" && m.Role != role {
			return false
		}
		return containsFold(m.Content, text) || slices.ContainsFunc(m.Calls, func(c model.Call) bool {
			return containsFold(c.Name, text) || containsFold(string(c.Arguments), text)
		})
	})
}

func containsFold(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}

// refuseRequest returns the refusal that the quirks of the exchange demand, nil when there is none. It counts down
// Busy; TooLong and Status use the exchange up, the others leave it for a retry. The caller holds the lock of the
// engine.
func (x *exchangeState) refuseRequest(r Request) *Answer {
	q := x.Reply.Quirks
	refuse := func(why Refusal, status int, text string) *Answer {
		a := &Answer{Model: r.Model, Refusal: why, Status: cmp.Or(q.Status, status), Quirks: q}
		a.Text = a.TextOr(text)
		return a
	}
	switch {
	case x.busy > 0:
		x.busy--
		return &Answer{
			Model: r.Model, Refusal: RefusedBusy, Status: http.StatusServiceUnavailable, Text: busyText, Quirks: q,
		}
	case q.RefuseThink && r.Think != nil && *r.Think:
		return refuse(RefusedThinking, http.StatusBadRequest, fmt.Sprintf("%q does not support thinking", r.Model))
	case q.RefuseTools && len(r.Tools) > 0:
		return refuse(RefusedTools, http.StatusBadRequest, fmt.Sprintf("registry.ollama.ai/library/%s does not "+
			"support tools", r.Model))
	case q.TooLong:
		x.used = !x.Always
		return refuse(RefusedLength, http.StatusBadRequest, tooLongText)
	case q.Status != 0:
		x.used = !x.Always
		return refuse(RefusedStatus, q.Status, http.StatusText(q.Status))
	}
	return nil
}

// Texts of refusals, as Ollama has them.
const (
	busyText    = "server busy, please try again.  maximum pending requests exceeded"
	tooLongText = "the input length exceeds the context length"
)

// invalidByteMark is replaced with invalid UTF-8 after encoding, because a JSON encoder would replace such bytes.
const invalidByteMark = '\uF8FE'

// buildAnswer expands a reply for r and applies the quirks of its content. It fails for a quote of something that r
// does not have, invalid arguments and an unknown calls_as. The caller holds the lock.
func (e *Engine) buildAnswer(reply Reply, r Request) (*Answer, error) {
	q := reply.Quirks
	f := templater{r}
	thinking, err := f.expand(reply.Thinking)
	if err != nil {
		return nil, err
	}
	content, err := f.expand(reply.Content)
	if err != nil {
		return nil, err
	}
	calls, err := e.buildCalls(f, reply)
	if err != nil {
		return nil, err
	}
	if q.ThinkTags && thinking != "" {
		thinking, content = "", "<think>"+thinking+"</think>"+content
	}
	if q.CallsAs != "" {
		said, err := formatCalls(q.CallsAs, calls)
		if err != nil {
			return nil, err
		}
		content, calls = strings.TrimSpace(content+"\n"+said), nil
	}
	a := &Answer{Model: r.Model, Reason: "stop", Prompt: reply.Prompt, Output: reply.Output, Quirks: q}
	a.countTokens(r, thinking, content, calls)
	if q.Length {
		a.Reason = "length"
		if r.Options.Predict > 0 {
			a.Output = r.Options.Predict
			content = firstWords(content, r.Options.Predict)
		}
	}
	if q.Bytes > 0 {
		content = repeatText(content, q.Bytes)
	}
	if q.BadUTF8 {
		content += string(invalidByteMark)
	}
	if !q.DropCall {
		a.splitChunks(thinking, content, calls)
	}
	return a, nil
}

// countTokens estimates the token counts that the script does not give (0), at four bytes per token. Quirks.Truncate
// replaces that of the prompt.
func (a *Answer) countTokens(r Request, thinking, content string, calls []model.Call) {
	if a.Prompt == 0 {
		n := 0
		for _, m := range r.Messages {
			n += len(m.Content) + len(m.Thinking) + 12
		}
		for _, t := range r.Tools {
			n += len(t.Name) + len(t.Description) + len(t.Parameters)
		}
		a.Prompt = n/4 + 1
	}
	if a.Quirks.Truncate > 0 {
		a.Prompt = a.Quirks.Truncate
	}
	if a.Output == 0 {
		n := len(thinking) + len(content)
		for _, c := range calls {
			n += len(c.Name) + len(c.Arguments)
		}
		a.Output = n/4 + 1
	}
}

// splitChunks splits a reply into chunks: thinking, text, then calls, unless CallsSplit mixes text and calls or
// CallsLast moves the calls to a.Last.
func (a *Answer) splitChunks(thinking, content string, calls []model.Call) {
	q := a.Quirks
	for _, s := range splitText(thinking, q) {
		a.Chunks = append(a.Chunks, Chunk{Thinking: s})
	}
	texts := splitText(content, q)
	switch {
	case q.CallsSplit:
		for len(texts) > 0 || len(calls) > 0 {
			if len(calls) > 0 {
				a.Chunks = append(a.Chunks, Chunk{Calls: calls[:1:1]})
				calls = calls[1:]
			}
			if len(texts) > 0 {
				a.Chunks = append(a.Chunks, Chunk{Content: texts[0]})
				texts = texts[1:]
			}
		}
		return
	case q.CallsLast:
		a.Last.Calls = calls
	}
	for _, s := range texts {
		a.Chunks = append(a.Chunks, Chunk{Content: s})
	}
	if len(calls) > 0 && !q.CallsLast {
		a.Chunks = append(a.Chunks, Chunk{Calls: calls})
	}
}

// splitText splits s into words with the space before them, or into parts of q.ChunkRunes runes. A text of q.Bytes is
// split into large parts, because it tests size and not tokens.
func splitText(s string, q Quirks) []string {
	n := q.ChunkRunes
	if n == 0 && q.Bytes > 0 {
		n = 4096
	}
	var all []string
	if n > 0 {
		for s != "" {
			end := 0
			for i := 0; i < n && end < len(s); i++ {
				_, size := utf8.DecodeRuneInString(s[end:])
				end += size
			}
			all, s = append(all, s[:end]), s[end:]
		}
		return all
	}
	for s != "" {
		end := len(s)
		if i := strings.IndexAny(s[1:], " \n"); i >= 0 {
			end = i + 1
		}
		all, s = append(all, s[:end]), s[end:]
	}
	return all
}

func firstWords(s string, n int) string {
	all := splitText(s, Quirks{})
	return strings.Join(all[:min(n, len(all))], "")
}

// repeatText repeats s, "x" if it is empty, to size bytes, or a few less so that no rune is cut.
func repeatText(s string, size int) string {
	s = cmp.Or(s, "x")
	s = strings.Repeat(s, size/len(s)+1)
	for !utf8.RuneStart(s[size]) {
		size-- // not within a rune
	}
	return s[:size]
}

// buildCalls expands the calls of a reply and generates their ids, unless the script gives one or NoIDs is set. The
// caller holds the lock.
func (e *Engine) buildCalls(f templater, reply Reply) ([]model.Call, error) {
	var calls []model.Call
	for _, c := range reply.Calls {
		args, err := f.arguments(c)
		if err != nil {
			return nil, fmt.Errorf("call of %s: %w", c.Name, err)
		}
		id := c.ID
		if id == "" && !reply.Quirks.NoIDs {
			e.calls++
			id = fmt.Sprintf("call_%08d", e.calls)
		}
		calls = append(calls, model.Call{ID: id, Name: c.Name, Arguments: args})
	}
	return calls, nil
}

// formatCalls writes calls as text, as models do that do not use native tool calls, one after another on new lines.
// form is json, fenced, xml or text; any other is an error if there are calls.
func formatCalls(form string, calls []model.Call) (string, error) {
	var b strings.Builder
	for i, c := range calls {
		if i > 0 {
			b.WriteByte('\n')
		}
		name, err := json.Marshal(c.Name)
		if err != nil {
			return "", err
		}
		object := fmt.Sprintf(`{"name": %s, "arguments": %s}`, name, c.Arguments)
		switch form {
		case "json":
			b.WriteString(object)
		case "fenced":
			b.WriteString("```json\n" + object + "\n```")
		case "xml":
			b.WriteString("<tool_call>\n" + object + "\n</tool_call>")
		case "text":
			fmt.Fprintf(&b, "%s %s", c.Name, c.Arguments)
		default:
			return "", fmt.Errorf("calls_as: invalid format %q; use json, fenced, xml or text", form)
		}
	}
	return b.String(), nil
}
