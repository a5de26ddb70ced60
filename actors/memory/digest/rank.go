package digest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"strconv"

	"conclave/pkg/text"
)

//go:embed rank.md
var rankPrompt string

var rankSchema = json.RawMessage(`{"type": "object", "additionalProperties": false, "required": ["marks"],
	"properties": {"marks": {"type": "array", "maxItems": 20, "items": {
		"type": "object", "additionalProperties": false, "required": ["n", "mark"],
		"properties": {"n": {"type": "integer"}, "mark": {"type": "integer", "minimum": 0, "maximum": 10}}}}}}`)

var errUnranked = errors.New("model did not mark each text once from 0 to 10")

// maxRanked bounds what a model reads of each text to rank it.
const maxRanked = 1 << 10

// Rank lets a model mark how well each text answers the query, from 0 to 10, in the order of texts, of which it is
// shown 1 KB each. There is no plain way: without a model, and for anything but exactly one mark for each text, it
// returns an error, and the caller keeps the order it has. The schema allows 20 texts.
func (d *Digester) Rank(ctx context.Context, query string, texts []string) ([]float64, error) {
	asked := []fence{{"question", cleanText(text.Cut(query, maxQuestion))}}
	for i, t := range texts {
		asked = append(asked, fence{strconv.Itoa(i + 1), cleanText(text.Cut(t, maxRanked))})
	}
	got, err := d.askObject(ctx, rankPrompt, rankSchema, asked)
	if err != nil {
		return nil, err
	}
	list, _ := listOf[struct {
		N    int
		Mark *float64
	}](got, "marks")
	marks, seen := make([]float64, len(texts)), map[int]bool{}
	for _, e := range list {
		if e.Mark == nil || e.N < 1 || e.N > len(texts) || seen[e.N] || !(*e.Mark >= 0 && *e.Mark <= 10) {
			return nil, errUnranked
		}
		seen[e.N], marks[e.N-1] = true, *e.Mark
	}
	if len(seen) != len(texts) {
		return nil, errUnranked
	}
	return marks, nil
}
