// Package anthropic reaches Anthropic's API.
//
// Options that the service does not support are left out: Window, KeepAlive, Seed; and Temperature while the model
// thinks, because the service rejects it. It has no embeddings and no pull. Where thinking needs a budget and Predict
// does not exceed the smallest budget that the service accepts, that budget is added to it.
//
// Thinking is signed by the service, which requires the signature back inside one tool loop. A [model.Message] has no
// field for it, so the backend caches signed thinking by call id, in memory and bounded, and the Thinking of a message
// is not sent. Calls whose thinking is no longer cached are sent without it; for a model that requires it, thinking is
// then disabled.
package anthropic

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"sync"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// Address is where the service is.
const Address = "https://api.anthropic.com"

const version = "2023-06-01" // of the API

// Config configures a [Backend].
type Config struct {
	URL    string                                    // "" = [Address]
	Key    func(ctx context.Context) (string, error) // asked for each request and not kept
	Client *http.Client                              // its Transport is used; nil = one of our own
	Limit  int64                                     // most bytes of one response; 0 = 32 MiB
}

// Backend implements [model.Backend].
type Backend struct {
	remote *remote.Client
	signed remote.SignatureCache // thinking blocks by the id of the call that followed

	mu       sync.Mutex
	adaptive map[string]bool // models that decide themselves how much to think
}

var _ model.Backend = (*Backend)(nil)

// New returns a backend without connecting. It rejects an invalid URL: see [remote.New].
func New(cfg Config) (*Backend, error) {
	cfg.URL = cmp.Or(cfg.URL, Address)
	c, err := remote.New(remote.Config{
		URL: cfg.URL, Key: cfg.Key, Header: "X-Api-Key", Extra: map[string]string{"Anthropic-Version": version},
		Client: cfg.Client, Limit: cfg.Limit,
	})
	if err != nil {
		return nil, err
	}
	return &Backend{remote: c, adaptive: map[string]bool{}}, nil
}

const mostPages = 20 // of models

// entry is a model in the service's list.
type entry struct {
	ID           string `json:"id"`
	Line         string `json:"line"`
	Window       int    `json:"max_input_tokens"`
	Capabilities struct {
		Images   capability `json:"image_input"`
		Thinking struct {
			capability
			Types struct {
				Adaptive capability `json:"adaptive"`
			} `json:"types"`
		} `json:"thinking"`
	} `json:"capabilities"`
}

type capability struct {
	Supported bool `json:"supported"`
}

// List implements [model.Backend]. It reads at most 20 pages; models beyond them and those without an id are left out.
func (b *Backend) List(ctx context.Context) (infos []model.Info, err error) {
	query := url.Values{"limit": {"1000"}}
	for range mostPages {
		var page struct {
			Models []entry `json:"data"`
			More   bool    `json:"has_more"`
			Last   string  `json:"last_id"`
		}
		err := b.remote.SendJSON(ctx, "/v1/models?"+query.Encode(), nil, &page, remote.RequestInfo{})
		if err != nil {
			return nil, fmt.Errorf("listing models: %w", err)
		}
		for _, m := range page.Models {
			if m.ID != "" {
				infos = append(infos, b.describeModel(m))
			}
		}
		if !page.More || page.Last == "" {
			break
		}
		query.Set("after_id", page.Last)
	}
	return infos, nil
}

// Show implements [model.Backend].
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	m, err := b.fetchModel(ctx, name)
	if err != nil {
		return model.Info{}, err
	}
	return b.describeModel(m), nil
}

// fetchModel asks the service for one model; it does not cache. The names "", "." and "..", which would change the path
// of the request, are [model.ErrMissing] without a request.
func (b *Backend) fetchModel(ctx context.Context, name string) (m entry, err error) {
	if name == "" || name == "." || name == ".." {
		return m, fmt.Errorf("%w: %q is not the name of a model", model.ErrMissing, name)
	}
	err = b.remote.SendJSON(ctx, "/v1/models/"+url.PathEscape(name), nil, &m, remote.RequestInfo{Model: name})
	if err == nil && m.ID == "" {
		err = fmt.Errorf("%w: the description has no id", model.ErrMalformed)
	}
	if err != nil {
		return m, fmt.Errorf("looking at %q: %w", name, err)
	}
	return m, nil
}

// describeModel converts a list entry. All models of the service support tools, which the list does not mention.
func (b *Backend) describeModel(m entry) model.Info {
	return model.Info{
		Name: m.ID, Family: m.Line, Window: max(m.Window, 0), Tools: true,
		Thinking: m.Capabilities.Thinking.Supported, Vision: m.Capabilities.Images.Supported, Remote: b.host(),
	}
}

// host returns where the model runs. It is never this machine, even when the configured URL is a local proxy.
func (b *Backend) host() string { return b.remote.URL().Hostname() }

// Pull implements [model.Backend].
func (b *Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: the models of Anthropic cannot be fetched", model.ErrUnsupported))
	}
}

// Embed implements [model.Embedder].
func (b *Backend) Embed(context.Context, string, []string) (model.Vectors, error) {
	return model.Vectors{}, fmt.Errorf("%w: Anthropic makes no vectors; use another backend for them",
		model.ErrUnsupported)
}
