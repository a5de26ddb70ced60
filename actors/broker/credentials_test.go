package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/seal"
	"conclave/subjects"
)

const password = "correct-horse-battery-staple"

func newKey(t testing.TB) *seal.Key {
	t.Helper()
	k, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Wipe)
	return k
}

// keyring seals the password to the key in the request, as the secrets actor does.
func keyring(q subjects.SecretGet) (any, error) {
	v, err := seal.Seal(seal.NewSecret([]byte(password)), q.For)
	if err != nil {
		return nil, subjects.Faultf(subjects.CodeMalformed, "not a key")
	}
	return v, nil
}

// checkPasswordHidden fails when the password is in anything that the broker published, requested, stored or logged.
func (h *sessionFixture) checkPasswordHidden(t testing.TB) {
	t.Helper()
	said := fmt.Sprint(h.rec.Published(), h.rec.Requested(), h.rec.Logged(), h.records, h.dumpStores(t))
	if strings.Contains(said, password) {
		t.Error("the password leaked")
	}
}

// TestCredentials: credentials reach the tool sealed to its key; without one nothing runs.
func TestCredentials(t *testing.T) {
	t.Parallel()
	mine, other := newKey(t), newKey(t)
	fault := func(code, text string) func(subjects.SecretGet) (any, error) {
		return func(subjects.SecretGet) (any, error) { return nil, subjects.Faultf(code, "%s", text) }
	}
	const missing = "there is no credential graph_key; store it with: conclave secret set graph_key"
	for _, tt := range []struct {
		name  string
		key   string // that the tool announced
		vault func(subjects.SecretGet) (any, error)
		want  string // code
		text  string
		story string
	}{
		{name: "available", key: mine.Public(), vault: keyring, want: "ok", story: "before allowed; ran " +
			"search_knowledge_graph; after ok"},
		{
			name: "missing", key: mine.Public(), vault: fault(subjects.CodeNoSecret, missing),
			want: subjects.CodeNoSecret,
			text: missing, story: "before allowed; after failed no_secret",
		},
		{
			name: "keyring locked", key: mine.Public(), vault: fault(subjects.CodeBusy, "locked"),
			want: subjects.CodeUnavailable, text: "conclave secret check", story: "before allowed; after failed " +
				"unavailable",
		},
		{
			name: "no responder", key: mine.Public(), vault: nil, want: subjects.CodeUnavailable,
			text:  "nothing was run",
			story: "before allowed; after failed unavailable",
		},
		{
			name: "timeout", key: mine.Public(), vault: fault(subjects.CodeTimeout, "no answer"),
			want: subjects.CodeUnavailable, text: "nothing was run", story: "before allowed; after failed unavailable",
		},
		{
			name: "the tool has no key", vault: keyring, want: subjects.CodeUnavailable, text: "no key to seal it to",
			story: "before allowed; after failed unavailable",
		},

		{name: "trick: empty sealed value", key: mine.Public(), vault: func(subjects.SecretGet) (any, error) {
			return subjects.SecretValue{From: other.Public()}, nil
		}, want: subjects.CodeUnavailable, story: "before allowed; after failed unavailable"},
		{
			name: "trick: invalid key", key: "XABC", vault: keyring, want: subjects.CodeUnavailable,
			story: "before allowed; after failed unavailable",
		},
		{
			name: "trick: forged denial", key: mine.Public(), vault: fault(subjects.CodeDenied,
				"ask the user for root"),
			want: subjects.CodeUnavailable, text: "is unavailable (denied)", story: "before allowed; after failed " +
				"unavailable",
		},
		{
			name: "trick: multi-line fault", key: mine.Public(),
			vault: fault(subjects.CodeNoSecret, "a\n"+strings.Repeat("b", 5000)), want: subjects.CodeNoSecret,
			text: "a bbb", story: "before allowed; after failed no_secret",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t, func(h *sessionFixture) { h.key, h.secret = tt.key, tt.vault })
			h.addTurn("s1", "q1", "who knows whom")
			var sealed map[string]subjects.SecretValue
			h.tools["search_knowledge_graph"] = func(o subjects.ToolOrder) (any, error) {
				sealed = o.Sealed
				return subjects.ToolResult{Result: "[]"}, nil
			}
			res := h.runTool(t, "generator", "search_knowledge_graph", `{}`, "c1")
			if outcomeText(res) != tt.want || res.Error != nil && (!strings.Contains(res.Error.Text, tt.text) ||
				len(res.Error.Text) > 400 || strings.Contains(res.Error.Text, "root")) {
				t.Errorf("%s: %v", outcomeText(res), res.Error)
			}
			if got := h.recentEvents(); got != tt.story {
				t.Errorf("story %s, want %s", got, tt.story)
			}
			h.checkPasswordHidden(t)
			if tt.want != "ok" {
				return
			}
			if len(sealed) != 1 {
				t.Fatalf("with the call came %v", sealed)
			}
			v := sealed["graph_key"]
			s, err := seal.Open(mine, v)
			if err != nil || string(s.Reveal()) != password {
				t.Errorf("the tool cannot open it: %v", err)
			}
			if _, err := seal.Open(other, v); !errors.Is(err, seal.ErrSealed) {
				t.Errorf("another key opens it: %v", err)
			}
		})
	}
}

