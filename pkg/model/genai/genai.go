// Package genai reaches Google's GenAI API through its own library.
//
// The library looks for keys and addresses in the environment. They are not used: the key comes from [Config].Key for
// each request and is set on the way to the wire, behind the library, and the address is always ours. (When both
// GOOGLE_API_KEY and GEMINI_API_KEY are set, the library logs that it picks one; what it picks is never sent.)
//
// Options that the service does not support are left out: Window and KeepAlive. Arguments of calls pass through
// unordered maps, in the library as in the service; they are returned with sorted keys.
//
// Newer models sign the thinking behind a call and require the signature back with it. A [model.Message] has no field
// for it, so the backend caches signatures by call id, in memory and bounded. A call whose signature is no longer
// cached is sent with the value that Google documents for unsigned calls. The Thinking of a message is not sent.
package genai

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	sdk "google.golang.org/genai"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// Address is where the service is.
const Address = "https://generativelanguage.googleapis.com"

const version = "v1beta" // of the API

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
	sdk    *sdk.Models
	signed remote.SignatureCache // signatures by the id of the call
}

var _ model.Backend = (*Backend)(nil)

// New returns a backend without connecting. It rejects an invalid URL: see [remote.New].
func New(cfg Config) (*Backend, error) {
	if cfg.URL == "" {
		cfg.URL = Address
	}
	c, err := remote.New(remote.Config{
		URL: cfg.URL, Key: cfg.Key, Header: "X-Goog-Api-Key", Client: cfg.Client,
		Limit: cfg.Limit,
	})
	if err != nil {
		return nil, err
	}
	client, err := sdk.NewClient(context.Background(), &sdk.ClientConfig{
		// Without a key here the library takes the environment's. Neither reaches the wire.
		APIKey:      "set-on-the-way",
		Backend:     sdk.BackendGeminiAPI,
		HTTPClient:  c.HTTP(),
		HTTPOptions: sdk.HTTPOptions{BaseURL: c.URL().String(), APIVersion: version},
	})
	if err != nil {
		// The library's error prints its whole configuration.
		return nil, errors.New("the library for Google's GenAI API could not be set up")
	}
	return &Backend{remote: c, sdk: client.Models}, nil
}

// name matches model names, which the SDK inserts into a URL path unescaped.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*$`)

func isValidName(m string) bool { return name.MatchString(m) && !strings.Contains(m, "..") }

func invalidNameError(m string) error {
	return fmt.Errorf("%w: %q is not the name of a model of Google's", model.ErrMissing, m)
}

// beginCall checks the model name, which must be safe in a path, and obtains the key. Read errors are hidden from the
// SDK, which would log them.
func (b *Backend) beginCall(ctx context.Context, m string) (context.Context, *remote.Call, error) {
	if !isValidName(m) {
		return nil, nil, invalidNameError(m)
	}
	kctx, call, err := b.remote.BeginCall(ctx)
	if err != nil {
		return nil, nil, err
	}
	call.HideReadErrors()
	return kctx, call, nil
}

// host returns where the model runs. It is never this machine, even when the configured URL is a local proxy.
func (b *Backend) host() string { return b.remote.URL().Hostname() }

const mostPages = 20 // of models

// entry is a model in the service's list. The list is read without the SDK, which logs responses that it does not
// understand, including a key that the server quotes.
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
		address := b.remote.URL().JoinPath(version, "models")
		address.RawQuery = query.Encode()
		if err := b.remote.SendJSON(ctx, http.MethodGet, address.String(), nil, &page,
			remote.RequestInfo{}); err != nil {
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
func (b *Backend) Show(ctx context.Context, m string) (model.Info, error) {
	if m == "" || !isValidName(m) {
		return model.Info{}, invalidNameError(m)
	}
	var got entry
	address := b.remote.URL().JoinPath(version, "models", strings.TrimPrefix(m, "models/")).String()
	err := b.remote.SendJSON(ctx, http.MethodGet, address, nil, &got, remote.RequestInfo{Model: m})
	if err == nil && got.Name == "" {
		err = fmt.Errorf("%w: the description has no name", model.ErrMalformed)
	}
	if err != nil {
		return model.Info{}, fmt.Errorf("looking at %q: %w", m, err)
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

// Embed implements [model.Embedder]. A reply without one vector per text is [model.ErrMalformed]. The service reports
// no token count. No texts need no request.
func (b *Backend) Embed(ctx context.Context, m string, texts []string) (model.Vectors, error) {
	v := model.Vectors{Model: m}
	if len(texts) == 0 {
		return v, nil
	}
	kctx, call, err := b.beginCall(ctx, m)
	if err != nil {
		return model.Vectors{}, err
	}
	contents := make([]*sdk.Content, len(texts))
	for i, t := range texts {
		contents[i] = sdk.NewContentFromText(t, sdk.RoleUser)
	}
	var got *sdk.EmbedContentResponse
	err = remote.RecoverPanic(func() (err error) {
		got, err = b.sdk.EmbedContent(kctx, m, contents, nil)
		return err
	})
	if err = addReadError(call, err); err == nil && got == nil {
		err = errEmpty
	}
	if err != nil {
		return model.Vectors{}, fmt.Errorf("embedding: %w", convertError(ctx, call, err, remote.RequestInfo{Model: m}))
	}
	for _, e := range got.Embeddings {
		if e != nil && len(e.Values) > 0 {
			v.Values = append(v.Values, e.Values)
		}
	}
	if len(v.Values) != len(texts) {
		return model.Vectors{}, fmt.Errorf("embedding: %w: %d vectors for %d texts", model.ErrMalformed, len(v.Values),
			len(texts))
	}
	return v, nil
}

var errEmpty = errors.New("empty response")

// addReadError returns the read error hidden from the SDK by [remote.Call.HideReadErrors], or err.
func addReadError(call *remote.Call, err error) error {
	if broken := call.ReadError(); broken != nil && err == nil {
		return broken
	}
	return err
}

// convertError converts an SDK error to a sentinel of package model where one applies; a describes the request. SDK
// errors are never wrapped: they quote the response, which may contain the key. An error of the service without a
// status counts as 500.
func convertError(ctx context.Context, call *remote.Call, err error, a remote.RequestInfo) error {
	e, ok := errors.AsType[sdk.APIError](err)
	if !ok || ctx.Err() != nil || call.ReadError() != nil {
		return call.LibraryError(ctx, err)
	}
	status := e.Code
	if status < 400 {
		status = call.Status()
	}
	if status < 400 { // an error in mid-stream without a code
		status = http.StatusInternalServerError
	}
	return call.StatusError(status, strings.TrimSpace(e.Message+" "+e.Status), a)
}
