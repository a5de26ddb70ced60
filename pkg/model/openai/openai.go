// Package openai reaches any server that speaks OpenAI's HTTP protocol: llama.cpp, vLLM, LM Studio, LocalAI, or OpenAI
// itself. It is a small client of our own.
//
// The protocol has no word for some of what a [model.Request] can say. Window and KeepAlive are left out: such servers
// fix both when they start. Think becomes chat_template_kwargs.enable_thinking, which llama.cpp and vLLM read and most
// others ignore; see [Config].Official. What a model can do is not told either, so Show says that it takes tools; a
// request that proves otherwise ends in [model.ErrNoTools].
package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// Config says where the server is and how to reach it.
type Config struct {
	URL    string                                    // http://localhost:8080; "/v1" is added when there is no path
	Key    func(ctx context.Context) (string, error) // asked for each request and not kept; nil = no key
	Client *http.Client                              // its Transport is used; nil = one of our own
	Limit  int64                                     // most bytes of one response; 0 = 32 MiB
	// Official is for OpenAI's own service, which refuses what others need: thinking is said as reasoning_effort, the
	// limit of the answer as max_completion_tokens.
	Official bool
}

// Backend implements [model.Backend].
type Backend struct {
	cfg    Config
	remote *remote.Client
	root   string
}

var _ model.Backend = (*Backend)(nil)

// New returns a backend for the server at cfg.URL. It does not ask it anything yet.
func New(cfg Config) (*Backend, error) {
	c, err := remote.New(remote.Config{
		URL: cfg.URL, Key: cfg.Key, Header: "Authorization", Prefix: "Bearer ", Client: cfg.Client, Limit: cfg.Limit,
	})
	if err != nil {
		return nil, err
	}
	root := c.URL()
	if root.Path == "" {
		root.Path = "/v1"
	}
	return &Backend{cfg: cfg, remote: c, root: root.String()}, nil
}

// mostModels is how many entries of a server's list are looked at.
const mostModels = 10_000

// entry is a model in a list. Beyond the id, each server has fields of its own.
type entry struct {
	ID     string `json:"id"`
	Owner  string `json:"owned_by"`
	Window int    `json:"max_model_len"` // vLLM
	Meta   struct {
		Window int   `json:"n_ctx_train"` // llama.cpp
		Size   int64 `json:"size"`
	} `json:"meta"`
}

// List implements [model.Backend].
func (b *Backend) List(ctx context.Context) ([]model.Info, error) {
	var list struct {
		Data []entry `json:"data"`
	}
	if err := b.remote.Ask(ctx, http.MethodGet, b.root+"/models", nil, &list, remote.Asked{}); err != nil {
		return nil, fmt.Errorf("listing models: %w", err)
	}
	infos := make([]model.Info, 0, min(len(list.Data), mostModels))
	for _, e := range list.Data[:min(len(list.Data), mostModels)] {
		if e.ID == "" {
			continue
		}
		infos = append(infos, model.Info{
			Name: e.ID, Size: e.Meta.Size, Family: e.Owner, Window: max(e.Window, e.Meta.Window, 0),
			Tools: true, Remote: b.remote.Away(),
		})
	}
	return infos, nil
}

// Show implements [model.Backend]. It looks the model up in the list: servers differ in what else they offer.
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	infos, err := b.List(ctx)
	if err != nil {
		return model.Info{}, err
	}
	i := slices.IndexFunc(infos, func(i model.Info) bool { return i.Name == name })
	if i < 0 {
		return model.Info{}, fmt.Errorf("%w: %s does not list %q", model.ErrMissing, b.remote.Host(), name)
	}
	return infos[i], nil
}

// Pull implements [model.Backend]: such servers are given their models when they start.
func (b *Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: an OpenAI-compatible server gets its models when it starts", model.ErrUnsupported))
	}
}

// Embed implements [model.Embedder].
func (b *Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	if len(texts) == 0 {
		return model.Vectors{Model: name}, nil
	}
	in, err := encode(struct {
		Model  string   `json:"model"`
		Input  []string `json:"input"`
		Format string   `json:"encoding_format"`
	}{name, texts, "float"})
	if err != nil {
		return model.Vectors{}, fmt.Errorf("embedding: %w", err)
	}
	var out struct {
		Model string `json:"model"`
		Data  []struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage usage `json:"usage"`
	}
	if err := b.remote.Ask(ctx, http.MethodPost, b.root+"/embeddings", in, &out, remote.Asked{Model: name}); err != nil {
		return model.Vectors{}, fmt.Errorf("embedding: %w", err)
	}
	v := model.Vectors{Model: or(out.Model, name), Values: make([][]float32, len(texts)), PromptTokens: out.Usage.Prompt}
	for _, d := range out.Data {
		if d.Index < 0 || d.Index >= len(texts) || v.Values[d.Index] != nil || len(d.Embedding) == 0 {
			return model.Vectors{}, fmt.Errorf("embedding: %w: the vectors do not match the texts", model.ErrMalformed)
		}
		v.Values[d.Index] = d.Embedding
	}
	if len(out.Data) != len(texts) {
		return model.Vectors{}, fmt.Errorf("embedding: %w: %d vectors for %d texts", model.ErrMalformed, len(out.Data), len(texts))
	}
	return v, nil
}

// encode is like [json.Marshal] but leaves <, > and & as they are: models read the text.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

func or(s, other string) string {
	if strings.TrimSpace(s) == "" {
		return other
	}
	return s
}
