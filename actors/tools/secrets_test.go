package tools_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"conclave/actors/tools"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/seal"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// A tool names the credential that its provider needs, and no other, and announces a key to seal it to.
func TestFactsNameSecrets(t *testing.T) {
	for name, p := range spoken {
		x := searchTool(t, p.cfg, "")
		want := []string{name + "_api_key"}
		if name == "searxng" {
			want = nil
		}
		if got := x.Facts().Secrets; !slices.Equal(got, want) {
			t.Errorf("%s needs %v", name, got)
		}
		rec := &actortest.Recorder{}
		if err := x.Start(t.Context(), rec.Out()); err != nil {
			t.Fatal(err)
		}
		var said subjects.ToolSchema
		if err := strict.DecodeJSON([]byte(rec.Published()[0].Body), &said); err != nil {
			t.Fatal(err)
		}
		if said.Key != key(t, x) || x.Schema().Key != "" || (said.Key == "") != (want == nil) {
			t.Errorf("%s announces %q, discovery says %q, the definition %q", name, said.Key, key(t, x), x.Schema().Key)
		}
		if said.Key != "" {
			if err := seal.CheckKey(said.Key); err != nil {
				t.Error(err)
			}
			if other := key(t, searchTool(t, p.cfg, "")); other == said.Key {
				t.Error("two runs have one key")
			}
		}
	}
}

// Without its credential, sealed to this very run, a tool does not run.
func TestMissingSecretIsAFault(t *testing.T) {
	asks := 0
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asks++ }))
	t.Cleanup(s.Close)
	p := spoken["brave"]
	other := searchTool(t, p.cfg, s.URL)
	sealed := func(to string) subjects.SecretValue {
		v, err := seal.Seal(seal.NewSecret([]byte(canary)), to)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	x := searchTool(t, p.cfg, s.URL)
	for name, values := range map[string]map[string]subjects.SecretValue{
		"none":                    nil,
		"trick: under no name":    {"": sealed(key(t, x))},
		"trick: another's name":   {"tavily_api_key": sealed(key(t, x))},
		"trick: to another's run": {"brave_api_key": sealed(key(t, other))},
		"trick: empty":            {"brave_api_key": {}},
	} {
		got := run(t, x, subjects.ToolOrder{CallID: "c", Args: json.RawMessage(asked), Sealed: values})
		if got.Error == nil || got.Error.Code != subjects.CodeNoSecret ||
			!strings.Contains(got.Error.Text, "brave_api_key") || asks > 0 {
			t.Errorf("%s: %+v, %d requests", name, got.Error, asks)
		}
	}
}

// A provider that repeats the key, in whatever spelling, does not get it into a result, a link or an error.
func TestSecretsAreRedacted(t *testing.T) {
	back := []byte(canary)
	slices.Reverse(back)
	spellings := map[string]string{
		"raw": canary, "base64": base64.StdEncoding.EncodeToString([]byte(canary)),
		"base64 for addresses":      base64.RawURLEncoding.EncodeToString([]byte(canary)),
		"base64 of a header":        base64.StdEncoding.EncodeToString([]byte("Bearer " + canary + " x")),
		"base64 of a longer header": base64.StdEncoding.EncodeToString([]byte("X-Token: " + canary + " x")),
		"hex":                       hex.EncodeToString([]byte(canary)),
		"large hex":                 strings.ToUpper(hex.EncodeToString([]byte(canary))),
		"escaped":                   url.QueryEscape(canary), "escaped for a path": url.PathEscape(canary),
		"backwards": string(back),
	}
	for name, s := range spellings {
		t.Run(name, func(t *testing.T) {
			page := "https://example.org/?k=" + url.QueryEscape(s)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				body, err := json.Marshal(map[string]any{"results": []map[string]string{
					{"title": "before " + s + " behind", "url": "https://example.org/fine", "content": "x" + s + "y"},
					{"title": "link", "url": page},
				}})
				if err != nil {
					t.Error(err)
				}
				_, _ = w.Write(body)
			}))
			t.Cleanup(srv.Close)
			got := providerSearch(t, spoken["tavily"].cfg, srv.URL, "wind", "")
			if got.Error != nil || !strings.Contains(got.Result, "before ") ||
				!strings.Contains(got.Result, "[redacted]") {
				t.Fatalf("got %+v", got)
			}
			all := fmt.Sprint(got.Result, got.Links)
			for _, f := range tools.SecretSpellings([]byte(canary)) {
				if strings.Contains(all, f) {
					t.Errorf("%q is in %s", f, all)
				}
			}
			if !slices.Contains(got.Links, "https://example.org/fine") {
				t.Errorf("links %v", got.Links)
			}
			// The control: without a credential nothing is touched, so the search above does find it.
			plain := providerSearch(t, spoken["searxng"].cfg, srv.URL, "wind", "")
			if !strings.Contains(plain.Result, s) {
				t.Errorf("the control does not hold it: %s", plain.Result)
			}
		})
	}
}

// A key with a line break at its end, as pipes leave it, works and is redacted without it.
func TestSecretIsTrimmed(t *testing.T) {
	var sent string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("X-Subscription-Token")
		_, _ = io.WriteString(w, `{"web":{"results":[{"title":"`+sent+`","url":"https://example.org/"}]}}`)
	}))
	t.Cleanup(s.Close)
	x := searchTool(t, spoken["brave"].cfg, s.URL)
	v, err := seal.Seal(seal.NewSecret([]byte(canary+"\n")), key(t, x))
	if err != nil {
		t.Fatal(err)
	}
	got := run(t, x, subjects.ToolOrder{
		CallID: "c", Args: json.RawMessage(asked),
		Sealed: map[string]subjects.SecretValue{"brave_api_key": v},
	})
	if got.Error != nil || sent != canary || strings.Contains(got.Result, canary) {
		t.Errorf("sent %q, got %+v", sent, got)
	}
}

// Nothing but one placeholder may stand where a key goes, and what stands there instead is not repeated.
func TestKeyMustBePlaceholder(t *testing.T) {
	for name, v := range map[string]string{
		"the key itself": "BSA-4711-secret", "empty": "", "a blank before": " {{secret brave_api_key}}",
		"a blank behind": "{{secret brave_api_key}} ",
		"more around":    "Bearer {{secret brave_api_key}}", "two": "{{secret a}}{{secret b}}",
		"no name": "{{secret }}",
		"a dot":   "{{secret BRAVE.key}}",
		"a path":  "{{secret ../x}}", "another word": "{{env BRAVE}}", "two blanks": "{{secret  brave_api_key}}",
		"a line break": "{{secret brave_api_key}}\n",
	} {
		c := spoken["brave"].cfg
		c.Brave.Key = v
		err := c.Validate()
		if err == nil ||
			!strings.Contains(err.Error(), `brave.key: is not a placeholder; write "{{secret brave_api_key}}"`) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: the error repeats it", name)
		}
	}
	c := spoken["searxng"].cfg
	for _, bad := range []string{
		"localhost:8888", "ftp://localhost", "http://", "http://a:b@localhost",
		"http://localhost/?q=x", "http://localhost/#x", "",
	} {
		c.SearXNG.URL = bad
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "searxng.url: ") ||
			strings.Contains(err.Error(), "a:b") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	c = spoken["brave"].cfg
	c.Language, c.Safe = "german", "very"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "language: ") ||
		!strings.Contains(err.Error(), "safe: ") {
		t.Errorf("language and level: %v", err)
	}
}
