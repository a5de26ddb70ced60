package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// config sends a session config request.
func (o *spawnFixture) config(t testing.TB, who string, body any) (subjects.SessionConfig, error) {
	t.Helper()
	var reply subjects.SessionConfig
	raw, err := o.rec.Deliver(t, o, actortest.Message{Subject: "ctl." + who + ".session.config", Body: body})
	if err == nil {
		if err := json.Unmarshal([]byte(raw), &reply); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
	}
	return reply, err
}

func (o *spawnFixture) setConfig(t testing.TB, c subjects.SessionConfig) subjects.SessionConfig {
	t.Helper()
	c.SessionID = "s1"
	reply, err := o.config(t, "user", c)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// overrideLevel returns the overrides of a message as "ALL -web_search +coder:fs_read".
func (o *spawnFixture) overrideLevel(t testing.TB, session, query string) string {
	t.Helper()
	over, err := claimOverride(t.Context(), o.rec.Out(), session, query, false)
	if err != nil {
		return err.Error()
	}
	return overrideText(over)
}

func overrideText(o policy.Override) string {
	out := []string{o.Level}
	for _, d := range o.Disable {
		out = append(out, "-"+d)
	}
	for _, g := range o.Grant {
		out = append(out, "+"+g)
	}
	return strings.TrimSpace(strings.Join(out, " "))
}

// configText returns a session config as "{session level once query [disabled] [granted] show}".
func configText(c subjects.SessionConfig) string {
	return fmt.Sprint(struct {
		id, level      string
		once           bool
		query          string
		disable, grant []string
		show           bool
	}{c.SessionID, c.Override, c.Once, c.QueryID, c.Disable, c.Grant, c.Show})
}

// TestAllExpires: ALL ends after its lifetime, an hour unless the user chose another, also for one message, and the
// reply says when. A stored ALL without an end counts as ended. RELAX, disabled tools and grants do not end.
func TestAllExpires(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  subjects.SessionConfig
		ends time.Duration // 0 = never
	}{
		{"ALL", subjects.SessionConfig{Override: "ALL"}, time.Hour},
		{"ALL for ten minutes", subjects.SessionConfig{Override: "ALL", Lifetime: 600}, 10 * time.Minute},
		{"ALL for one message", subjects.SessionConfig{Override: "ALL", Once: true, QueryID: "q1"}, time.Hour},
		{"ALL with a disabled tool", subjects.SessionConfig{Override: "ALL", Disable: []string{"fs_read"}}, time.Hour},
		{"RELAX", subjects.SessionConfig{Override: "RELAX"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newSpawnFixture(t)
			reply := o.setConfig(t, tt.set)
			level := func(after time.Duration) string {
				o.rec.Time = noon.Add(after)
				return o.overrideLevel(t, "s1", "q1")
			}
			set := level(0)
			if tt.ends == 0 {
				if !reply.Expires.IsZero() || level(1000*time.Hour) != set {
					t.Errorf("ends at %s", reply.Expires)
				}
				return
			}
			if !reply.Expires.Equal(noon.Add(tt.ends)) {
				t.Errorf("the reply says %s", reply.Expires)
			}
			if got := level(tt.ends - 1); got != set {
				t.Errorf("just before the end: %q, want %q", got, set)
			}
			if got, want := level(tt.ends), strings.TrimSpace(strings.TrimPrefix(set, "ALL")); got != want {
				t.Errorf("at the end: %q, want %q", got, want)
			}
			if shown, err := o.config(t, "user", subjects.SessionConfig{SessionID: "s1", Show: true}); err != nil ||
				shown.Override != subjects.OverrideNone || !shown.Expires.IsZero() {
				t.Errorf("shown %+v, %v", shown, err)
			}
		})
	}
	o := newSpawnFixture(t)
	if _, err := o.rec.Out().Store("session_config").Put(t.Context(), "s1", []byte(`{"all":{"level":"ALL"}}`),
		0); err != nil {
		t.Fatal(err)
	}
	if got := o.overrideLevel(t, "s1", "q1"); got != "" {
		t.Errorf("a stored ALL without an end: %q", got)
	}
}

