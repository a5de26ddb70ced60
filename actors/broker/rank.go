package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// errNoModel means that no model is configured, or that only the built-in demo model is available.
var errNoModel = errors.New("no model available")

// minTools is the least number of tools, also when the model names fewer.
const minTools = 2

// rankByModel lets a small model choose at most most of tools and rare, best first, and fills up to minTools from tools
// by words. The model sees the task and one short line per tool, about a hundred tokens, and can only name tools that
// the caller may use anyway; other names are ignored. errNoModel means that no model is configured or only the demo
// model.
func (b *Broker) rankByModel(ctx context.Context, out actor.Out, task string, tools, rare []subjects.ToolSchema,
	most int,
) ([]subjects.ToolSchema, error) {
	if b.cfg.ModelTimeout <= 0 {
		return nil, errNoModel
	}
	var list strings.Builder
	all := slices.Concat(tools, rare)
	names := make([]string, len(all))
	for i, t := range all {
		names[i] = t.Name
		first, _, _ := strings.Cut(t.Description, ".")
		fmt.Fprintf(&list, "%s: %s\n", t.Name, text.OneLine(first, 60))
	}
	format, err := rankFormat(names, most)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Tools []string `json:"tools"`
	}
	prompt := fmt.Sprintf("Choose the tools that fit the task, best first, at most %d.\n%sTask: %s", most,
		list.String(), text.OneLine(task, 200))
	if err := b.askJSON(ctx, out, subjects.RoleTools, prompt, format, 200, b.cfg.ModelTimeout, &reply); err != nil {
		return nil, err
	}
	var picked []subjects.ToolSchema
	add := func(name string) {
		at := slices.IndexFunc(all, func(t subjects.ToolSchema) bool { return t.Name == name })
		if at >= 0 && len(picked) < most && !slices.ContainsFunc(picked, func(t subjects.ToolSchema) bool {
			return t.Name == name
		}) {
			picked = append(picked, all[at])
		}
	}
	for _, name := range reply.Tools {
		add(name)
	}
	for _, t := range rankByWords(task, tools, most) {
		if len(picked) >= min(minTools, most) {
			break
		}
		add(t.Name)
	}
	return picked, nil
}

// rankFormat is the JSON schema of a choice of at most most of the tools.
func rankFormat(names []string, most int) (json.RawMessage, error) {
	return json.Marshal(map[string]any{
		"type": "object", "required": []string{"tools"}, "additionalProperties": false,
		"properties": map[string]any{"tools": map[string]any{
			"type": "array", "maxItems": most,
			"items": map[string]any{"type": "string", "enum": names},
		}},
	})
}

// askJSON requests one JSON object from a model without tools and decodes it into into, a pointer; format is its JSON
// schema. predict bounds the tokens of the reply; limit is the timeout, cut to half of the caller's remaining time. The
// reply is not checked against format. The model does not think: the caller waits for a choice. The built-in demo model
// gives errNoModel.
func (b *Broker) askJSON(ctx context.Context, out actor.Out, role, prompt string, format json.RawMessage, predict int,
	limit time.Duration, into any,
) error {
	if end, ok := ctx.Deadline(); ok { // leave time for the fallback
		limit = min(limit, end.Sub(out.Now())/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	demoModel, zero, quiet := false, 0.0, false
	client := wire.Client{
		Out: out, Role: role, Hint: "simple", Timeout: limit,
		OnDone: func(c subjects.ChatChunk) { demoModel = c.DemoModel },
	}
	reply, _, err := model.Collect(client.Chat(ctx, model.Request{
		Messages: []model.Message{{Role: model.User, Content: prompt}}, Format: format, Think: &quiet,
		Options: model.Options{Predict: predict, Temperature: &zero},
	}))
	switch {
	case err != nil:
		return err
	case demoModel:
		return errNoModel
	}
	if err := json.Unmarshal([]byte(reply.Content), into); err != nil {
		return fmt.Errorf("decoding the model's reply: %w", err)
	}
	return nil
}
