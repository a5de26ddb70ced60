// Package anthropic reaches Anthropic's API through its own library.
//
// The library looks for keys, addresses and headers in the environment and in the home folder. None of that is used: the
// key comes from [Config].Key for each request, and is set on the way to the wire, behind the library. Its retries and
// its tracing are off.
//
// What the service has no word for is left out: Window, KeepAlive, Seed; and Temperature while the model thinks, because
// the service refuses it. It makes no vectors and fetches no models. Where thinking needs a budget and Predict is below the
// least that the service takes, that least is added to it.
//
// Thinking is signed by the service, which wants the signature back inside one tool loop. A [model.Message] has no place
// for it, so the backend keeps signed thinking by call id, in memory and bounded, and the Thinking of a message is not
// sent. Where it is no longer at hand, the calls go without; a model that insists on it is then asked not to think.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"conclave/pkg/model"
	"conclave/pkg/model/internal/remote"
)

// Address is where the service is.
const Address = "https://api.anthropic.com"

// Config says where the service is and how to reach it.
type Config struct {
	URL    string                                    // "" = [Address]
	Key    func(ctx context.Context) (string, error) // asked for each request and not kept
	Client *http.Client                              // its Transport is used; nil = one of our own
	Limit  int64                                     // most bytes of one response; 0 = 32 MiB
}

// Backend implements [model.Backend].
type Backend struct {
	remote *remote.Client
	sdk    sdk.Client
	signed remote.Keep // thinking blocks by the id of the call that followed

	mu       sync.Mutex
	adaptive map[string]bool // models that decide themselves how much to think
}

var _ model.Backend = (*Backend)(nil)

// longest is how long one request may take when its context does not say. The library wants a bound, or computes one of
// its own from the number of tokens.
const longest = time.Hour

// New returns a backend for the service. It does not ask it anything yet.
func New(cfg Config) (*Backend, error) {
	if cfg.URL == "" {
		cfg.URL = Address
	}
	c, err := remote.New(remote.Config{URL: cfg.URL, Key: cfg.Key, Header: "X-Api-Key", Client: cfg.Client, Limit: cfg.Limit})
	if err != nil {
		return nil, err
	}
	return &Backend{
		remote: c,
		sdk: sdk.NewClient(
			option.WithoutEnvironmentDefaults(),
			option.WithBaseURL(c.URL().String()),
			option.WithHTTPClient(c.HTTP()),
			option.WithMaxRetries(0),
			option.WithRequestTimeout(longest),
			option.WithoutOpenTelemetry(),
		),
		adaptive: map[string]bool{},
	}, nil
}

// mostModels is how many entries of the service's list are looked at.
const mostModels = 10_000

// List implements [model.Backend].
func (b *Backend) List(ctx context.Context) ([]model.Info, error) {
	kctx, call, err := b.remote.Begin(ctx)
	if err != nil {
		return nil, err
	}
	var infos []model.Info
	err = remote.Guarded(func() error {
		pages := b.sdk.Models.ListAutoPaging(kctx, sdk.ModelListParams{Limit: sdk.Int(1000)})
		for len(infos) < mostModels && pages.Next() {
			infos = append(infos, b.info(pages.Current()))
		}
		return pages.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing models: %w", fault(ctx, call, err, remote.Asked{}))
	}
	return infos, nil
}

// Show implements [model.Backend].
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	m, err := b.look(ctx, name)
	if err != nil {
		return model.Info{}, err
	}
	return b.info(*m), nil
}

func (b *Backend) look(ctx context.Context, name string) (*sdk.ModelInfo, error) {
	if name == "" || name == "." || name == ".." {
		return nil, fmt.Errorf("%w: %q is not the name of a model", model.ErrMissing, name)
	}
	kctx, call, err := b.remote.Begin(ctx)
	if err != nil {
		return nil, err
	}
	m, err := b.sdk.Models.Get(kctx, name, sdk.ModelGetParams{})
	if err == nil && (m == nil || m.ID == "") {
		err = errEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("looking at %q: %w", name, fault(ctx, call, err, remote.Asked{Model: name}))
	}
	return m, nil
}

var errEmpty = errors.New("empty response")

// info describes a model. All of the service's models take tools; the list does not mention it.
func (b *Backend) info(m sdk.ModelInfo) model.Info {
	return model.Info{
		Name: m.ID, Family: string(m.Line), Window: int(max(m.MaxInputTokens, 0)), Tools: true,
		Thinking: m.Capabilities.Thinking.Supported, Vision: m.Capabilities.ImageInput.Supported, Remote: b.host(),
	}
}

// host is where the model runs: never here, even when the way there begins on this machine.
func (b *Backend) host() string { return b.remote.URL().Hostname() }

// Pull implements [model.Backend].
func (b *Backend) Pull(context.Context, string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		yield(model.Progress{}, fmt.Errorf("%w: the models of Anthropic cannot be fetched", model.ErrUnsupported))
	}
}

// Embed implements [model.Embedder].
func (b *Backend) Embed(context.Context, string, []string) (model.Vectors, error) {
	return model.Vectors{}, fmt.Errorf("%w: Anthropic makes no vectors; use another backend for them", model.ErrUnsupported)
}

// fault turns what the library returns into our errors. The library's own are not wrapped: they hold what the service
// said word for word.
func fault(ctx context.Context, call *remote.Call, err error, a remote.Asked) error {
	e, ok := errors.AsType[*sdk.Error](err)
	if !ok || ctx.Err() != nil {
		return call.Fault(ctx, err)
	}
	status := e.StatusCode
	if status < 400 { // an error in mid-stream: the status was sent before
		status = statusOf(e.Type())
	}
	return call.Refused(status, remote.Message([]byte(e.RawJSON())), a)
}

func statusOf(t sdk.ErrorType) int {
	switch t {
	case sdk.ErrorTypeInvalidRequestError:
		return http.StatusBadRequest
	case sdk.ErrorTypeAuthenticationError:
		return http.StatusUnauthorized
	case sdk.ErrorTypePermissionError, sdk.ErrorTypeBillingError:
		return http.StatusForbidden
	case sdk.ErrorTypeNotFoundError:
		return http.StatusNotFound
	case sdk.ErrorTypeRateLimitError:
		return http.StatusTooManyRequests
	case sdk.ErrorTypeOverloadedError:
		return http.StatusServiceUnavailable
	case sdk.ErrorTypeTimeoutError:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}