func TestSessionConfig(t *testing.T) {
	o := newSpawnFixture(t)
	reply, err := o.config(t, "gateway", subjects.SessionConfig{
		SessionID: "s1", Override: "RELAX",
		Disable: []string{"web_search", "run_code", "web_search"}, Grant: []string{"coder:web_search"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{s1 RELAX false  [run_code web_search] [coder:web_search] false}`
	if configText(reply) != want {
		t.Errorf("reply %v, want %s", reply, want)
	}
	if r := o.records[0]; r.AgentID != "gateway" || r.Action != "session.config" || r.Session != "s1" ||
		r.ParamsHash == "" {
		t.Errorf("record %+v", r)
	}
	if got, want := o.auditLog(), "before allowed override=RELAX disable=web_search disable=run_code "+
		"disable=web_search grant=coder:web_search; after ok"; got != want {
		t.Errorf("on record %s, want %s", got, want)
	}
	if got := o.overrideLevel(t, "s1", "q1"); got != "RELAX -run_code -web_search +coder:web_search" {
		t.Errorf("holds %s", got)
	}
	if got := o.overrideLevel(t, "s2", "q1"); got != "" {
		t.Errorf("in another session %s", got)
	}
	if got := o.overrideLevel(t, "", "q1"); got != "" {
		t.Errorf("without a session %s", got)
	}
	if shown, err := o.config(t, "user", subjects.SessionConfig{SessionID: "s1", Show: true}); err != nil ||
		configText(shown) != want {
		t.Errorf("shown %v, %v", shown, err)
	}
	if got := o.auditLog(); got != "" {
		t.Errorf("looking is on record as %s", got)
	}
	// A setting replaces the one before.
	o.setConfig(t, subjects.SessionConfig{Disable: []string{"fs_read"}})
	if got := o.overrideLevel(t, "s1", "q1"); got != "-fs_read" {
		t.Errorf("holds %s", got)
	}
	if got := o.setConfig(t, subjects.SessionConfig{Override: "NONE"}); configText(got) != "{s1 NONE false  [] [] "+
		"false}" {
		t.Errorf("after taking everything back %v", got)
	}
	if got := o.overrideLevel(t, "s1", "q1"); got != "NONE" {
		t.Errorf("holds %s", got)
	}
}

func TestSessionConfigRejects(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf("t%d", i)
	}
	for _, tt := range []struct {
		name, who string
		body      any
		want      string // in the text
	}{
		{"no session", "user", subjects.SessionConfig{Override: "ALL"}, "session_id"},
		{"nothing", "user", subjects.SessionConfig{SessionID: "s1"}, "nothing to set"},
		{
			"an unknown level", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "SOME"},
			`unknown override "SOME"; use one of NONE, RELAX, ALL`,
		},
		{
			"a grant to an unknown type", "user",
			subjects.SessionConfig{SessionID: "s1", Grant: []string{"painter:fs_read"}},
			"no agent type",
		},
		{
			"a grant without a tool", "user",
			subjects.SessionConfig{SessionID: "s1", Grant: []string{"coder"}},
			"write type:tool",
		},
		{
			"a message without once", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "ALL", QueryID: "q1"},
			"query_id needs once",
		},
		{
			"nothing, once", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "NONE", Once: true},
			"cannot be set once",
		},
		{
			"show with a setting", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "ALL", Show: true},
			"show changes nothing",
		},

		{
			"a lifetime without ALL", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "RELAX", Lifetime: 60},
			"lifetime_seconds is for override ALL",
		},
		{"trick: a lifetime of years", "user", subjects.SessionConfig{
			SessionID: "s1", Override: "ALL",
			Lifetime: 1 << 40,
		}, "from 1 to 86400"},
		{
			"trick: a negative lifetime", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "ALL", Lifetime: -1},
			"from 1 to 86400",
		},
		{"trick: the end set by the client", "user", subjects.SessionConfig{
			SessionID: "s1", Override: "ALL",
			Expires: noon.AddDate(9, 0, 0),
		}, "expires is set by the broker"},
		{
			"trick: level in another case", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "all"},
			"unknown override",
		},
		{
			"trick: a level with a line break", "user",
			subjects.SessionConfig{SessionID: "s1", Override: "ALL\nNONE"},
			`"ALL NONE"`,
		},
		{"trick: wildcard session", "user", subjects.SessionConfig{SessionID: "*", Override: "ALL"}, "session_id"},
		{"trick: two sessions", "user", subjects.SessionConfig{SessionID: "s1.s2", Override: "ALL"}, "session_id"},
		{"trick: wildcard message", "user", subjects.SessionConfig{
			SessionID: "s1", Override: "ALL", Once: true,
			QueryID: ">",
		}, "query_id"},
		{
			"trick: wildcard tool", "user",
			subjects.SessionConfig{SessionID: "s1", Disable: []string{"*"}},
			"invalid tool name",
		},
		{
			"trick: wildcard grant", "user",
			subjects.SessionConfig{SessionID: "s1", Grant: []string{"coder:*"}},
			"write type:tool",
		},
		{"trick: list too long", "user", subjects.SessionConfig{SessionID: "s1", Disable: many}, "at most 64"},
		{
			"trick: set by an agent", "generator",
			subjects.SessionConfig{SessionID: "s1", Override: "ALL"},
			"only the user",
		},
		{
			"trick: set by the operator account", "operator",
			subjects.SessionConfig{SessionID: "s1", Override: "ALL"},
			"only the user",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newSpawnFixture(t)
			reply, err := o.config(t, tt.who, tt.body)
			var f *subjects.Fault
			if !errors.As(err, &f) || !strings.Contains(f.Text, tt.want) {
				t.Fatalf("%v, %v, want %q", reply, err, tt.want)
			}
			if got := o.auditLog(); got != "before refused "+f.Code {
				t.Errorf("on record %s", got)
			}
			if keys, err := o.rec.Out().Store("session_config").Keys(t.Context(), ""); err != nil || len(keys) != 0 {
				t.Errorf("refused, and yet there is %v, %v", keys, err)
			}
		})
	}
}

// TestOnceSetting: a once setting applies to one message and no other, whichever is asked about first.
func TestOnceSetting(t *testing.T) {
	all := subjects.SessionConfig{Override: "ALL", Once: true}
	t.Run("next message, not the running one", func(t *testing.T) {
		o := newSpawnFixture(t)
		o.addEmptyTurn("s1", "q1")
		o.addEmptyTurn("s1", "q2") // queued when it is set
		o.setConfig(t, all)
		for _, q := range []string{"q1", "q2", "", "made-up"} {
			if got := o.overrideLevel(t, "s1", q); got != "" {
				t.Errorf("%q holds %s before the next message came", q, got)
			}
		}
		o.addEmptyTurn("s2", "q9")
		o.addEmptyTurn("s1", "q3")
		o.addEmptyTurn("s1", "q4")
		if got := o.overrideLevel(t, "s1", "q4"); got != "" { // asked about first, but not the next message
			t.Errorf("the one after the next holds %s", got)
		}
		for q, want := range map[string]string{"q1": "", "q2": "", "q3": "ALL", "q4": "", "made-up": ""} {
			for range 2 {
				if got := o.overrideLevel(t, "s1", q); got != want {
					t.Errorf("%s holds %q, want %q", q, got, want)
				}
			}
		}
	})
	t.Run("named message", func(t *testing.T) {
		o := newSpawnFixture(t)
		c := all
		c.QueryID = "q7"
		if got := o.setConfig(t, c); configText(got) != "{s1 ALL true q7 [] [] false}" {
			t.Errorf("reply %v", got)
		}
		if a, b := o.overrideLevel(t, "s1", "q6"), o.overrideLevel(t, "s1", "q7"); a != "" || b != "ALL" {
			t.Errorf("q6 %q, q7 %q", a, b)
		}
	})
	t.Run("session unknown to the router", func(t *testing.T) {
		o := newSpawnFixture(t)
		o.setConfig(t, all)
		if got := o.overrideLevel(t, "s1", "task-1"); got != "" {
			t.Errorf("a query that was never asked has %q", got)
		}
	})
	t.Run("concurrent claims", func(t *testing.T) {
		o := newSpawnFixture(t)
		o.setConfig(t, all)
		o.addEmptyTurn("s1", "task-3")
		var wg sync.WaitGroup
		got := make([]string, 8)
		for i := range got {
			wg.Go(func() { got[i] = o.overrideLevel(t, "s1", fmt.Sprintf("task-%d", i)) })
		}
		wg.Wait()
		if slices.Sort(got); !slices.Equal(got, []string{"", "", "", "", "", "", "", "ALL"}) {
			t.Errorf("%q, want it for one", got)
		}
	})
	t.Run("merged with the session's", func(t *testing.T) {
		o := newSpawnFixture(t)
		o.setConfig(t, subjects.SessionConfig{
			Override: "RELAX", Disable: []string{"web_search"},
			Grant: []string{"coder:web_search"},
		})
		reply := o.setConfig(t, subjects.SessionConfig{
			Override: "ALL", Once: true, QueryID: "q1",
			Disable: []string{"fs_read"},
		})
		if configText(reply) != "{s1 ALL true q1 [fs_read web_search] [coder:web_search] false}" {
			t.Errorf("reply %v", reply)
		}
		if a, b := o.overrideLevel(t, "s1", "q1"),
			o.overrideLevel(t, "s1", "q2"); a != "ALL -fs_read -web_search +coder:web_search" ||
			b != "RELAX -web_search +coder:web_search" {
			t.Errorf("q1 %q, q2 %q: what is disabled must stay, and the rest go back", a, b)
		}
		if shown, err := o.config(t, "user", subjects.SessionConfig{SessionID: "s1", Show: true}); err != nil ||
			shown.Override != "RELAX" || shown.Once {
			t.Errorf("shown %v, %v", shown, err)
		}
	})
	t.Run("dry run claims nothing", func(t *testing.T) {
		o := newSpawnFixture(t)
		o.setConfig(t, all)
		o.addEmptyTurn("s1", "dry")
		for range 2 {
			if over, err := claimOverride(t.Context(), o.rec.Out(), "s1", "dry", true); err != nil ||
				over.Level != "ALL" {
				t.Errorf("would hold %+v, %v", over, err)
			}
		}
		if got := o.overrideLevel(t, "s1", "dry"); got != "ALL" {
			t.Errorf("after the dry run %q", got)
		}
		if over, err := claimOverride(t.Context(), o.rec.Out(), "s1", "later", true); err != nil || over.Level != "" {
			t.Errorf("would hold %+v, %v for another message", over, err)
		}
	})
	t.Run("cleared before use", func(t *testing.T) {
		o := newSpawnFixture(t)
		o.setConfig(t, all)
		o.setConfig(t, subjects.SessionConfig{Override: "NONE"})
		if got := o.overrideLevel(t, "s1", "q1"); got != "NONE" {
			t.Errorf("holds %q", got)
		}
	})
}

// TestOverrideFailsClosed: unreadable overrides are an error, never the zero value.
func TestOverrideFailsClosed(t *testing.T) {
	for name, stored := range map[string]string{
		"not JSON":                       "ALL",
		"a field nobody knows":           `{"all":{"level":"NONE"},"admin":true}`,
		"a field twice":                  `{"all":{"disable":["run_code"],"disable":[]}}`,
		"once, and the stream is silent": `{"all":{},"once":{"set":{"level":"ALL"}}}`,
	} {
		o := newSpawnFixture(t)
		o.rec.Reply = nil
		if _, err := o.rec.Out().Store("session_config").Put(t.Context(), "s1", []byte(stored), 0); err != nil {
			t.Fatal(err)
		}
		if over, err := claimOverride(t.Context(), o.rec.Out(), "s1", "q1", false); err == nil ||
			overrideText(over) != "" {
			t.Errorf("%s: %+v, %v", name, over, err)
		}
		if over, err := claimOverride(t.Context(), o.rec.Out(), "s1", "q1", true); err == nil ||
			overrideText(over) != "" {
			t.Errorf("%s, dry: %+v, %v", name, over, err)
		}
	}
	o := newSpawnFixture(t)
	o.setConfig(t, subjects.SessionConfig{Override: "ALL", Once: true})
	o.addEmptyTurn("s1", "q1")
	o.rec.FailStore = errors.New("disk full")
	if over, err := claimOverride(t.Context(), o.rec.Out(), "s1", "q1", false); err == nil || overrideText(over) != "" {
		t.Errorf("once, and it cannot be tied to its message: %+v, %v", over, err)
	}
}

// TestSessionConfigNeedsAudit: nothing is set before its record is acknowledged.
func TestSessionConfigNeedsAudit(t *testing.T) {
	for _, tt := range []struct {
		phase, code, level string
		body               subjects.SessionConfig
	}{
		{subjects.AuditBefore, subjects.CodeNoAudit, "", subjects.SessionConfig{SessionID: "s1", Override: "ALL"}},
		{subjects.AuditBefore, subjects.CodeNoAudit, "", subjects.SessionConfig{SessionID: "s1", Override: "nonsense"}},
		{subjects.AuditAfter, subjects.CodeUnrecorded, "ALL", subjects.SessionConfig{SessionID: "s1", Override: "ALL"}},
	} {
		o := newSpawnFixture(t)
		o.refuse[tt.phase] = errors.New("not stored")
		if _, err := o.config(t, "user", tt.body); actortest.Code(err) != tt.code {
			t.Errorf("%v, want %s", err, tt.code)
		}
		if got := o.overrideLevel(t, "s1", "q1"); got != tt.level {
			t.Errorf("%s: holds %q, want %q", tt.code, got, tt.level)
		}
	}
	o := newSpawnFixture(t)
	o.rec.FailStore = errors.New("disk full")
	if _, err := o.config(t, "user", subjects.SessionConfig{SessionID: "s1", Override: "ALL"}); actortest.Code(
		err) != subjects.CodeUnavailable {
		t.Errorf("%v", err)
	}
	if got := o.auditLog(); got != "before allowed override=ALL; after failed unavailable" {
		t.Errorf("on record %s", got)
	}
}

// TestOnceSettingOnBus: the next message is the next one in the real stream, under the real grants.
func TestOnceSettingOnBus(t *testing.T) {
	w := startSpawnBroker(t)
	user := outAs(t, w, "user")
	asks := func(session, query string) {
		t.Helper()
		askOnBus(t, w, subjects.Query{SessionID: session, QueryID: query, Query: "?"})
	}
	asks("s1", "q1")
	reply, err := requestOn(t, user, subjects.SessionConfigService,
		subjects.SessionConfig{SessionID: "s1", Override: "ALL", Once: true})
	if err != nil || reply.Override != "ALL" || !reply.Once {
		t.Fatalf("%+v, %v", reply, err)
	}
	// A second broker with the same role: the settings are in the bucket, not in memory.
	out := outAs(t, w, "broker")
	level := func(query string) string {
		t.Helper()
		over, err := claimOverride(t.Context(), out, "s1", query, false)
		if err != nil {
			t.Fatal(err)
		}
		return over.Level
	}
	if got := level("q1"); got != "" {
		t.Errorf("the message before holds %s", got)
	}
	asks("s2", "q8")
	asks("s1", "q2")
	asks("s1", "q3")
	for query, want := range map[string]string{"q1": "", "q2": "ALL", "q3": "", "q8": ""} {
		if got := level(query); got != want {
			t.Errorf("%s holds %q, want %q", query, got, want)
		}
	}
	if shown, err := requestOn(t, outAs(t, w, "gateway"), subjects.SessionConfigService,
		subjects.SessionConfig{SessionID: "s1", Show: true}); err != nil || shown.Override != "NONE" {
		t.Errorf("shown %+v, %v", shown, err)
	}
}
