// Package openai is a backend for servers with OpenAI's HTTP API: llama.cpp, vLLM, LM Studio, LocalAI, or OpenAI
// itself.
//
// Some fields of [model.Request] have no counterpart in the protocol. Window and KeepAlive are ignored: such servers
// set both at startup. Think becomes chat_template_kwargs.enable_thinking, which llama.cpp and vLLM honour and most
// others ignore; see [Config].Official. Capabilities are not reported, so Show claims tool support; a request that
// fails for lack of it returns [model.ErrNoTools].
package openai

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// Config configures a [Backend].
type Config struct {
	URL    string                                    // http://localhost:8080; "/v1" is added when there is no path
	Key    func(ctx context.Context) (string, error) // called for each request, not stored; nil = no key
	Client *http.Client                              // its Transport is used; nil = a default one
	Limit  int64                                     // maximum bytes of one response; 0 = 32 MiB
	// Official selects the field names of OpenAI's own service: reasoning_effort for thinking, max_completion_tokens
	// for the output limit.
	Official bool
}

// Backend implements [model.Backend].
type Backend struct {
	cfg    Config
	remote *remote.Client
	root   string // of the paths
}

var _ model.Backend = (*Backend)(nil)

// New returns a backend for the server at cfg.URL without connecting; a URL without a path gets /v1. It rejects an
// invalid URL: see [remote.New].
func New(cfg Config) (*Backend, error) {
	c, err := remote.New(remote.Config{
		URL: cfg.URL, Key: cfg.Key, Header: "Authorization", Prefix: "Bearer ", Client: cfg.Client, Limit: cfg.Limit,
	})
	if err != nil {
		return nil, err
	}
	root := ""
	if c.URL().Path == "" {
		root = "/v1"
	}
	return &Backend{cfg: cfg, remote: c, root: root}, nil
}

// maxModels limits the entries read from a server's model list.
const maxModels = 10_000

// entry is a model in the list. Fields beyond the id differ by server.
type entry struct {
	ID     string `json:"id"`
	Owner  string `json:"owned_by"`
	Window int    `json:"max_model_len"` // vLLM
	Meta   struct {
		Trained int   `json:"n_ctx_train"` // llama.cpp: what the model was trained for
		Window  int   `json:"n_ctx"`       // llama.cpp: what the server was started with; older versions do not say
		Size    int64 `json:"size"`
	} `json:"meta"`
}

// window is the context window that the server accepts, 0 when it is unknown. The one that a server was started with
// counts: it rejects longer prompts, whatever the model could read.
func (e entry) window() int {
	if e.Meta.Window > 0 {
		return e.Meta.Window
	}
	return max(e.Window, e.Meta.Trained, 0)
}

// List implements [model.Backend]. At most maxModels entries are read; those without an id are left out. Servers do not
// report capabilities: Tools is always true, Thinking and Embedding are always false.
func (b *Backend) List(ctx context.Context) ([]model.Info, error) {
	var list struct {
		Data []entry `json:"data"`
	}
	if err := b.remote.SendJSON(ctx, b.root+"/models", nil, &list, remote.RequestInfo{}); err != nil {
		return nil, fmt.Errorf("listing models: %w", err)
	}
	infos := make([]model.Info, 0, min(len(list.Data), maxModels))
	for _, e := range list.Data[:min(len(list.Data), maxModels)] {
		if e.ID == "" {
			continue
		}
		infos = append(infos, model.Info{
			Name: e.ID, Size: e.Meta.Size, Family: e.Owner, Window: e.window(),
			Tools: true, Remote: b.remote.RemoteHost(),
		})
	}
	return infos, nil
}

// Show implements [model.Backend]. It searches the list, the only endpoint that all servers offer; a model that is not
// in it is [model.ErrMissing].
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

// Pull implements [model.Backend] and always fails: such servers load their models at startup.
func (b *Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: an OpenAI-compatible server loads its models at startup",
			model.ErrUnsupported))
	}
}

// Embed implements [model.Embedder]. A reply without exactly one vector per text is [model.ErrMalformed]. No texts need
// no request.
func (b *Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	if len(texts) == 0 {
		return model.Vectors{Model: name}, nil
	}
	in := struct {
		Model  string   `json:"model"`
		Input  []string `json:"input"`
		Format string   `json:"encoding_format"`
	}{name, texts, "float"}
	var out struct {
		Model string `json:"model"`
		Data  []struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage usage `json:"usage"`
	}
	if err := b.remote.SendJSON(ctx, b.root+"/embeddings", in, &out,
		remote.RequestInfo{Model: name}); err != nil {
		return model.Vectors{}, fmt.Errorf("embedding: %w", err)
	}
	v := model.Vectors{
		Model: firstNonBlank(out.Model, name), Values: make([][]float32, len(texts)),
		PromptTokens: out.Usage.Prompt,
	}
	for _, d := range out.Data {
		if d.Index < 0 || d.Index >= len(texts) || v.Values[d.Index] != nil || len(d.Embedding) == 0 {
			return model.Vectors{}, fmt.Errorf("embedding: %w: the vectors do not match the texts", model.ErrMalformed)
		}
		v.Values[d.Index] = d.Embedding
	}
	if len(out.Data) != len(texts) {
		return model.Vectors{}, fmt.Errorf("embedding: %w: %d vectors for %d texts", model.ErrMalformed, len(out.Data),
			len(texts))
	}
	return v, nil
}

func firstNonBlank(s, other string) string {
	if strings.TrimSpace(s) == "" {
		return other
	}
	return s
}
