// Package anthropic reaches Anthropic's API through its own library.
//
// The library looks for keys, addresses and headers in the environment and in the home folder. None of that is used:
// the key comes from [Config].Key for each request, and is set on the way to the wire, behind the library. Its retries
// and its tracing are off.
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
	sdk    sdk.Client
	signed remote.SignatureCache // thinking blocks by the id of the call that followed

	mu       sync.Mutex
	adaptive map[string]bool // models that decide themselves how much to think
}

var _ model.Backend = (*Backend)(nil)

// maxRequestTime is how long one request may take when its context does not say. The library wants a bound, or computes
// one of its own from the number of tokens.
const maxRequestTime = time.Hour

// New returns a backend without connecting. It rejects an invalid URL: see [remote.New].
func New(cfg Config) (*Backend, error) {
	if cfg.URL == "" {
		cfg.URL = Address
	}
	c, err := remote.New(remote.Config{
		URL: cfg.URL, Key: cfg.Key, Header: "X-Api-Key", Client: cfg.Client,
		Limit: cfg.Limit,
	})
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
			option.WithRequestTimeout(maxRequestTime),
			option.WithoutOpenTelemetry(),
		),
		adaptive: map[string]bool{},
	}, nil
}

// maxModels is how many entries of the service's list are looked at.
const maxModels = 10_000

// List implements [model.Backend]. It returns at most maxModels models.
func (b *Backend) List(ctx context.Context) ([]model.Info, error) {
	kctx, call, err := b.remote.BeginCall(ctx)
	if err != nil {
		return nil, err
	}
	var infos []model.Info
	err = remote.RecoverPanic(func() error {
		pages := b.sdk.Models.ListAutoPaging(kctx, sdk.ModelListParams{Limit: sdk.Int(1000)})
		for len(infos) < maxModels && pages.Next() {
			infos = append(infos, b.describeModel(pages.Current()))
		}
		return pages.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing models: %w", convertError(ctx, call, err, remote.RequestInfo{}))
	}
	return infos, nil
}

// Show implements [model.Backend].
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	m, err := b.fetchModel(ctx, name)
	if err != nil {
		return model.Info{}, err
	}
	return b.describeModel(*m), nil
}

// fetchModel asks the service for one model; it does not cache. The names "", "." and "..", which would change the path
// of the request, are [model.ErrMissing] without a request.
func (b *Backend) fetchModel(ctx context.Context, name string) (*sdk.ModelInfo, error) {
	if name == "" || name == "." || name == ".." {
		return nil, fmt.Errorf("%w: %q is not the name of a model", model.ErrMissing, name)
	}
	kctx, call, err := b.remote.BeginCall(ctx)
	if err != nil {
		return nil, err
	}
	m, err := b.sdk.Models.Get(kctx, name, sdk.ModelGetParams{})
	if err == nil && (m == nil || m.ID == "") {
		err = errEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("looking at %q: %w", name, convertError(ctx, call, err, remote.RequestInfo{Model: name}))
	}
	return m, nil
}

var errEmpty = errors.New("empty response")

// describeModel converts a list entry. All models of the service support tools, which the list does not mention.
func (b *Backend) describeModel(m sdk.ModelInfo) model.Info {
	return model.Info{
		Name: m.ID, Family: string(m.Line), Window: int(max(m.MaxInputTokens, 0)), Tools: true,
		Thinking: m.Capabilities.Thinking.Supported, Vision: m.Capabilities.ImageInput.Supported, Remote: b.host(),
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

// convertError converts an SDK error to a sentinel of package model where one applies; a describes the request. SDK
// errors are never wrapped: they quote the response, which may contain the key.
func convertError(ctx context.Context, call *remote.Call, err error, a remote.RequestInfo) error {
	e, ok := errors.AsType[*sdk.Error](err)
	if !ok || ctx.Err() != nil {
		return call.LibraryError(ctx, err)
	}
	status := e.StatusCode
	if status < 400 { // an error in mid-stream: the status was sent before
		status = statusOf(e.Type())
	}
	return call.StatusError(status, remote.ErrorMessage([]byte(e.RawJSON())), a)
}

// statusOf returns the HTTP status that stands for an error type inside a stream; 500 for an unknown one.
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
