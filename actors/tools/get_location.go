package tools

import (
	"context"
	_ "embed"
	"strings"
	"time"

	"conclave/pkg/policy"
	"conclave/pkg/text"
)

//go:embed get_location.md
var getLocationText string

// maxLocation bounds the setting location, in bytes.
const maxLocation = 200

// getLocation returns the tool get_location. It answers with the setting and asks no network. Where the user is, is
// private. Without the setting it is disabled.
func getLocation(w Workspace) *Tool {
	t := newTool("get_location", getLocationText, "", "", policy.Tool{
		Act: policy.ActRead, Args: policy.Args{}, About: []string{"location", "place"},
		Effects: policy.Declare(policy.ReadsPrivate), Timeout: 5 * time.Second, MaxResult: 1 << 10,
	}, withArgs(func(context.Context, Call, struct{}) (Output, error) {
		return Output{Text: text.OneLine(w.Location, maxLocation)}, nil
	}))
	if strings.TrimSpace(w.Location) == "" {
		t.disabled = "no location is set; write location in tools.yaml"
	}
	return t
}
