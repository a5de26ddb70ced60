package firewall

import (
	"regexp"
	"strings"
	"sync"
)

// secretShape is the known shape of a secret.
type secretShape struct {
	name   string
	anchor []string              // one of these stands in every text that holds one; finding none is quick
	shape  func() *regexp.Regexp // compiled at first use
	group  int                   // which group of the shape is the secret
}

func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// secretShapes from the most particular to the most general: what one has replaced, the next does not see.
var secretShapes = []secretShape{
	{
		"private key",
		[]string{"PRIVATE KEY-----"},
		pattern(`-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\z)`),
		0,
	},
	{"nkey seed", []string{"SU", "SA", "SO", "SN", "SC", "SX"}, pattern(`\bS[UAONCX][A-Z2-7]{56}\b`), 0},
	{"aws key", []string{"AKIA", "ASIA"}, pattern(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), 0},
	{
		"github token",
		[]string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"},
		pattern(`\b(?:gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{30,255})`), 0,
	},
	{"gitlab token", []string{"glpat-"}, pattern(`\bglpat-[A-Za-z0-9_\-]{16,64}`), 0},
	{"slack token", []string{"xox"}, pattern(`\bxox[abeoprs]-[A-Za-z0-9\-]{10,255}`), 0},
	{"google key", []string{"AIza"}, pattern(`\bAIza[A-Za-z0-9_\-]{35}`), 0},
	{
		"api key",
		[]string{"sk-", "sk_", "rk_"},
		pattern(`\b(?:sk-[A-Za-z0-9_\-]{20,255}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,255})`), 0,
	},
	{"jwt", []string{"eyJ"}, pattern(`\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*`), 0},
	{"bearer token", []string{"earer ", "EARER "}, pattern(`\b(?i:bearer)[ \t]+([A-Za-z0-9._~+/\-]{16,}=*)`), 1},
	{
		"password in a link",
		[]string{"://"},
		pattern(`\b[a-z][a-z0-9+.\-]{1,20}://[^\s/:@"'<>]{0,80}:([^\s/@"'<>\[]{3,120})@`), 1,
	},
	{"password", []string{
		"assw", "ASSW", "ecret", "ECRET", "oken", "OKEN", "pi_key", "PI_KEY", "pikey", "piKey",
		"pi-key",
	}, pattern(
		`\b(?i:[a-z_\-]{0,30}(?:password|passwd|passwort|client_secret|secret_key|api_?-?key|access_?token|` +
			`auth_?token|secret_access_key))["']?[ \t]{0,3}[=:][ \t]{0,3}(?:"([^"\s\[]{4,200})"|'([^'\s\[]{4,200})'|` +
			`([^\s"'<>\[{}(),;$*]{6,200}))`), -1},
}

// Redact replaces secrets of a known shape by their kind, such as "[redacted: github token]", and returns how many. It
// knows shapes and not meanings: a secret that looks like a word stays. Of a labelled password only the value is
// replaced. The result of JSON may be no JSON any more.
func Redact(text string) (clean string, n int) {
	for _, s := range secretShapes {
		if !containsAny(text, s.anchor) {
			continue
		}
		var out strings.Builder
		last := 0
		for _, m := range s.shape().FindAllStringSubmatchIndex(text, -1) {
			from, to := m[0], m[1]
			if s.group > 0 {
				from, to = m[2*s.group], m[2*s.group+1]
			}
			for g := 1; s.group < 0 && g < len(m)/2; g++ {
				if m[2*g] >= 0 {
					from, to = m[2*g], m[2*g+1]
				}
			}
			if s.group < 0 && isDescription(text[m[0]:from], text[from:to]) {
				continue
			}
			out.WriteString(text[last:from])
			out.WriteString("[redacted: " + s.name + "]")
			last = to
			n++
		}
		if out.Len() > 0 {
			out.WriteString(text[last:])
			text = out.String()
		}
	}
	return text, n
}

// isDescription reports whether value describes a password, as in "password: required", and is none: letters alone
// after a colon and without quotation marks. label is the text of the match before value.
func isDescription(label, value string) bool {
	if !strings.Contains(label, ":") || strings.HasSuffix(label, `"`) || strings.HasSuffix(label, "'") {
		return false
	}
	for _, c := range []byte(value) {
		if c < 'A' || c > 'z' || c > 'Z' && c < 'a' {
			return false
		}
	}
	return true
}
