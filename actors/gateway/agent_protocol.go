package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/pkg/attachment"
	"conclave/pkg/client"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The Synadia Agent Protocol for NATS: the respondents as agents of the micro service "agents". The server writes the
// caller's account into each subject, and denies the subjects of another owner. Its text is the text of a program, as
// over /v1.

const (
	agentProtocolVersion = "0.3"
	agentServiceName     = "agents" // also the queue group that the protocol requires in discovery
	agentSession         = "main"   // the session that discovery lists; any other name is a session too

	// maxAgentRequests bounds the requests of an account for discovery, for a status, and its replies to queries, per
	// second.
	maxAgentRequests = 20
	maxChunkText     = 64 << 10 // bytes of text in a chunk
	maxQueryArgs     = 4 << 10  // bytes of the arguments in a query for an approval
	maxQueryAttempts = 3        // queries for one approval whose replies decide nothing
)

// protocolAgents are the agents of the protocol: names of respondentModels with the description for discovery.
var protocolAgents = []struct{ name, doc string }{
	{"assistant", "answers questions with tools and memory, each call authorized by the broker"},
	{"committee", "deliberates a question among several personas"},
	{"orchestrator", "plans a task and has it carried out by several agents"},
}

// promptEnvelope is the body of a prompt, and of the reply to a query. Unknown fields are ignored, as the protocol
// requires.
type promptEnvelope struct {
	Prompt      *string `json:"prompt"`
	Attachments []struct {
		Filename string `json:"filename"`
		Content  string `json:"content"` // standard base64
	} `json:"attachments"`
}

// decodeEnvelope decodes a body: JSON when its first character is "{", else plain text. It rejects an empty prompt and
// text that is not UTF-8.
func decodeEnvelope(data []byte) (e promptEnvelope, err error) {
	if !utf8.Valid(data) {
		return e, subjects.Faultf(subjects.CodeMalformed, "the prompt is not UTF-8")
	}
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		if json.Unmarshal(data, &e) != nil || e.Prompt == nil {
			return e,
				subjects.Faultf(subjects.CodeMalformed,
					`malformed envelope: send {"prompt": "...", "attachments": [{"filename": "...",`+
						` "content": "base64"}]}, or plain text`)
		}
	} else {
		e.Prompt = new(string)
		*e.Prompt = string(data)
	}
	if strings.TrimSpace(*e.Prompt) == "" {
		return e, subjects.Faultf(subjects.CodeMalformed, "the prompt is empty")
	}
	return e, nil
}

