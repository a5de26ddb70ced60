package ollama

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"conclave/pkg/model"
)

// IsCloudEnabled reports whether the server may forward requests to Ollama's cloud. It returns [model.ErrUnsupported]
// for a server that does not report this, as older versions do not; the caller must then assume that it may.
func (b *Backend) IsCloudEnabled(ctx context.Context) (bool, error) {
	resp, err := b.roundTrip(ctx, http.MethodGet, "/api/status", nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return false, b.readError(ctx, err)
	}
	// api.StatusResponse would decode a reply without the field as "not disabled".
	var status struct {
		Cloud struct {
			Disabled *bool `json:"disabled"`
		} `json:"cloud"`
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &status) != nil || status.Cloud.Disabled == nil {
		return false, fmt.Errorf("%w: %s does not report whether it uses Ollama's cloud", model.ErrUnsupported, b.url)
	}
	return !*status.Cloud.Disabled, nil
}
