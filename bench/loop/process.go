package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"

	einomodel "github.com/cloudwego/eino/components/model"
	einotool "github.com/cloudwego/eino/components/tool"
	"github.com/cloudwego/eino/compose"
	"github.com/cloudwego/eino/flow/agent/react"
	"github.com/cloudwego/eino/schema"
	"github.com/tmc/langchaingo/agents"
	"github.com/tmc/langchaingo/chains"
	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/tools"

	"conclave/pkg/model"
)

// In process the model answers at once, the same for everyone: how far the turn is can be seen from the messages.

const answer = "The answer is 42, as looked up."

// arguments are made beforehand: the model's own work is not what is measured.
var arguments = func() (out [iterations]json.RawMessage) {
	for i := range out {
		out[i] = json.RawMessage(`{"step":` + strconv.Itoa(i) + `}`)
	}
	return out
}()

// inProcess are the contenders without a wire.
func inProcess() ([]contender, error) {
	ctx := context.Background()
	ours := agent(instant{}, false)
	eino, err := react.NewAgent(ctx, &react.AgentConfig{
		ToolCallingModel: einoModel{}, MaxStep: 2*modelCalls + 2,
		ToolsConfig: compose.ToolsNodeConfig{Tools: []einotool.BaseTool{einoTool{}}},
	})
	if err != nil {
		return nil, fmt.Errorf("eino: %w", err)
	}
	return []contender{
		{"pkg/loop", func(ctx context.Context) error { return turn(ctx, ours) }},
		{"eino 0.7.36, ReAct agent", func(ctx context.Context) error {
			m, err := eino.Generate(ctx, []*schema.Message{schema.SystemMessage(system), schema.UserMessage(question)})
			if err == nil && m.Content != answer {
				err = fmt.Errorf("the answer is %q", m.Content)
			}
			return err
		}},
		{"langchaingo 0.1.14, functions agent", func(ctx context.Context) error {
			llm := &langModel{}
			lookups := &langTool{}
			a := agents.NewOpenAIFunctionsAgent(llm, []tools.Tool{lookups},
				agents.NewOpenAIOption().WithSystemMessage(system))
			got, err := chains.Run(ctx, agents.NewExecutor(a, agents.WithMaxIterations(modelCalls+1)), question)
			if err == nil && (got != answer || lookups.n != iterations) {
				err = fmt.Errorf("the answer is %q after %d lookups", got, lookups.n)
			}
			return err
		}},
	}, nil
}

// instant is a model for our loop.
type instant struct{}

func (instant) Chat(_ context.Context, r model.Request) iter.Seq2[model.Chunk, error] {
	return func(yield func(model.Chunk, error) bool) {
		c := model.Chunk{Done: true, Final: model.Final{Model: modelName, PromptTokens: 100, OutputTokens: 10}}
		if i := (len(r.Messages) - 2) / 2; i < iterations {
			c.Calls = []model.Call{{ID: "call-" + strconv.Itoa(i), Name: tool.Name, Arguments: arguments[i]}}
		} else {
			c.Content = answer
		}
		yield(c, nil)
	}
}

// einoModel is the same for eino.
type einoModel struct{}

func (einoModel) WithTools([]*schema.ToolInfo) (einomodel.ToolCallingChatModel, error) {
	return einoModel{}, nil
}

func (einoModel) Generate(_ context.Context, in []*schema.Message, _ ...einomodel.Option) (*schema.Message, error) {
	i := (len(in) - 2) / 2
	if i >= iterations {
		return schema.AssistantMessage(answer, nil), nil
	}
	return schema.AssistantMessage("", []schema.ToolCall{{
		ID: "call-" + strconv.Itoa(i), Type: "function", Function: schema.FunctionCall{
			Name:      tool.Name,
			Arguments: string(arguments[i]),
		},
	}}), nil
}

func (m einoModel) Stream(ctx context.Context, in []*schema.Message,
	opts ...einomodel.Option,
) (*schema.StreamReader[*schema.Message], error) {
	msg, err := m.Generate(ctx, in, opts...)
	if err != nil {
		return nil, err
	}
	return schema.StreamReaderFromArray([]*schema.Message{msg}), nil
}

type einoTool struct{}

func (einoTool) Info(context.Context) (*schema.ToolInfo, error) {
	return &schema.ToolInfo{
		Name: tool.Name, Desc: tool.Description,
		ParamsOneOf: schema.NewParamsOneOfByParams(map[string]*schema.ParameterInfo{
			"step": {Type: schema.Integer, Desc: "which step", Required: true},
		}),
	}, nil
}

func (einoTool) InvokableRun(context.Context, string, ...einotool.Option) (string, error) {
	return result, nil
}

// langModel is the same for langchaingo. It counts its calls: the messages it is given differ from version to version.
type langModel struct{ n int }

func (m *langModel) GenerateContent(context.Context, []llms.MessageContent, ...llms.CallOption) (*llms.ContentResponse,
	error,
) {
	i := m.n
	m.n++
	if i >= iterations {
		return &llms.ContentResponse{Choices: []*llms.ContentChoice{{Content: answer}}}, nil
	}
	return &llms.ContentResponse{Choices: []*llms.ContentChoice{{ToolCalls: []llms.ToolCall{{
		ID: "call-" + strconv.Itoa(i), Type: "function", FunctionCall: &llms.FunctionCall{
			Name:      tool.Name,
			Arguments: string(arguments[i]),
		},
	}}}}}, nil
}

func (m *langModel) Call(ctx context.Context, prompt string, opts ...llms.CallOption) (string, error) {
	return llms.GenerateFromSinglePrompt(ctx, m, prompt, opts...)
}

type langTool struct{ n int }

func (*langTool) Name() string        { return tool.Name }
func (*langTool) Description() string { return tool.Description }

func (t *langTool) Call(_ context.Context, input string) (string, error) {
	if !strings.Contains(input, "step") {
		return "", fmt.Errorf("called with %q", input)
	}
	t.n++
	return result, nil
}
