package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/model"
)

// Bounds of a summary.
const (
	summaryTokens = 1024
	summaryBytes  = 6 << 10
)

// Summarize shortens messages into decisions, artifacts as paths and open questions, at most 6 KiB, for the turns that
// leave History. before is the summary so far, "" = none. No tools are offered, and the messages are data to the model.
// An empty reply is retried once, then it is an error, as is any failure of the model: the caller keeps its history.
func Summarize(ctx context.Context, a Agent, before string, messages []model.Message) (string, error) {
	lim := a.Limits.withDefaults(a.Options.Window)
	off := false
	r := model.Request{Model: a.Model, Options: a.Options, Stream: a.Stream}
	r.Options.Predict = summaryTokens
	if a.Think != nil {
		r.Think = &off // notes need no thinking
	}
	r.Messages = []model.Message{
		{Role: model.System, Content: summarizePrompt},
		{Role: model.User, Content: renderTranscript(before, messages, transcriptBytes(a))},
	}
	for range 2 {
		text, err := summarizeOnce(ctx, a, lim, r)
		if errors.Is(err, model.ErrNoThinking) && r.Think != nil {
			r.Think = nil
			text, err = summarizeOnce(ctx, a, lim, r)
		}
		if err != nil {
			return "", fmt.Errorf("summarizing: %w", err)
		}
		if text != "" {
			return strings.TrimSpace(clipBytes(text, summaryBytes)), nil
		}
	}
	return "", errors.New("summarizing: empty reply from the model")
}

// summarizeOnce makes one model call, bounded by a [silenceTimer], and returns the text of its reply; "" = it has none.
// lim must have its defaults.
func summarizeOnce(ctx context.Context, a Agent, lim Limits, r model.Request) (string, error) {
	ctx, timer := startSilenceTimer(ctx, lim, a.Settings)
	defer timer.stop()
	t := &turn{agent: a, limits: lim}
	reply, err := t.readReply(ctx, r, timer)
	if err != nil {
		return "", err
	}
	return reply.text, nil
}

// transcriptBytes is how many bytes of a conversation fit into one summarizing call.
func transcriptBytes(a Agent) int {
	if a.Options.Window <= 0 {
		return 64 << 10
	}
	return max(2<<10, (a.Options.Window-summaryTokens-estimateTokens(summarizePrompt)-200)*2)
}

// transcriptLine is one message of a transcript. It is written as JSON, so that no content can pose as another message.
type transcriptLine struct {
	Role    string           `json:"role"`
	Tool    string           `json:"tool,omitempty"`
	Content string           `json:"content"`
	Calls   []transcriptCall `json:"calls,omitempty"`
}

type transcriptCall struct {
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
}

// renderTranscript writes messages one a line, about room bytes in all, behind the summary before ("" = none). System
// messages are left out. Long messages are cut in the middle, so that each is there; then lines in the middle of the
// whole are left out.
func renderTranscript(before string, messages []model.Message, room int) string {
	room -= len(transcriptHead) + len(transcriptEnd) + 64
	each := max(400, room/max(1, len(messages)))
	var lines []string
	if before != "" {
		lines = append(lines, renderLine(transcriptLine{Role: "earlier notes", Content: before}, room/2, "above"))
	}
	for _, m := range messages {
		l := transcriptLine{Role: string(m.Role), Content: m.Content}
		switch m.Role {
		case model.System:
		case model.ToolRole:
			l.Tool = m.ToolName
			lines = append(lines, renderLine(l, min(each, 1200), m.CallID))
		default:
			for _, c := range m.Calls {
				l.Calls = append(l.Calls, transcriptCall{c.Name, clip(string(c.Arguments), 300)})
			}
			lines = append(lines, renderLine(l, each, "above"))
		}
	}
	return transcriptHead + strings.Join(dropMiddleLines(lines, room), "\n") + transcriptEnd
}

// renderLine is a message as JSON on one line, at most about most bytes. id is named where content is cut: the call of
// a result, or "above".
func renderLine(l transcriptLine, most int, id string) string {
	whole := l.Content
	for cut := most; ; cut = cut * 2 / 3 {
		l.Content = clipMiddle(whole, cut, id)
		out := encodeJSON(l)
		if len(out) <= most+256 || cut < 64 { // escapes make a text up to six times longer
			return string(out)
		}
	}
}

// dropMiddleLines replaces lines in the middle by one that counts them, so that the rest fits into room bytes; lines
// that fit are returned unchanged. The first third of the room is for the oldest lines, the rest for the newest.
func dropMiddleLines(lines []string, room int) []string {
	size := 0
	for _, l := range lines {
		size += len(l) + 1
	}
	if size <= room {
		return lines
	}
	first := 0
	for left := room / 3; first < len(lines) && len(lines[first]) < left; first++ {
		left -= len(lines[first]) + 1
		room -= len(lines[first]) + 1
	}
	last := len(lines)
	for ; last > first && len(lines[last-1]) < room; last-- {
		room -= len(lines[last-1]) + 1
	}
	gap := fmt.Sprintf("[... %s left out]", countNoun(last-first, "message"))
	return slices.Concat(lines[:first], []string{gap}, lines[last:])
}

// clipBytes is the beginning of s, at most about n bytes, cut at the end of a line when there is one in the second
// half.
func clipBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[:n]
	if i := strings.LastIndexByte(s, '\n'); i > n/2 {
		s = s[:i]
	}
	s, _ = toValidUTF8(s)
	return s
}