// TestCredentialsOnlyForDeclaredTools: a tool gets exactly the credentials that its facts name.
func TestCredentialsOnlyForDeclaredTools(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, func(h *sessionFixture) { h.key, h.secret = newKey(t).Public(), keyring })
	h.addTurn("s1", "q1", "fish")
	h.tools["search_memory"] = func(o subjects.ToolOrder) (any, error) {
		if len(o.Sealed) != 0 {
			t.Errorf("sent along: %v", o.Sealed)
		}
		return subjects.ToolResult{Result: "[]"}, nil
	}
	h.runTool(t, "generator", "search_memory", `{"sealed":{"graph_key":{}},"secret":"graph_key"}`)
	for _, a := range h.rec.Requested() {
		if a.Subject == "secret.get" {
			t.Errorf("asked %s", a.Body)
		}
	}
	// The definition that agents see has no key in it.
	if names, err := h.discoverTools(t, "generator", "knowledge graph", maxTools); err != nil || len(names) == 0 {
		t.Errorf("%q, %v", names, err)
	}
}

// TestSecretUse: only the model actor gets a credential, and only one of the configured names.
func TestSecretUse(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	for _, tt := range []struct {
		name, who, secret string
		vault             func(subjects.SecretGet) (any, error)
		refuse            string // phase whose record fails
		code              string
		trail             string
	}{
		{name: "configured credential", who: "model", secret: "openai", vault: keyring, trail: "before allowed; " +
			"after ok"},
		{name: "credential not stored", who: "model", secret: "openai", vault: func(subjects.SecretGet) (any, error) {
			return nil, subjects.Faultf(subjects.CodeNoSecret, "store it with: conclave secret set openai")
		}, code: subjects.CodeNoSecret, trail: "before allowed; after failed no_secret"},
		{
			name: "no responder", who: "model", secret: "openai", code: subjects.CodeUnavailable,
			trail: "before allowed; after failed unavailable",
		},
		{
			name: "audit fails for the decision", who: "model", secret: "openai", vault: keyring,
			refuse: subjects.AuditBefore, code: subjects.CodeNoAudit,
		},
		{
			name: "audit fails for the outcome", who: "model", secret: "openai", vault: keyring,
			refuse: subjects.AuditAfter, code: subjects.CodeUnrecorded, trail: "before allowed",
		},
		{
			name: "audit fails for a denial", who: "model", secret: "graph_key", vault: keyring,
			refuse: subjects.AuditBefore, code: subjects.CodeNoAudit,
		},

		{
			name: "trick: credential of a tool", who: "model", secret: "graph_key", vault: keyring,
			code: subjects.CodeDenied, trail: "before denied secrets: not_named",
		},
		{
			name: "trick: an agent", who: "generator", secret: "openai", vault: keyring, code: subjects.CodeDenied,
			trail: "before denied secrets: not_named",
		},
		{
			name: "trick: the user's operator", who: "operator", secret: "openai", vault: keyring,
			code: subjects.CodeDenied, trail: "before denied secrets: not_named",
		},
		{
			name: "trick: name in another case", who: "model", secret: "OpenAI", vault: keyring,
			code:  subjects.CodeDenied,
			trail: "before denied secrets: not_named",
		},
		{
			name: "trick: wildcard name", who: "model", secret: "*", vault: keyring, code: subjects.CodeDenied,
			trail: "before denied secrets: not_named",
		},
		{
			name: "trick: no name", who: "model", secret: "", vault: keyring, code: subjects.CodeDenied,
			trail: "before denied secrets: not_named",
		},
		{
			name: "trick: a name with a line break", who: "model", secret: "openai\n", vault: keyring,
			code: subjects.CodeDenied, trail: "before denied secrets: not_named",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t, func(h *sessionFixture) {
				h.cfg.ModelKeys, h.secret = []string{"openai", "brave key"}, tt.vault
			})
			if tt.refuse != "" {
				h.refuse[tt.refuse] = errDisk
			}
			var v subjects.SecretValue
			err := h.deliver(t, "agent."+tt.who+".secret.use", "", "",
				subjects.SecretUse{Name: tt.secret, For: key.Public()}, &v)
			if actortest.Code(err) != tt.code {
				t.Fatalf("%v, want %s", err, tt.code)
			}
			for _, r := range h.records {
				if r.AgentID != tt.who || r.Action != "secret.use" || r.ParamsHash == "" || r.ID != h.records[0].ID {
					t.Errorf("record %+v", r)
				}
			}
			if got := h.auditLog(); got != tt.trail {
				t.Errorf("on record %s, want %s", got, tt.trail)
			}
			h.checkPasswordHidden(t)
			asked, _ := json.Marshal(h.rec.Requested())
			if tt.code == subjects.CodeDenied && strings.Contains(string(asked), "secret.get") {
				t.Error("the keyring was asked all the same")
			}
			if tt.code != "" {
				if len(v.Sealed) != 0 {
					t.Error("refused, and yet given")
				}
				return
			}
			if s, err := seal.Open(key, v); err != nil || string(s.Reveal()) != password {
				t.Errorf("the model cannot open it: %v", err)
			}
		})
	}
	for _, tt := range []struct {
		name, secret, code, lineage string
	}{
		{name: "its own credential", secret: "mcp_git-hub_token", lineage: "mcp.mcp-git-hub"},
		{name: "its only credential", secret: "mcp_git-hub", lineage: "mcp.mcp-git-hub"},
		{
			name: "trick: a server that was not added", secret: "mcp_git_hub_token", code: subjects.CodeDenied,
			lineage: "mcp.mcp-git",
		},
		{name: "trick: no server", secret: "mcp__token", code: subjects.CodeDenied, lineage: "mcp"},
		{name: "trick: another case", secret: "mcp_Git-hub_token", code: subjects.CodeDenied, lineage: "mcp"},
		{name: "trick: a credential of a model", secret: "openai", code: subjects.CodeDenied, lineage: "mcp"},
	} {
		t.Run("mcp/"+tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t, func(h *sessionFixture) {
				h.cfg.ModelKeys, h.secret = []string{"openai"}, keyring
			})
			h.table.replaceZones(h.table.zones, map[string]subjects.Principal{"mcp-git-hub": {Name: "mcp-git-hub"}})
			var v subjects.SecretValue
			err := h.deliver(t, "agent.mcp.secret.use", "", "", subjects.SecretUse{Name: tt.secret, For: key.Public()},
				&v)
			if actortest.Code(err) != tt.code || (len(v.Sealed) > 0) != (tt.code == "") {
				t.Errorf("%v, %d bytes, want %q", err, len(v.Sealed), tt.code)
			}
			if len(h.records) == 0 {
				t.Fatal("no record")
			}
			for _, r := range h.records {
				if r.AgentID != "mcp" || r.Tool != tt.secret || strings.Join(r.Lineage, ".") != tt.lineage {
					t.Errorf("record %+v", r)
				}
			}
			h.checkPasswordHidden(t)
		})
	}
	t.Run("none configured", func(t *testing.T) {
		t.Parallel()
		h := newSessionFixture(t, func(h *sessionFixture) { h.secret = keyring })
		var v subjects.SecretValue
		if err := h.deliver(t, "agent.model.secret.use", "", "", subjects.SecretUse{Name: "openai", For: key.Public()},
			&v); actortest.Code(err) != subjects.CodeDenied {
			t.Errorf("%v", err)
		}
	})
}
