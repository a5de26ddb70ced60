package firewall

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRedact(t *testing.T) {
	// Put together here, so that no file of the project holds what looks like a secret.
	a := func(n int) string { return strings.Repeat("aB3", n)[:n] }
	upper := func(n int) string { return strings.Repeat("AB23", n)[:n] }
	tests := []struct {
		name, text, secret, kind string // the secret must be gone; kind "" for texts that stay
	}{
		{"private key", "x\n-----BEGIN RSA PRIVATE " + "KEY-----\nDEK-Info: AES\n" + a(64) + "\n-----END RSA PRIVATE " +
			"KEY-----\ny", a(64), "private key"},
		{"trick: private key cut off", "-----BEGIN PRIVATE " + "KEY-----\n" + a(64), a(64), "private key"},
		{"aws", "id AKIA" + upper(16) + " end", "AKIA" + upper(16), "aws key"},
		{"github", "token ghp_" + a(36), "ghp_" + a(36), "github token"},
		{"github fine grained", "github_pat_" + a(60), a(60), "github token"},
		{"openai", "sk-" + a(40), a(40), "api key"},
		{"openai project", "sk-proj-" + a(40), a(40), "api key"},
		{"stripe", "sk_live_" + a(24), a(24), "api key"},
		{"slack", "xoxb-" + a(30), a(30), "slack token"},
		{"google", "AIza" + a(35), a(35), "google key"},
		{"gitlab", "glpat-" + a(20), a(20), "gitlab token"},
		{"jwt", "eyJ" + a(20) + "." + a(20) + "." + a(20), a(20), "jwt"},
		{"bearer", "Authorization: Bearer " + a(32), a(32), "bearer token"},
		{"bearer in capitals", "BEARER " + a(32), a(32), "bearer token"},
		{"nkey seed", "SU" + upper(56), upper(56), "nkey seed"},
		{"password", "password=" + a(10), a(10), "password"},
		{"password of letters", "password=sesame", "sesame", "password"},
		{"password in JSON", `{"password": "sesame"}`, "sesame", "password"},
		{"environment", "export AWS_SECRET_ACCESS_KEY=" + a(40), a(40), "password"},
		{"api key by name", "api_key: '" + a(20) + "'", a(20), "password"},
		{"link", "postgres://kim:" + a(9) + "@db/x", a(9), "password in a link"},
		{"trick: two on a line", "password=" + a(10) + " ghp_" + a(36), a(36), "github token"},
		{"about passwords", "password: required, at least ten letters", "", ""},
		{"short", "sk-short and ghp_x and eyJ.", "", ""},
		{"commit", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "", ""},
		{"public key", "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clean, n := Redact(tt.text)
			if tt.kind == "" {
				if clean != tt.text || n != 0 {
					t.Fatalf("%d redacted: %q", n, clean)
				}
				return
			}
			if n == 0 || strings.Contains(clean, tt.secret) || !strings.Contains(clean, "[redacted: "+tt.kind+"]") {
				t.Errorf("%d redacted: %q", n, clean)
			}
		})
	}
}

func TestRedactTwiceChangesNothing(t *testing.T) {
	part := rapid.OneOf(rapid.SampledFrom([]string{
		"password=", "sk-", "Bearer ", "eyJ", "aaaaaaaaaaaaaaaaaaaaaaaa", ".", "\"", "'", " ", "\n", "[redacted: ", "]",
		"://", ":", "@", "AKIA",
		"-----BEGIN PRIVATE " + "KEY-----",
	}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		once, _ := Redact(strings.Join(rapid.SliceOfN(part, 0, 12).Draw(t, "parts"), ""))
		if twice, n := Redact(once); twice != once || n != 0 {
			t.Fatalf("%q became %q", once, twice)
		}
	})
}
