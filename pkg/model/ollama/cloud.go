package ollama

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"conclave/pkg/model"
)

// Cloud reports whether the server may pass requests on to Ollama's cloud. One that does not say so, as older ones do not,
// is [model.ErrUnsupported].
func (b *Backend) Cloud(ctx context.Context) (on bool, err error) {
	resp, err := b.transport.RoundTrip(b.status.WithContext(ctx))
	if err != nil {
		return false, b.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxFault))
	if err != nil {
		return false, b.broken(ctx, err)
	}
	// api.StatusResponse would read a reply without the field as "not disabled".
	var said struct {
		Cloud struct {
			Disabled *bool `json:"disabled"`
		} `json:"cloud"`
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &said) != nil || said.Cloud.Disabled == nil {
		return false, fmt.Errorf("%w: %s does not say whether it uses Ollama's cloud", model.ErrUnsupported, b.url)
	}
	return !*said.Cloud.Disabled, nil
}
