package loop

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"conclave/pkg/model"
)

func TestInventedURLIsRefused(t *testing.T) {
	t.Parallel()
	fetch := model.Tool{
		Name:       "web_fetch",
		Parameters: json.RawMessage(`{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}`),
	}
	for _, tt := range []struct {
		name, question, url string
		refused             bool
	}{
		{"typed by the user", "read https://example.org/a for me", "https://example.org/a", false},
		{"typed without scheme", "what is on Example.org?", "https://example.org/", false},
		{"typed without www", "what is on example.org?", "https://www.example.org", false},
		{"in a result", "find the page", "https://found.example/page", false},
		{"in an earlier turn", "and the page from before?", "https://earlier.example/x", false},
		{"in the summary", "and the first page?", "https://first.example", false},
		{"made up", "what is the weather?", "https://weather.example/today", true},
		{"another path of a known host", "read https://example.org/a for me", "https://example.org/b", true},
		{"only in words of the model", "what did you mean?", "https://model.example", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, _ := newAgent(t, callReply("web_search", `{"query":"page"}`),
				callReply("web_fetch", `{"url":"`+tt.url+`"}`), textReply("Done."))
			a.Tools = append([]model.Tool{fetch}, testTools...)
			a.Hedge.SearchTool, a.Calls = "web_search", CallConstrained
			a.RunTool = func(context.Context, model.Call) Result {
				return Result{Text: "1. A page https://found.example/page"}
			}
			in := question(tt.question)
			in.Summary = "The user asked about https://first.example before."
			in.History = []model.Message{
				{Role: model.User, Content: "see https://earlier.example/x"},
				{Role: model.Assistant, Content: "I know https://model.example too."},
			}
			s, err := RunTurn(t.Context(), a, in, Hooks{})
			wantAnswer(t, s, err, "Done.", false)
			got := s.Finished[1].Result
			if (got.Fault == FaultUnknownURL) != tt.refused {
				t.Errorf("result %+v", got)
			}
			if tt.refused && got.Text != instructInvented("web_search", toolNames{"web_search"}) {
				t.Errorf("the model was told %q", got.Text)
			}
		})
	}
}

// Names of files are no addresses that the loop would fetch by itself.
func TestFileNamesAreNoAddresses(t *testing.T) {
	t.Parallel()
	tn := &turn{state: question("Compare notes.md, install.sh and example.org/a.md with example.com.").State}
	if got := strings.Join(tn.knownURLs(), " "); got != "https://example.org/a.md https://example.com" {
		t.Errorf("known: %s", got)
	}
}
