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

	"conclave/pkg/model"
	"conclave/pkg/text"
)

// modelDetails are the details of a model in a reply.
type modelDetails struct {
	Family     string `json:"family"`
	Parameters string `json:"parameter_size"`
}

// tagsReply is the reply of /api/tags.
type tagsReply struct {
	Models []struct {
		Name       string       `json:"name"`
		Size       int64        `json:"size"`
		Digest     string       `json:"digest"`
		RemoteHost string       `json:"remote_host"`
		Details    modelDetails `json:"details"`
	} `json:"models"`
}

// Embed implements [model.Embedder]. A text that is longer than the model's context is [model.ErrTooLong]; no text is
// truncated. A reply without one vector per text is [model.ErrMalformed]. No texts need no request.
func (b *Backend) Embed(ctx context.Context, name string, texts []string) (model.Vectors, error) {
	if len(texts) == 0 {
		return model.Vectors{Model: name}, nil
	}
	resp, err := b.post(ctx, "/api/embed", name, struct {
		Model     string   `json:"model"`
		Input     []string `json:"input"`
		KeepAlive any      `json:"keep_alive,omitempty"`
		Truncate  bool     `json:"truncate"`
	}{name, texts, b.keepAlive(""), false})
	if err != nil {
		return model.Vectors{}, err
	}
	var r struct {
		Model      string      `json:"model"`
		Embeddings [][]float32 `json:"embeddings"`
		PromptEval int         `json:"prompt_eval_count"`
	}
	if err := b.decodeReply(ctx, resp, &r); err != nil {
		return model.Vectors{}, err
	}
	if len(r.Embeddings) != len(texts) {
		return model.Vectors{}, fmt.Errorf("%w: %s returned %d vectors for %d texts", model.ErrMalformed, name,
			len(r.Embeddings), len(texts))
	}
	return model.Vectors{Model: r.Model, Values: r.Embeddings, PromptTokens: r.PromptEval}, nil
}

// List implements [model.Backend]. The capabilities and the window are only known to [Backend.Show].
func (b *Backend) List(ctx context.Context) ([]model.Info, error) {
	var tags tagsReply
	if err := b.get(ctx, "/api/tags", &tags); err != nil {
		return nil, err
	}
	loaded, err := b.Loaded(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]model.Info, 0, len(tags.Models))
	for _, m := range tags.Models {
		infos = append(infos, model.Info{
			Name: m.Name, Size: m.Size, Digest: m.Digest, Family: m.Details.Family, Parameters: m.Details.Parameters,
			Remote: m.RemoteHost,
			Loaded: slices.Contains(loaded, m.Name),
		})
	}
	return infos, nil
}

// Loaded implements [model.LoadLister].
func (b *Backend) Loaded(ctx context.Context) (names []string, err error) {
	var ps struct {
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if err := b.get(ctx, "/api/ps", &ps); err != nil {
		return nil, err
	}
	for _, m := range ps.Models {
		names = append(names, m.Name)
	}
	return names, nil
}

func (b *Backend) get(ctx context.Context, path string, into any) error {
	resp, err := b.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	return b.decodeReply(ctx, resp, into)
}

// Show implements [model.Backend]. It does not cache. Size and Loaded are only known to [Backend.List]; a model that
// the server does not have is [model.ErrMissing]. The digest comes from the list of models.
func (b *Backend) Show(ctx context.Context, name string) (model.Info, error) {
	resp, err := b.post(ctx, "/api/show", name, map[string]string{"model": name})
	if err != nil {
		return model.Info{}, err
	}
	var r struct {
		Details      modelDetails   `json:"details"`
		RemoteHost   string         `json:"remote_host"`
		ModelInfo    map[string]any `json:"model_info"`
		Capabilities []string       `json:"capabilities"`
	}
	if err := b.decodeReply(ctx, resp, &r); err != nil {
		return model.Info{}, err
	}
	var tags tagsReply
	_ = b.get(ctx, "/api/tags", &tags) // without it the digest is not known
	digest := ""
	for _, m := range tags.Models {
		if strings.TrimSuffix(m.Name, ":latest") == strings.TrimSuffix(name, ":latest") {
			digest = m.Digest
		}
	}
	can := func(capability string) bool { return slices.Contains(r.Capabilities, capability) }
	return model.Info{
		Name: name, Digest: digest, Family: r.Details.Family, Parameters: r.Details.Parameters,
		Window: contextLength(r.ModelInfo),
		Tools:  can("tools"), Thinking: can("thinking"), Vision: can("vision"), Embedding: can("embedding"),
		Remote: r.RemoteHost,
	}, nil
}

// contextLength returns the context length of a model, 0 if not known. Its key starts with the name of the
// architecture.
func contextLength(info map[string]any) int {
	arch, _ := info["general.architecture"].(string)
	n, _ := info[arch+".context_length"].(float64)
	return int(n)
}

// Pull implements [model.Backend]. A model that the registry does not have is [model.ErrMissing]; a reply that ends
// without the status "success" is [model.ErrCut].
func (b *Backend) Pull(ctx context.Context, name string) iter.Seq2[model.Progress, error] {
	return func(yield func(model.Progress, error) bool) {
		resp, err := b.post(ctx, "/api/pull", name, map[string]any{"model": name, "stream": true})
		if err != nil {
			yield(model.Progress{}, err)
			return
		}
		defer resp.Body.Close()
		lines := newLineReader(resp.Body)
		success := false
		for {
			line, err := lines.readLine()
			if errors.Is(err, io.EOF) && success {
				return
			}
			if err != nil {
				yield(model.Progress{}, b.readError(ctx, err))
				return
			}
			p, err := b.parseProgress(line, name)
			if err != nil {
				yield(model.Progress{}, err)
				return
			}
			success = p.Status == "success"
			if !yield(p, nil) {
				return
			}
		}
	}
}

// parseProgress decodes a line of a pull's reply. A line with an error of the server becomes that error; one that is
// not JSON is [model.ErrMalformed]. name is the requested model.
func (b *Backend) parseProgress(line []byte, name string) (model.Progress, error) {
	var p struct {
		Status    string `json:"status"`
		Digest    string `json:"digest"`
		Total     int64  `json:"total"`
		Completed int64  `json:"completed"`
		Error     string `json:"error"`
	}
	if err := json.Unmarshal(line, &p); err != nil {
		return model.Progress{}, fmt.Errorf("%w: %s sent a line that is not a progress report: %q", model.ErrMalformed,
			b.url, text.OneLine(string(line), maxQuotedBytes))
	}
	if p.Error != "" {
		return model.Progress{}, b.pullError(p.Error, name)
	}
	return model.Progress{Status: p.Status, Digest: p.Digest, Total: p.Total, Completed: p.Completed}, nil
}

// pullError classifies an error during a pull. It is not [Backend.serverError], whose advice for a missing model is to
// pull it.
func (b *Backend) pullError(message, name string) error {
	if low := strings.ToLower(message); strings.Contains(low, "file does not exist") ||
		strings.Contains(low, "not found") {
		return fmt.Errorf("%w: the registry has no model %s; check its name at https://ollama.com/library (%s)",
			model.ErrMissing, name, text.OneLine(message, maxQuotedBytes))
	}
	return fmt.Errorf("pulling %s: %w", name, b.serverError(0, message, name))
}
