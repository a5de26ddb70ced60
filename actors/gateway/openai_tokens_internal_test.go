package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestEmbeddingInput: clients of OpenAI's API send texts to embed as texts or as tokens of cl100k_base.
func TestEmbeddingInput(t *testing.T) {
	for _, tt := range []struct {
		name, input string
		want        []string
		err         string
	}{
		{"a text", `"hello"`, []string{"hello"}, ""},
		{"texts", `["a","b"]`, []string{"a", "b"}, ""},
		{"none", ``, nil, ""},
		{"tokens of a text", `[15339,1917]`, []string{"hello world"}, ""},
		{"tokens of texts", `[[15339],[1917,978]]`, []string{"hello", " worldé"}, ""},
		{"a cut character", `[[15339,127],[102,15339]]`, []string{"hello", "hello"}, ""},
		{"a special token", `[100257]`, nil, "100257 is no token"},
		{"a negative token", `[-1]`, nil, "-1 is no token"},
		{"a fraction", `[1.5]`, nil, "send a text"},
		{"texts and tokens", `["a",1]`, nil, "send a text"},
		{"an object", `{}`, nil, "send a text"},
	} {
		got, err := decodeInput(json.RawMessage(tt.input))
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.err == "") ||
			err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	if _, err := decodeTokens([]int{15339, 15339}, 9); err == nil || !strings.Contains(fmt.Sprint(err), "more than") {
		t.Errorf("tokens of a text that is too long: %v", err)
	}
}
