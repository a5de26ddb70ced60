package ollama

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/ollama/ollama/api"
	capability "github.com/ollama/ollama/types/model"

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// maxReply bounds replies that are no stream. A thousand vectors of 4096 numbers fit.
const maxReply = 64 << 20

// Embed implements [model.Embedder]. A text that is longer than the model's window is [model.ErrTooLong]; nothing is cut
// off in silence.
func (b *Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	if len(texts) == 0 {
		return model.Vectors{Model: name}, nil
	}
	var r api.EmbedResponse
	err := b.ask(ctx, b.embed, name, &r, func(dst []byte) []byte {
		dst = appendString(append(dst, `{"model":`...), name)
		dst = appendStrings(append(dst, `,"input":`...), texts)
		return append(b.appendKeepAlive(dst, ""), `,"truncate":false}`...)
	})
	if err != nil {
		return model.Vectors{}, err
	}
	if len(r.Embeddings) != len(texts) {
		return model.Vectors{}, fmt.Errorf("%w: %s made %d vectors of %d texts", model.ErrMalformed, name, len(r.Embeddings), len(texts))
	}
	return model.Vectors{Model: r.Model, Values: r.Embeddings, PromptTokens: r.PromptEvalCount}, nil
}

// List implements [model.Backend]. What a model can do it does not know: ask Show.
func (b *Backend) List(ctx context.Context) ([]model.Info, error) {
	var tags api.ListResponse
	if err := b.ask(ctx, b.tags, "", &tags, nil); err != nil {
		return nil, err
	}
	var ps api.ProcessResponse
	if err := b.ask(ctx, b.ps, "", &ps, nil); err != nil {
		return nil, err
	}
	infos := make([]model.Info, 0, len(tags.Models))
	for _, m := range tags.Models {
		infos = append(infos, model.Info{
			Name: m.Name, Size: m.Size, Family: m.Details.Family, Parameters: m.Details.ParameterSize, Remote: m.RemoteHost,
			Loaded: slices.ContainsFunc(ps.Models, func(p api.ProcessModelResponse) bool { return p.Name == m.Name }),
		})
	}
	return infos, nil
}

// Show implements [model.Backend]. It asks the server every time, and does not know sizes and what is loaded: List does.
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	var r api.ShowResponse
	err := b.ask(ctx, b.show, name, &r, func(dst []byte) []byte {
		return append(appendString(append(dst, `{"model":`...), name), '}')
	})
	if err != nil {
		return model.Info{}, err
	}
	can := func(c capability.Capability) bool { return slices.Contains(r.Capabilities, c) }
	return model.Info{
		Name: name, Family: r.Details.Family, Parameters: r.Details.ParameterSize, Window: window(r.ModelInfo),
		Tools: can(capability.CapabilityTools), Thinking: can(capability.CapabilityThinking),
		Vision: can(capability.CapabilityVision), Embedding: can(capability.CapabilityEmbedding), Remote: r.RemoteHost,
	}, nil
}

// window finds the context length, whose key begins with the name of the architecture.
func window(info map[string]any) int {
	arch, _ := info["general.architecture"].(string)
	n, _ := info[arch+".context_length"].(float64)
	return int(n)
}

// Pull implements [model.Backend].
func (b *Backend) Pull(ctx context.Context, name string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		resp, err := b.do(ctx, b.pull, name, func(dst []byte) []byte {
			return append(appendString(append(dst, `{"model":`...), name), `,"stream":true}`...)
		})
		if err != nil {
			yield(model.Progress{}, err)
			return
		}
		defer resp.Body.Close()
		lines := newLines(resp.Body)
		defer lines.free()
		success := false
		for {
			line, err := lines.next()
			if errors.Is(err, io.EOF) && success {
				return
			}
			if err != nil {
				yield(model.Progress{}, b.broken(ctx, err))
				return
			}
			var p struct {
				api.ProgressResponse
				Error string `json:"error"`
			}
			if err := json.Unmarshal(line, &p); err != nil {
				yield(model.Progress{}, fmt.Errorf("%w: %s sent something that is no progress: %q", model.ErrMalformed, b.url, text.OneLine(string(line), mostSaid)))
				return
			}
			if p.Error != "" {
				yield(model.Progress{}, b.pullFault(p.Error, name))
				return
			}
			success = p.Status == "success"
			if !yield(model.Progress{Status: p.Status, Digest: p.Digest, Total: p.Total, Completed: p.Completed}, nil) {
				return
			}
		}
	}
}

// pullFault does not tell people to pull what they are just pulling.
func (b *Backend) pullFault(said, name string) error {
	if low := strings.ToLower(said); strings.Contains(low, "file does not exist") || strings.Contains(low, "not found") {
		return fmt.Errorf("%w: there is no model %s to be fetched; check its name at https://ollama.com/library (%s)",
			model.ErrMissing, name, text.OneLine(said, mostSaid))
	}
	return fmt.Errorf("fetching %s: %w", name, b.fault(0, said, name))
}

// ask sends a request and reads the reply whole.
func (b *Backend) ask(ctx context.Context, prepared *http.Request, name string, into any, write func([]byte) []byte) error {
	resp, err := b.do(ctx, prepared, name, write)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return b.broken(ctx, err)
	}
	if len(body) > maxReply {
		return fmt.Errorf("%w: the reply of %s is longer than 64 MB", model.ErrMalformed, b.url)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%w: %s sent something that cannot be read: %q", model.ErrMalformed, b.url, text.OneLine(string(body), mostSaid))
	}
	return nil
}
