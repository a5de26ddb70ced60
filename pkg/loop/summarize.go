package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/model"
)

// Bounds of a summary.
const (
	summaryTokens = 1024
	summaryBytes  = 6 << 10
)

// Summarize shortens messages into decisions, artifacts as paths and open questions, for the turns that leave History.
// before is the summary so far. No tools are offered, and what stands in the messages is data to the model. An empty
// reply is asked for once more, then it is an error: the caller keeps its history.
func Summarize(ctx context.Context, a Agent, before string, messages []model.Message) (string, error) {
	lim := a.Limits.withDefaults(a.Options.Window)
	off := false
	r := model.Request{Model: a.Model, Options: a.Options, Stream: a.Stream}
	r.Options.Predict = summaryTokens
	if a.Think != nil {
		r.Think = &off // notes need no thinking aloud
	}
	r.Messages = []model.Message{
		{Role: model.System, Content: summarizePrompt},
		{Role: model.User, Content: transcript(before, messages, transcriptRoom(a))},
	}
	for range 2 {
		text, err := once(ctx, a, lim, r)
		if errors.Is(err, model.ErrNoThinking) && r.Think != nil {
			r.Think = nil
			text, err = once(ctx, a, lim, r)
		}
		if err != nil {
			return "", fmt.Errorf("summarizing: %w", err)
		}
		if text != "" {
			return strings.TrimSpace(clipBytes(text, summaryBytes)), nil
		}
	}
	return "", errors.New("summarizing: the model returned nothing")
}

// once makes one call and returns the words of its reply.
func once(ctx context.Context, a Agent, lim Limits, r model.Request) (string, error) {
	if lim.Call > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, lim.Call, errLate)
		defer cancel()
	}
	t := &turn{a: a, lim: lim}
	reply, err := t.read(ctx, r)
	if err != nil {
		return "", err
	}
	return reply.words, nil
}

// transcriptRoom is how many bytes of a conversation fit into one summarizing call.
func transcriptRoom(a Agent) int {
	if a.Options.Window <= 0 {
		return 64 << 10
	}
	return max(2<<10, (a.Options.Window-summaryTokens-tokens(summarizePrompt)-200)*2)
}

// transcript writes messages as a text. Long ones are shortened in the middle, so that each is there; what still does
// not fit is left out from the middle of the whole.
func transcript(before string, messages []model.Message, room int) string {
	each := max(400, room/max(1, len(messages)))
	var b strings.Builder
	if before != "" {
		b.WriteString("Earlier notes:\n" + before + "\n\n")
	}
	b.WriteString("Conversation:\n")
	for _, m := range messages {
		switch {
		case m.Role == model.ToolRole:
			fmt.Fprintf(&b, "\n[result of %s] %s\n", m.ToolName, clipMiddle(m.Content, min(each, 1200), m.CallID))
		case m.Role == model.System:
		default:
			fmt.Fprintf(&b, "\n[%s] %s\n", m.Role, clipMiddle(m.Content, each, "above"))
			for _, c := range m.Calls {
				fmt.Fprintf(&b, "[calls %s] %s\n", c.Name, clip(string(c.Arguments), 300))
			}
		}
	}
	b.WriteString("\nEnd of the conversation. Write the notes now.")
	return clipMiddle(b.String(), room, "above")
}

// clipBytes is the beginning of s, at most n bytes, cut at the end of a line where there is one.
func clipBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[:n]
	if i := strings.LastIndexByte(s, '\n'); i > n/2 {
		s = s[:i]
	}
	s, _ = valid(s)
	return s
}
