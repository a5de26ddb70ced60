package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"conclave/pkg/client"
	"conclave/pkg/text"
	"conclave/subjects"
)

// maxHistory bounds the earlier conversation that is attached to a question of an unknown conversation, in bytes.
const maxHistory = 64 << 10

// completeByRespondent asks the last message of the request as a question of a program and writes the answer. The
// session is that of the header, or that of the same conversation ([conversationIndex]), or a new one; in a new one the
// earlier messages are an attachment, because nobody knows whether they were said here. When the client disconnects the
// question is cancelled, unless headerRunOn or headerKey is set.
func (g *Gateway) completeByRespondent(w http.ResponseWriter, r *http.Request, in completionRequest,
	mode string,
) error {
	q, images, err := g.newCompletionQuestion(r, in, mode)
	if err != nil {
		return err
	}
	stored := false
	defer func() {
		if q.continues != nil && !stored {
			g.conversations.putBack(*q.continues)
		}
	}()
	// What the client sent: the session of a conversation differs in a retry.
	content := []any{in.Model, in.session, in.Messages}
	if err := q.setKeyedIDs(r.Header.Values(headerKey), programOf(r), content); err != nil {
		return err
	}
	hear := []subjects.Topic[subjects.Delta]{subjects.ResponseDelta, subjects.ResponseThinking}
	switch {
	case !in.Stream:
		hear = nil
	case clientOf(r) != nil: // thinking may hold private data of the user
		hear = hear[:1]
	}
	asked, err := g.askOnce(r.Context(), programOf(r), &q, images, hear...)
	if err != nil {
		return err
	}
	defer asked.leave()
	stored = true
	w.Header().Set(headerSession, q.SessionID)
	w.Header().Set(headerQuery, q.QueryID)

	ctx, cancel := g.withTimeout(r.Context(), g.cfg.QueryTimeout)
	defer cancel()
	out := g.newCompletionWriter(w, in, q.QueryID)
	stop := out.keepAlive(ctx)
	defer stop()
	words := &answerStream{emit: func(_, _ int, t string) error { return out.writeText(t) }}
	end, err := asked.wait(ctx, sink{out.writeNotice, func(l liveEvent) error {
		if strings.HasPrefix(l.Subject, "response.thinking.") {
			return out.writeThinking(l.delta.Text)
		}
		return words.add(*l.delta)
	}})
	if err != nil {
		if r.Context().Err() != nil && !errors.Is(context.Cause(r.Context()), errRevoked) {
			if r.Header.Get(headerRunOn) != "1" && q.key == "" {
				g.cancelQuestion(r.Context(), asked.question, "the client disconnected")
			}
			return nil
		}
		return out.fail(explainUnanswered(asked.question, err))
	}
	return g.writeOutcome(r, in, q, out, words, end)
}

// writeOutcome writes the outcome of the question of a request, and records the session of the conversation.
func (g *Gateway) writeOutcome(r *http.Request, in completionRequest, q Question, out *completionWriter,
	words *answerStream, end *client.Outcome,
) error {
	if end.Dead != nil {
		return out.fail(&problem{status: http.StatusBadGateway, Fault: explainDeadLetter(end.Dead)})
	}
	answer := end.Response.Answer
	if f := end.Response.Error; f != nil && strings.TrimSpace(answer) == "" {
		return out.fail(&problem{status: http.StatusBadGateway, Fault: f})
	}
	scope := programOf(r).scope
	g.conversations.add(digestConversation(scope,
		append(in.Messages, completionMessage{Role: "assistant", Content: messageContent{text: answer}})), q.SessionID)
	if in.response != nil {
		g.conversations.add(digestResponse(scope, q.QueryID), q.SessionID)
	}
	if clientOf(r) != nil {
		end.Response.Thinking = ""
	}
	return out.finish(words, end.Response)
}

// cancelQuestion cancels a question whose client is gone, also when ctx has ended. A failure is logged.
func (g *Gateway) cancelQuestion(ctx context.Context, q question, reason string) {
	ctx, cancel := g.withStoreTimeout(ctx)
	defer cancel()
	if err := g.client.CancelQuery(ctx, q.session, q.id, reason); err != nil {
		g.out.LogError(err)
	}
}

// isInstruction reports whether a message has the role system or developer.
func isInstruction(m completionMessage) bool { return m.Role == "system" || m.Role == "developer" }

// newCompletionQuestion returns the question of a request, the last message but instructions, which must be of the
// user. Instructions precede the first question of a session; those after the question precede it.
func (g *Gateway) newCompletionQuestion(r *http.Request, in completionRequest, mode string) (q Question,
	images [][]byte, err error,
) {
	at := len(in.Messages) - 1
	for at > 0 && isInstruction(in.Messages[at]) {
		at--
	}
	last := in.Messages[at]
	if last.Role != "user" {
		return q, nil, malformedf("messages: the last message has the role user; only messages of the roles system " +
			"and developer may follow it")
	}
	var texts []string
	for _, m := range in.Messages[at+1:] {
		texts = append(texts, m.Content.text)
	}
	q = Question{Query: strings.Join(append(texts, last.Content.text), "\n\n"), Mode: mode, SessionID: in.session}
	if q.Attachments, images, err = decodeImages(r.Context(), last.Content.images); err != nil {
		return q, nil, err
	}
	earlier := in.Messages[:at]
	if q.SessionID != "" {
		return q, images, nil
	}
	var instructions, said []string
	for _, m := range earlier {
		switch {
		case isInstruction(m):
			instructions = append(instructions, m.Content.text)
		case m.Role == "user", m.Role == "assistant":
			said = append(said, m.Role+": "+m.Content.text)
		default:
			return q, nil, malformedf("messages: unknown role %q", text.Clip(m.Role, 40))
		}
	}
	if len(said) > 0 {
		key := digestConversation(programOf(r).scope, earlier)
		if q.SessionID = g.conversations.find(key, true); q.SessionID != "" {
			q.continues = &key
			return q, images, nil
		}
		history := strings.Join(said, "\n\n")
		if extra := len(history) - maxHistory; extra > 0 {
			history = "[earlier messages are left out]\n" + strings.ToValidUTF8(history[extra:], "")
		}
		q.Attachments = append(q.Attachments, subjects.Attachment{
			Name:   "earlier conversation",
			Source: subjects.AttachmentOther, Text: history,
		})
	}
	if len(instructions) > 0 {
		q.Query = strings.Join(append(instructions, q.Query), "\n\n")
	}
	return q, images, nil
}

// writeNotice tells the client what an answer waits for, as thinking.
func (o *completionWriter) writeNotice(ev client.Event) {
	if a, _ := client.ReadApproval(ev); a != nil {
		_ = o.writeThinking("[" + a.Tool + " waits for your approval: run conclave approve, or open Approvals in the " +
			"page]\n")
	}
}

// finish writes the rest of the answer, the reason of its end and the usage.
func (o *completionWriter) finish(words *answerStream, a *subjects.Response) error {
	reason := "stop"
	if a.Partial {
		reason = "length"
	}
	usage := newUsage(a.Usage.PromptTokens, a.Usage.CompletionTokens)
	if !o.stream {
		return o.writeWhole(completionText{Content: &a.Answer, Reasoning: a.Thinking}, reason, usage)
	}
	if err := words.finish(a.Answer); err != nil {
		return nil // the client is gone
	}
	return o.writeEnd(reason, usage)
}
