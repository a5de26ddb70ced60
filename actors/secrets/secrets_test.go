package secrets_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"conclave/actors/secrets"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/keyring"
	"conclave/pkg/seal"
	"conclave/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is the value of the one credential. It must not appear in any text.
const canary = "canary-0b5e55ed-credential"

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fixture is one actor with a scripted keyring and an audit log in memory.
type fixture struct {
	t           *testing.T
	rec         actortest.Recorder
	actor       *secrets.Secrets
	returned    []keyring.Secret // values that the keyring returned
	get         func(ctx context.Context, name string) (keyring.Secret, error)
	auditErrors map[string]error // by phase: the error of the audit log
	confirmed   map[string]bool  // subjects that a receiver answers

	mu       sync.Mutex
	records  []subjects.AuditRecord
	sequence []string // records and reads, in order
	closed   bool
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{t: t, auditErrors: map[string]error{}}
	w.get = func(_ context.Context, name string) (keyring.Secret, error) {
		if name != "brave_api_key" {
			return keyring.Secret{}, fmt.Errorf("file: reading %s: %w", name, keyring.ErrNotFound)
		}
		return seal.NewSecret([]byte(canary)), nil
	}
	h, err := audit.LoadHasher(filepath.Join(t.TempDir(), "params.key"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := secrets.Config{
		Backend: keyring.File, Timeout: 20 * time.Second, AuditTimeout: 20 * time.Second,
		ToolKeys: []string{"brave_api_key", "other"}, ModelKeys: []string{"openai"},
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	w.actor = secrets.New(cfg, w, w, h)
	w.rec.Reply = func(subject string, _ []byte) (any, error) {
		if w.confirmed[subject] {
			return subjects.Empty{}, nil
		}
		return nil, actor.NoResponder(subject)
	}
	return w
}

// confirm lets an account answer for a key.
func (w *fixture) confirm(account, key string) {
	if w.confirmed == nil {
		w.confirmed = map[string]bool{}
	}
	w.confirmed["receiver."+account+".seal.key."+key] = true
}

// Get implements [keyring.Ring].
func (w *fixture) Get(ctx context.Context, name string) (keyring.Secret, error) {
	w.mu.Lock()
	w.sequence = append(w.sequence, "read "+name)
	w.mu.Unlock()
	s, err := w.get(ctx, name)
	w.returned = append(w.returned, s)
	return s, err
}

// Set implements [keyring.Ring]. The actor must not call it.
func (w *fixture) Set(context.Context, string, keyring.Secret) error {
	w.t.Error("the actor wrote to the keyring")
	return nil
}

// Remove implements [keyring.Ring].
func (w *fixture) Remove(context.Context, string) error {
	w.t.Error("the actor removed from the keyring")
	return nil
}

// Names implements [keyring.Ring].
func (w *fixture) Names(context.Context) ([]string, error) {
	w.t.Error("the actor listed the keyring")
	return nil, nil
}

// Append implements [secrets.Audit].
func (w *fixture) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("a record without a limit on how long it may take")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.auditErrors[rec.Phase]; err != nil {
		return err
	}
	w.records = append(w.records, rec)
	w.sequence = append(w.sequence, strings.TrimSpace(rec.Phase+" "+rec.Status+" "+rec.Reason))
	return nil
}

// Close implements [secrets.Audit].
func (w *fixture) Close(context.Context) error { w.closed = true; return nil }

// request delivers a request and returns the reply.
func (w *fixture) request(body any) (string, error) {
	w.t.Helper()
	m := actortest.Message{
		Subject: "secret.get", Body: body, Query: "q1", Session: "s1",
		Deadline: now.Add(20 * time.Second),
	}
	if _, raw := body.([]byte); raw {
		m.Type = subjects.TypeJSON
	}
	return w.rec.Deliver(w.t, w.actor, m)
}

func newKey(t *testing.T) *seal.Key {
	t.Helper()
	k, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestGetCredential(t *testing.T) {
	t.Parallel()
	good := newKey(t)
	get := func(name string) subjects.SecretGet {
		return subjects.SecretGet{Name: name, Receiver: webSearch, For: good.Public()}
	}
	fails := func(err error) func(*fixture) {
		return func(w *fixture) {
			w.get = func(context.Context, string) (keyring.Secret, error) {
				return keyring.Secret{}, fmt.Errorf("secret-service: details of this machine: %w", err)
			}
		}
	}
	for _, tt := range []struct {
		name  string
		setup func(*fixture)
		body  any
		code  string
		says  string
		story []string
		tool  string // in the audit
	}{
		{
			"there", nil, get("brave_api_key"), "", "",
			[]string{"before allowed", "read brave_api_key", "after ok"},
			"brave_api_key",
		},
		{
			"not there", nil, get("other"), subjects.CodeNoSecret,
			"there is no credential named other; set it with: conclave secret set other",
			[]string{"before allowed", "read other", "after failed no_secret"},
			"other",
		},
		{
			"the keyring is locked", fails(keyring.ErrLocked), get("brave_api_key"), subjects.CodeUnavailable,
			"unlock it",
			[]string{"before allowed", "read brave_api_key", "after failed unavailable"},
			"brave_api_key",
		},
		{
			"the keyring is away", fails(keyring.ErrUnavailable), get("brave_api_key"), subjects.CodeUnavailable,
			"does not answer",
			[]string{"before allowed", "read brave_api_key", "after failed unavailable"},
			"brave_api_key",
		},
		{
			"the credential is damaged", fails(keyring.ErrDamaged), get("brave_api_key"), subjects.CodeUnavailable,
			"set it anew",
			[]string{"before allowed", "read brave_api_key", "after failed unavailable"},
			"brave_api_key",
		},
		{
			"the keyring fails in a new way", fails(errors.New("quotes " + canary)), get("brave_api_key"),
			subjects.CodeUnavailable, "does not answer",
			[]string{"before allowed", "read brave_api_key", "after failed unavailable"},
			"brave_api_key",
		},
		{
			"the keyring hangs", func(w *fixture) {
				w.get = func(ctx context.Context, _ string) (keyring.Secret, error) {
					<-ctx.Done()
					return keyring.Secret{}, keyring.ErrUnavailable
				}
			}, get("brave_api_key"), subjects.CodeUnavailable, "does not answer",
			[]string{"before allowed", "read brave_api_key", "after failed unavailable"},
			"brave_api_key",
		},
		{
			"the keyring gives nothing and no error", func(w *fixture) {
				w.get = func(context.Context, string) (keyring.Secret, error) { return keyring.Secret{}, nil }
			}, get("brave_api_key"), subjects.CodeUnavailable, "",
			[]string{"before allowed", "read brave_api_key", "after failed unavailable"},
			"brave_api_key",
		},
		{
			"the audit does not answer", func(w *fixture) {
				w.auditErrors[subjects.AuditBefore] = context.DeadlineExceeded
			}, get("brave_api_key"),
			subjects.CodeNoAudit, "no credential was read", nil, "",
		},
		{"the audit is full", func(w *fixture) {
			w.auditErrors[subjects.AuditBefore] = audit.ErrFull
		}, get("brave_api_key"), subjects.CodeNoAudit, "audit rotate", nil, ""},
		{
			"the audit does not take the outcome", func(w *fixture) {
				w.auditErrors[subjects.AuditAfter] = context.DeadlineExceeded
			}, get("brave_api_key"),
			subjects.CodeUnrecorded, "withheld",
			[]string{"before allowed", "read brave_api_key"},
			"brave_api_key",
		},
		{"no name", nil, get(""), subjects.CodeMalformed, "letters, digits", []string{"before refused malformed"}, ""},
		{
			"no key", nil,
			subjects.SecretGet{Name: "brave_api_key"},
			subjects.CodeMalformed, "public curve key",
			[]string{"before refused malformed"},
			"brave_api_key",
		},
		{"not JSON", nil, []byte("{"), subjects.CodeMalformed, "", []string{"before refused malformed"}, ""},
		{
			"trick: an unknown field", nil, []byte(`{"name":"brave_api_key","for":"` + good.Public() +
				`","as":"user"}`),
			subjects.CodeMalformed, "",
			[]string{"before refused malformed"},
			"",
		},
		{
			"trick: a name that is a path", nil, get("../../etc/shadow"), subjects.CodeMalformed, "letters, digits",
			[]string{"before refused malformed"},
			"",
		},
		{
			"trick: a name that is a list", nil, get("a,brave_api_key"), subjects.CodeMalformed, "",
			[]string{"before refused malformed"},
			"",
		},
		{"trick: every name", nil, get("*"), subjects.CodeMalformed, "", []string{"before refused malformed"}, ""},
		{
			"trick: a name with a line of the audit behind it", nil, get("a\nok"), subjects.CodeMalformed, "",
			[]string{"before refused malformed"},
			"",
		},
		{
			"trick: a key of low order", nil,
			subjects.SecretGet{Name: "brave_api_key", For: lowOrderKey},
			subjects.CodeMalformed, "low order",
			[]string{"before refused malformed"},
			"brave_api_key",
		},
		{
			"trick: a key with more behind it", nil,
			subjects.SecretGet{Name: "brave_api_key", For: good.Public() + "AAAAAAAA"},
			subjects.CodeMalformed, "public curve key",
			[]string{"before refused malformed"},
			"brave_api_key",
		},
		{
			"trick: another kind of key", nil,
			subjects.SecretGet{Name: "brave_api_key", For: "U" + good.Public()[1:]},
			subjects.CodeMalformed, "public curve key",
			[]string{"before refused malformed"},
			"brave_api_key",
		},
		{"trick: a refusal that cannot be recorded", func(w *fixture) {
			w.auditErrors[subjects.AuditBefore] = audit.ErrFull
		}, get("*"), subjects.CodeMalformed, "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t)
				w.confirm(webSearch, good.Public())
				if tt.setup != nil {
					tt.setup(w)
				}
				text, err := w.request(tt.body)
				if actortest.Code(err) != tt.code || tt.code != "" && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("told %v, want %s %s", err, tt.code, tt.says)
				}
				if !slices.Equal(w.sequence, tt.story) {
					t.Errorf("it went %q, want %q", w.sequence, tt.story)
				}
				for _, r := range w.records {
					if r.AgentID != "broker" || r.Action != "secret.get" || r.Tool != tt.tool || r.Session != "s1" ||
						r.Query != "q1" || r.ID == "" {
						t.Errorf("record %+v", r)
					}
					if r.Reason != subjects.CodeMalformed && len(r.ParamsHash) != 64 {
						t.Errorf("without a hash: %+v", r)
					}
				}
				var v subjects.SecretValue
				if tt.code == "" {
					if err := json.Unmarshal([]byte(text), &v); err != nil {
						t.Fatal(err)
					}
					got, err := seal.Open(good, v)
					if err != nil || string(got.Reveal()) != canary {
						t.Errorf("opened %q, %v", got.Reveal(), err)
					}
					if _, err := seal.Open(newKey(t), v); !errors.Is(err, seal.ErrSealed) {
						t.Errorf("another key opens it: %v", err)
					}
				} else if strings.Contains(text, "sealed") {
					t.Errorf("refused, and gave %s", text)
				}
				for _, s := range w.returned {
					if s.Reveal() != nil {
						t.Error("the value was left in memory")
					}
				}
				told := fmt.Sprintf("%s %v %+v %+v", text, err, w.records, w.rec.Published())
				if strings.Contains(told, "details of this machine") {
					t.Errorf("the keyring's own words are told: %s", told)
				}
				told += fmt.Sprint(w.rec.Logged())
				for _, form := range []string{
					canary, base64.StdEncoding.EncodeToString([]byte(canary))[:20],
					fmt.Sprintf("%x", canary),
				} {
					if strings.Contains(told, form) {
						t.Errorf("%q is told: %s", form, told)
					}
				}
				if log := tt.code == subjects.CodeUnavailable ||
					strings.Contains(tt.name, "cannot be recorded"); log != (len(w.rec.Logged()) > 0) {
					t.Errorf("noted %v", w.rec.Logged())
				}
			})
		})
	}
}

