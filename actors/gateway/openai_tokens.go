package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	tiktoken "github.com/pkoukk/tiktoken-go-loader"
)

// tokenTexts are the texts of the tokens of cl100k_base, the vocabulary in which clients of OpenAI's API send texts to
// embed (LangChain does unless told otherwise). It is part of the program, and read at the first request that needs it.
var tokenTexts = sync.OnceValues(func() ([]string, error) {
	ranks, err := tiktoken.NewOfflineLoader().LoadTiktokenBpe("cl100k_base.tiktoken")
	if err != nil {
		return nil, fmt.Errorf("reading the vocabulary cl100k_base: %w", err)
	}
	texts := make([]string, len(ranks)) // ranks are consecutive
	for text, rank := range ranks {
		texts[rank] = text
	}
	return texts, nil
})

// decodeInput returns the texts of the input of a request for embeddings: texts, or tokens of cl100k_base.
func decodeInput(input json.RawMessage) ([]string, error) {
	var texts textList
	if len(input) == 0 || json.Unmarshal(input, &texts) == nil {
		return texts, nil
	}
	var lists [][]int
	if json.Unmarshal(input, &lists) != nil {
		lists = make([][]int, 1)
		if json.Unmarshal(input, &lists[0]) != nil {
			return nil, malformedf("input: send a text, a list of texts, or tokens of cl100k_base")
		}
	}
	if len(lists) > maxEmbedTexts {
		return nil, malformedf("input: at most %d texts", maxEmbedTexts)
	}
	texts = nil // a failed read leaves a part
	left := maxEmbedBody
	for _, tokens := range lists {
		t, err := decodeTokens(tokens, left)
		if err != nil {
			return nil, err
		}
		texts = append(texts, t)
		left -= len(t)
	}
	return texts, nil
}

// decodeTokens returns the text of tokens of cl100k_base, which has at most limit bytes. A client may have cut between
// the bytes of a character, which is left out.
func decodeTokens(tokens []int, limit int) (string, error) {
	vocabulary, err := tokenTexts()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, t := range tokens {
		if t < 0 || t >= len(vocabulary) {
			return "", malformedf("input: %d is no token of cl100k_base; send texts", t)
		}
		b.WriteString(vocabulary[t])
		if b.Len() > limit {
			return "", tooLargef("input: these tokens are more than %d bytes of text", maxEmbedBody)
		}
	}
	return strings.ToValidUTF8(b.String(), ""), nil
}
