// Package genai reaches Google's GenAI API.
//
// Options that the service does not support are left out: Window and KeepAlive.
//
// Newer models sign the thinking behind a call and require the signature back with it. A [model.Message] has no field
// for it, so the backend caches signatures by call id, in memory and bounded. A call whose signature is no longer
// cached is sent with the value that Google documents for unsigned calls. The Thinking of a message is not sent.
package genai

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// Address is where the service is.
const Address = "https://generativelanguage.googleapis.com"

const root = "/v1beta/" // of the paths

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
	signed remote.SignatureCache // signatures by the id of the call
}

var _ model.Backend = (*Backend)(nil)

// New returns a backend without connecting. It rejects an invalid URL: see [remote.New].
func New(cfg Config) (*Backend, error) {
	cfg.URL = cmp.Or(cfg.URL, Address)
	c, err := remote.New(remote.Config{
		URL: cfg.URL, Key: cfg.Key, Header: "X-Goog-Api-Key", Client: cfg.Client,
		Limit: cfg.Limit,
	})
	if err != nil {
		return nil, err
	}
	return &Backend{remote: c}, nil
}

// validName matches model names that are safe in a path, unless they contain "..".
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*$`)

// resourceName returns the service's name of a model, which is a path. A name that is not safe in one is
// [model.ErrMissing].
func resourceName(name string) (string, error) {
	switch {
	case !validName.MatchString(name) || strings.Contains(name, ".."):
		return "", fmt.Errorf("%w: %q is not the name of a model of Google's", model.ErrMissing, name)
	case strings.HasPrefix(name, "models/"), strings.HasPrefix(name, "tunedModels/"):
		return name, nil
	}
	return "models/" + name, nil
}

// host returns where the model runs. It is never this machine, even when the configured URL is a local proxy.
func (b *Backend) host() string { return b.remote.URL().Hostname() }

const mostPages = 20 // of models

// entry is a model in the service's list.
type entry struct {
	Name     string   `json:"name"`
	Window   int      `json:"inputTokenLimit"`
	Methods  []string `json:"supportedGenerationMethods"`
	Thinking bool     `json:"thinking"`
}

// List implements [model.Backend]. It reads at most 20 pages; models beyond them and those without a name are left out.
func (b *Backend) List(ctx context.Context) (infos []model.Info, err error) {
	query := url.Values{"pageSize": {"1000"}}
	for range mostPages {
		var page struct {
			Models []entry `json:"models"`
			Next   string  `json:"nextPageToken"`
		}
		err := b.remote.SendJSON(ctx, root+"models?"+query.Encode(), nil, &page, remote.RequestInfo{})
		if err != nil {
			return nil, fmt.Errorf("listing models: %w", err)
		}
		for _, m := range page.Models {
			if m.Name != "" {
				infos = append(infos, b.describeModel(m))
			}
		}
		if page.Next == "" {
			break
		}
		query.Set("pageToken", page.Next)
	}
	return infos, nil
}

// Show implements [model.Backend]. A name that is not safe in a URL path is [model.ErrMissing], without a request.
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	resource, err := resourceName(name)
	if err != nil {
		return model.Info{}, err
	}
	var got entry
	err = b.remote.SendJSON(ctx, root+resource, nil, &got, remote.RequestInfo{Model: name})
	if err == nil && got.Name == "" {
		err = fmt.Errorf("%w: the description has no name", model.ErrMalformed)
	}
	if err != nil {
		return model.Info{}, fmt.Errorf("looking at %q: %w", name, err)
	}
	return b.describeModel(got), nil
}

// describeModel converts a list entry. All text models support tools, which the list does not mention.
func (b *Backend) describeModel(m entry) model.Info {
	writes := slices.Contains(m.Methods, "generateContent")
	return model.Info{
		Name: strings.TrimPrefix(m.Name, "models/"), Window: max(m.Window, 0),
		Tools: writes, Thinking: m.Thinking, Embedding: !writes && slices.Contains(m.Methods, "embedContent"),
		Remote: b.host(),
	}
}

// Pull implements [model.Backend].
func (b *Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: the models of Google's service cannot be fetched",
			model.ErrUnsupported))
	}
}

// embedRequest asks for the vector of one text.
type embedRequest struct {
	Model   string `json:"model"`
	Content struct {
		Parts [1]struct {
			Text string `json:"text"` // may be empty
		} `json:"parts"`
	} `json:"content"`
}

// Embed implements [model.Embedder]. A reply without one vector per text is [model.ErrMalformed]. The service reports
// no token count. No texts need no request.
func (b *Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	v := model.Vectors{Model: name}
	if len(texts) == 0 {
		return v, nil
	}
	resource, err := resourceName(name)
	if err != nil {
		return model.Vectors{}, err
	}
	var in struct {
		Requests []embedRequest `json:"requests"`
	}
	for _, t := range texts {
		r := embedRequest{Model: resource}
		r.Content.Parts[0].Text = t
		in.Requests = append(in.Requests, r)
	}
	var out struct {
		Embeddings []struct {
			Values []float32 `json:"values"`
		} `json:"embeddings"`
	}
	if err := b.remote.SendJSON(ctx, root+resource+":batchEmbedContents", in, &out,
		remote.RequestInfo{Model: name}); err != nil {
		return model.Vectors{}, fmt.Errorf("embedding: %w", err)
	}
	for _, e := range out.Embeddings {
		if len(e.Values) > 0 {
			v.Values = append(v.Values, e.Values)
		}
	}
	if len(v.Values) != len(texts) {
		return model.Vectors{}, fmt.Errorf("embedding: %w: %d vectors for %d texts", model.ErrMalformed, len(v.Values),
			len(texts))
	}
	return v, nil
}