// webSearch is the account of the tool with a credential.
const webSearch = "tool_web_search"

// TestReceiverIsConfirmed: a credential is read only for an account that may have it and that answers for the key.
func TestReceiverIsConfirmed(t *testing.T) {
	t.Parallel()
	own, other := newKey(t).Public(), newKey(t).Public()
	for _, tt := range []struct {
		name       string
		credential string
		receiver   string // that the broker names
		key        string
		answers    string // account that answers for the key own
		received   bool
	}{
		{"a tool", "brave_api_key", webSearch, own, webSearch, true},
		{"a tool of a machine", "brave_api_key", "tools_box", own, "tools_box", true},
		{"the model actor", "openai", "model", own, "model", true},
		{"an MCP server", "mcp_issues", "mcp", own, "mcp", true},
		{"trick: a key that no process confirms", "brave_api_key", webSearch, other, webSearch, false},
		{"trick: a key of another account", "brave_api_key", webSearch, own, "model", false},
		{"trick: no receiver", "brave_api_key", "", own, "broker", false},
		{"trick: the broker", "brave_api_key", "broker", own, "broker", false},
		{"trick: another tool", "brave_api_key", "tool_run_shell", own, "tool_run_shell", false},
		{"trick: a credential of a model for a tool", "openai", webSearch, own, webSearch, false},
		{"trick: a credential of a tool for a model", "brave_api_key", "model", own, "model", false},
		{"trick: a credential of a model for MCP", "openai", "mcp", own, "mcp", false},
		{"trick: a credential of MCP for a tool", "mcp_issues", webSearch, own, webSearch, false},
		{"trick: every machine", "brave_api_key", "tools_*", own, "tools_*", false},
		{"trick: a subject", "brave_api_key", "tools_x.y", own, "tools_x.y", false},
		{"trick: no machine", "brave_api_key", "tools_", own, "tools_", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.confirm(tt.answers, own)
			w.get = func(context.Context, string) (keyring.Secret, error) { return seal.NewSecret([]byte(canary)), nil }
			_, err := w.request(subjects.SecretGet{Name: tt.credential, Receiver: tt.receiver, For: tt.key})
			if (err == nil) != tt.received || err != nil && actortest.Code(err) != subjects.CodeDenied {
				t.Errorf("told %v", err)
			}
			want := []string{"before denied denied"}
			if tt.received {
				want = []string{"before allowed", "read " + tt.credential, "after ok"}
			}
			if !slices.Equal(w.sequence, want) {
				t.Errorf("it went %q, want %q", w.sequence, want)
			}
		})
	}
}

// lowOrderKey is the public key of the point zero: a value sealed to it can be opened without a key.
const lowOrderKey = "XAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAPQN"

func TestCloseClosesTheAudit(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	if err := w.actor.Close(t.Context()); err != nil || !w.closed {
		t.Errorf("the audit stays open: %v", err)
	}
}

func TestConfigProblems(t *testing.T) {
	t.Parallel()
	good := secrets.Config{Backend: keyring.Auto, Timeout: 10 * time.Second}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*secrets.Config)
		says   string
	}{
		"nothing":           {func(c *secrets.Config) { *c = secrets.Config{} }, "backend"},
		"no such keyring":   {func(c *secrets.Config) { c.Backend = "vault" }, "secret-service"},
		"no time":           {func(c *secrets.Config) { c.Timeout = 0 }, "timeout"},
		"longer than asked": {func(c *secrets.Config) { c.Timeout = time.Minute }, "25s"},
	} {
		c := good
		tt.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ring := good.Ring("/data")
	if err := ring.Validate(); err != nil || ring.Dir != "/data/keyring" || ring.Key != "/data/keys/keyring.key" {
		t.Errorf("%+v, %v", ring, err)
	}
}
