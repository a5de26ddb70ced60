package loop

import (
	"unicode/utf8"

	"conclave/pkg/model"
)

// Estimate estimates the tokens of a request without a tokenizer: 3.5 bytes of ASCII text (between prose and code) and
// 3 bytes of any other script make a token; a message costs four more, a tool definition twelve, an image perImage. It
// tends to be a little high; a turn corrects it by the server's counts.
func Estimate(system string, tools []model.Tool, messages []model.Message) int {
	n := estimateTools(tools)
	if system != "" {
		n += perMessage + estimateTokens(system)
	}
	for i := range messages {
		n += estimateMessage(&messages[i])
	}
	return n
}

const (
	perMessage = 4
	perCall    = 8
	perTool    = 12
	perImage   = 1000 // common models take 256 to 1600
)

func estimateTools(tools []model.Tool) int {
	n := 0
	for i := range tools {
		t := &tools[i]
		n += perTool + estimateTokens(t.Name) + estimateTokens(t.Description) + estimateTokens(t.Parameters)
	}
	return n
}

func estimateMessage(m *model.Message) int {
	n := perMessage + estimateTokens(m.Content) + estimateTokens(m.Thinking) + perImage*len(m.Images)
	for i := range m.Calls {
		n += perCall + estimateTokens(m.Calls[i].Name) + estimateTokens(m.Calls[i].Arguments)
	}
	return n
}

// estimateTokens is the estimated tokens of one text, without the extra of a message; see [Estimate]. 0 = it is empty
// or very short.
func estimateTokens[T ~string | ~[]byte](s T) int {
	other := 0
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			other++
		}
	}
	return (len(s)-other)*2/7 + (other+2)/3
}