// decodePrompt returns the question of a prompt, without its ids, and the contents of the images among its attachments.
func decodePrompt(ctx context.Context, data []byte) (q Question, images [][]byte, err error) {
	e, err := decodeEnvelope(data)
	if err != nil {
		return q, nil, err
	}
	if len(e.Attachments) > subjects.MaxAttachments {
		return q, nil, subjects.Faultf(subjects.CodeMalformed, "%d attachments, at most %d", len(e.Attachments),
			subjects.MaxAttachments)
	}
	q.Query = *e.Prompt
	for i, a := range e.Attachments {
		if a.Filename == "" || a.Filename != filepath.Base(a.Filename) || a.Filename == "." || a.Filename == ".." ||
			strings.Contains(a.Filename, `\`) {
			return q, nil, subjects.Faultf(subjects.CodeMalformed, "attachment %d: the filename must be a plain file "+
				"name, without a folder", i+1)
		}
		content, err := base64.StdEncoding.Strict().DecodeString(a.Content)
		if err != nil || strings.ContainsAny(a.Content, "\r\n") {
			return q, nil, subjects.Faultf(subjects.CodeMalformed, "attachment %d: the content is not standard base64",
				i+1)
		}
		f, err := attachment.Decode(ctx, subjects.AttachmentFile, a.Filename, content)
		if err != nil {
			return q, nil, subjects.Faultf(subjects.CodeMalformed, "attachment %d: %v", i+1, err)
		}
		q.Attachments = append(q.Attachments, f.Attachment)
		if f.Image != nil {
			images = append(images, f.Image)
		}
	}
	return q, images, nil
}

// findAgentCaller returns the access of the account of a caller. With the user's own key it is apiAccess: a program
// wrote the text.
func (g *Gateway) findAgentCaller(ctx context.Context, out actor.Out, account string) (*clientAccess, error) {
	if account == "user" {
		return apiAccess, nil
	}
	return g.tokens.findName(ctx, out, account)
}

// checkAgent rejects an unknown agent and a session name that is not a subject token. It returns the mode of a question
// to the agent.
func checkAgent(agent, session string) (mode string, err error) {
	mode, known := respondentModels[agent]
	if !known {
		return "", subjects.Faultf(subjects.CodeSubject, "there is no agent %q; the agents are assistant, committee "+
			"and orchestrator", text.Clip(agent, 60))
	}
	if err := subjects.CheckToken(session); err != nil {
		return "", subjects.Faultf(subjects.CodeMalformed, "session name: %v", err)
	}
	return mode, nil
}

// sessionID returns the session of the caller a with an agent: the sessions of two agents, and of two callers, differ.
// A name that is too long for an id is hashed; the hash has no "_".
func (a *clientAccess) sessionID(agent, session string) string {
	id := agent + "_" + session
	if n := subjects.MaxToken - len(a.scope); len(id) > n {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:])[:min(n, 2*len(sum))]
	}
	return a.scope + id
}

// onPrompt asks the prompt of a caller as a question of a program and replies with its answer in chunks: "status" with
// "ack" at once and at intervals, "response" with text as it grows, and "query" or "status" for a call that waits for
// approval. A caller that is gone is not noticed: its question is answered and stored.
func (g *Gateway) onPrompt(ctx context.Context, in actor.Msg[[]byte], send func([]byte) error,
	out actor.Out,
) (err error) {
	agent, session := in.Tokens[1], in.Tokens[2]
	mode, err := checkAgent(agent, session)
	if err != nil {
		return err
	}
	caller, err := g.findAgentCaller(ctx, out, in.From)
	if err != nil {
		return err
	}
	defer func(start time.Time) { g.prompts.count(caller.scope+agent, time.Since(start), err) }(time.Now())
	if !caller.isUser {
		leave, ok := g.clients.enter(caller.scope)
		if !ok {
			return subjects.Faultf(subjects.CodeLimit, "%d requests of %s are in progress already; retry when one of "+
				"them is finished", maxClientRequests, caller.name)
		}
		defer leave()
	}
	q, images, err := decodePrompt(ctx, in.Body)
	if err != nil {
		return err
	}
	q.Mode, q.SessionID = mode, caller.sessionID(agent, session)
	ctx, cancel := context.WithTimeout(ctx, g.cfg.QueryTimeout)
	defer cancel()
	ctx, release := withRevocation(ctx, caller.revoked)
	defer release()
	chunks := &chunkWriter{send: send}
	if err := chunks.writeStatus("ack"); err != nil { // also without a reply subject: nobody would read the answer
		return subjects.Faultf(subjects.CodeMalformed, "a prompt needs a reply subject")
	}
	stop := chunks.keepAlive(ctx, g.cfg.Heartbeat)
	defer stop()
	defer g.prompts.drop(chunks)
	return g.answerOnBus(ctx, out, caller, &q, images, true, func(ev client.Event) {
		g.announceApproval(chunks, in.From, caller, ev, out)
	}, func(_, _ int, t string) error { return chunks.writeText(t) })
}

// chunkWriter sends the chunks of a stream, from several goroutines.
type chunkWriter struct {
	mu    sync.Mutex
	send  func([]byte) error
	ended bool // nothing follows the message that ends the stream
}

// write sends a chunk. After the end of the stream it does nothing.
func (w *chunkWriter) write(kind string, data any) error {
	chunk, err := json.Marshal(struct {
		Type string `json:"type"`
		Data any    `json:"data"`
	}{kind, data})
	if err != nil {
		return fmt.Errorf("encoding a chunk: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	return w.send(chunk)
}

func (w *chunkWriter) writeStatus(status string) error { return w.write("status", status) }

// writeText sends text in chunks that fit into a message.
func (w *chunkWriter) writeText(t string) error {
	for len(t) > 0 {
		n := min(len(t), maxChunkText)
		for n < len(t) && !utf8.RuneStart(t[n]) {
			n--
		}
		if err := w.write("response", t[:n]); err != nil {
			return err
		}
		t = t[n:]
	}
	return nil
}

// keepAlive sends the status "ack" at intervals. The returned function ends that and the stream.
func (w *chunkWriter) keepAlive(ctx context.Context, interval time.Duration) (stop func()) {
	stopTicks := repeat(ctx, interval, func() { _ = w.writeStatus("ack") }) // the next one shows the same
	return func() {
		stopTicks()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
	}
}

// announceApproval tells a caller that a call of its question waits for approval: as a query when the caller may
// decide, which is the user's account alone, else as a status. It names the tool and not the arguments to a client:
// they may hold private data of the user.
func (g *Gateway) announceApproval(chunks *chunkWriter, account string, caller *clientAccess, ev client.Event,
	out actor.Out,
) {
	a, _ := client.ReadApproval(ev)
	if a == nil {
		return
	}
	if args := text.VisibleJSON(a.Args, ""); caller.isUser && len(args) <= maxQueryArgs {
		q := &approvalQuery{
			account: account, approval: a.ID, chunks: chunks,
			prompt: fmt.Sprintf("%s requests %s %s\nReason: %s\nReply approve or deny.", text.OneLine(a.Caller, 200),
				a.Tool, args, text.OneLine(a.Reason, 1000)),
		}
		if err := g.prompts.ask(q, out.NewID()); err != nil {
			out.LogError(err)
		}
		return
	}
	_ = chunks.writeStatus("waiting: " + a.Tool +
		" needs the approval of the user, with conclave approve or in the page")
}

// approvalQuery is a query chunk that waits for its reply.
type approvalQuery struct {
	account  string // that may reply
	approval string // id of the approval
	prompt   string
	attempts int
	chunks   *chunkWriter
}

// promptLog has the queries that wait for a reply, and counts prompts for discovery. The zero value is ready.
type promptLog struct {
	started time.Time
	mu      sync.Mutex
	queries map[string]*approvalQuery // by the last token of their reply subjects
	counts  map[string]promptCount    // by scope and agent
}

// promptCount counts the prompts of a caller to an agent.
type promptCount struct {
	requests, errors int
	time             time.Duration
}

// count counts a prompt.
func (l *promptLog) count(key string, d time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = map[string]promptCount{}
	}
	c := l.counts[key]
	c.requests, c.time = c.requests+1, c.time+d
	if err != nil {
		c.errors++
	}
	l.counts[key] = c
}

// ask sends a query chunk with a reply subject of its own, which id makes unguessable.
func (l *promptLog) ask(q *approvalQuery, id string) error {
	reply, err := subjects.AgentsReply.With(q.account, id)
	if err != nil {
		return err
	}
	q.attempts++
	l.mu.Lock()
	if l.queries == nil {
		l.queries = map[string]*approvalQuery{}
	}
	l.queries[id] = q
	l.mu.Unlock()
	return q.chunks.write("query", map[string]string{"id": q.approval, "reply_subject": reply.Name, "prompt": q.prompt})
}

// take returns the query of a reply and forgets it, because each has one reply; nil when the account has none with this
// id.
func (l *promptLog) take(account, id string) *approvalQuery {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queries[id]
	if q == nil || q.account != account {
		return nil
	}
	delete(l.queries, id)
	return q
}

// drop forgets the queries of a stream that has ended.
func (l *promptLog) drop(chunks *chunkWriter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, q := range l.queries {
		if q.chunks == chunks {
			delete(l.queries, id)
		}
	}
}

// decisions are the replies that decide an approval. Every other reply decides nothing.
var decisions = map[string]bool{"approve": true, "yes": true, "y": true, "deny": false, "no": false, "n": false}

// onQueryReply decides an approval for the caller that was asked. A reply that decides nothing is answered by the same
// query again, maxQueryAttempts times in all; the call keeps waiting. Replies to unknown queries are ignored: another
// gateway may have asked.
func (g *Gateway) onQueryReply(ctx context.Context, in actor.Msg[[]byte], out actor.Out) ([]byte, error) {
	q := g.prompts.take(in.From, in.Tokens[1])
	if q == nil {
		return nil, nil
	}
	reply := ""
	if e, err := decodeEnvelope(in.Body); err == nil {
		reply = strings.ToLower(strings.TrimSpace(*e.Prompt))
	}
	approve, decided := decisions[reply]
	switch {
	case !decided && q.attempts < maxQueryAttempts:
		return nil, g.prompts.ask(q, out.NewID())
	case !decided:
		return nil, q.chunks.writeStatus("waiting: no decision; decide with conclave approve or in the page")
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	got, err := g.client.DecideApproval(ctx, q.approval, subjects.ApprovalDecision{Approve: approve})
	if err != nil {
		_ = q.chunks.writeStatus("waiting: the decision was not stored; decide with conclave approve or in the page")
		return nil, err
	}
	return nil, q.chunks.writeStatus("decided: " + got.State)
}
