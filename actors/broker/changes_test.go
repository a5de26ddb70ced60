package broker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// keeper is a tool that keeps changes, and the orders that it got.
type keeper struct {
	*orderTool
	mu     sync.Mutex
	orders []subjects.ToolOrder
	refuse bool // to keep the state before
}

func newKeeper() *keeper {
	k := &keeper{orderTool: newOrderTool(policy.Tool{
		Name: "fs_write", Effects: policy.Declare(policy.Mutate), Paths: []string{"path"}, Keeps: true,
	}, pathSchema)}
	k.run = func(_ context.Context, o subjects.ToolOrder, _ actor.Out) (res subjects.ToolResult, _ error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.orders = append(k.orders, o)
		var a struct{ Path, Content string }
		if err := json.Unmarshal(o.Args, &a); err != nil {
			return res, err
		}
		ref := &subjects.ChangeRef{Files: []string{a.Path}}
		if o.Change != nil {
			ref.ID = o.Change.ID
		}
		switch {
		case o.Mode == subjects.ModeCapture && k.refuse:
			return subjects.ToolResult{Result: undo.ErrNotKept.Error()}, nil
		case o.Mode == subjects.ModeCapture:
			return subjects.ToolResult{Change: ref}, nil
		case o.Mode == subjects.ModeUndo && o.Change.List != nil:
			return subjects.ToolResult{Result: `{"changes":[{"id":"c1","files":[]}]}`}, nil
		case o.Mode == subjects.ModeUndo:
			return subjects.ToolResult{Result: `{"done":true,"changes":["c1"],"files":[]}`}, nil
		}
		return subjects.ToolResult{Result: "written", Change: ref, Artifacts: []string{a.Path}}, nil
	}
	return k
}

// modes returns the modes of the orders so far.
func (k *keeper) modes() (modes []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range k.orders {
		modes = append(modes, o.Mode)
	}
	return modes
}

const keeperManifest = `
types:
  operator:
    tools: [fs_write, fs_read]
    paths: {fs_write: [WORK/], fs_read: [WORK/]}
accounts:
  operator: operator
  generator: operator
`

// TestCaptureBeforeCall: the tool keeps the state before it is called, each on record; the records of the call and the
// result name the change. A denied call keeps nothing.
func TestCaptureBeforeCall(t *testing.T) {
	t.Parallel()
	k := newKeeper()
	w := newWorkspaceFixture(t, keeperManifest, k.orderTool)
	if err := os.MkdirAll(w.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	user := toolClient{t, w.Out("operator")}
	path := filepath.Join(w.workspace, "a")
	args := `{"path":"` + path + `","content":"x"}`
	res := user.request("fs_write", "s1", "q1", "call1", nil, args)
	if res.Error != nil || res.Change == nil || !slices.Equal(res.Change.Files, []string{path}) {
		t.Fatalf("%+v", res)
	}
	if got := k.modes(); !slices.Equal(got, []string{subjects.ModeCapture, ""}) {
		t.Errorf("modes %q", got)
	}
	o := k.orders[1]
	if o.Change == nil || o.Change.ID != res.Change.ID || o.Change.Query != "q1" || o.Change.Session != "s1" ||
		o.Change.Call != "call1" || o.Change.Time.IsZero() || len(o.Change.Files) != 1 {
		t.Errorf("order %+v", o.Change)
	}
	var got []string
	_, records, _ := w.AuditRecords()
	for _, r := range records {
		if r.Change == res.Change.ID {
			got = append(got, r.Action+" "+r.Phase)
		}
	}
	if want := []string{
		"tool.capture before", "tool.capture after", "tool.call before", "tool.call after",
	}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
	if res := user.request("fs_write", "s1", "q1", "call2", nil, `{"path":"/etc/x","content":"x"}`); res.Error == nil {
		t.Error("not denied")
	}
	if n := len(k.modes()); n != 2 {
		t.Errorf("a denied call was captured: %d orders", n)
	}
	k.refuse = true
	res = user.request("fs_write", "s1", "q1", "call3", nil, args)
	if last := k.orders[len(k.orders)-1]; res.Error != nil || res.Change != nil || last.Change != nil {
		t.Errorf("a call whose state is not kept names a change: %+v, %+v", res, last.Change)
	}
}

// TestExplainUndoableWithoutSession: the dry run of a call in no session is that of the first question of a new one.
func TestExplainUndoableWithoutSession(t *testing.T) {
	t.Parallel()
	w := newWorkspaceFixture(t, keeperManifest+"high_risk: [fs_write]\n", newKeeper().orderTool)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	v, err := actor.Ask(ctx, w.Out("user"), subjects.PolicyExplain, subjects.ExplainRequest{
		As: "generator", Tool: "fs_write",
		Args: json.RawMessage(`{"path":"` + filepath.Join(w.workspace, "a") + `","content":"x"}`),
	})
	if err != nil || !v.Allowed {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestUndoOnRecord: the user lists changes and takes them back through the broker, on record, and nobody else can.
func TestUndoOnRecord(t *testing.T) {
	t.Parallel()
	k := newKeeper()
	w := newWorkspaceFixture(t, keeperManifest, k.orderTool)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	// the tool may announce itself after the broker's discovery
	toolClient{t, w.Out("operator")}.request("fs_write", "s1", "q1", "call1", nil, `{"path":"/etc/x"}`)
	all := subjects.ChangeQuery{ChangeSelection: subjects.ChangeSelection{All: true}}
	list, err := actor.Ask(ctx, w.Out("user"), subjects.ChangeListService, all)
	if err != nil || len(list.Changes) != 1 {
		t.Fatal(list, err)
	}
	q := subjects.UndoRequest{Action: subjects.UndoApply, ChangeSelection: subjects.ChangeSelection{Last: true}}
	done, err := actor.Ask(ctx, w.Out("user"), subjects.ChangeUndoService, q)
	if err != nil || !done.Done {
		t.Fatal(done, err)
	}
	o := k.orders[len(k.orders)-1]
	if o.Change.Undo == nil || o.Change.Undo.ID != "c1" || o.Change.Agent != "user" || o.Folders == nil ||
		!slices.Contains(o.Folders.Closed, w.closed) {
		t.Errorf("order %+v, folders %+v", o.Change, o.Folders)
	}
	var got []string
	_, records, _ := w.AuditRecords()
	for _, r := range records {
		if strings.HasPrefix(r.Action, "change.") {
			got = append(got, r.AgentID+" "+r.Action+" "+r.Phase+" "+r.Status)
		}
	}
	if want := []string{
		"user change.show before allowed", "user change.show after ok", "user change.undo before allowed",
		"user change.undo after ok",
	}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
	before := len(k.modes())
	q.Action = "other"
	var fault *subjects.Fault
	if _, err := actor.Ask(ctx, w.Out("user"), subjects.ChangeUndoService, q); !errors.As(err, &fault) ||
		fault.Code != subjects.CodeMalformed {
		t.Errorf("an unknown action: %v", err)
	}
	if len(k.modes()) != before {
		t.Error("a malformed undo reached the tool")
	}
}

// TestUndoableAfterUntrusted: after untrusted content an agent changes an ordinary file without a question, with the
// source named in the change; a start-up file asks, and so does every file with reversible: ask.
func TestUndoableAfterUntrusted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file, setting string
		refuse, asks  bool
	}{
		"an ordinary file":             {file: "notes.txt"},
		"a start-up file":              {file: ".bashrc", asks: true},
		"a Git hook":                   {file: "p/.git/hooks/post-checkout", asks: true},
		"the state is not kept":        {file: "notes.txt", refuse: true, asks: true},
		"the setting brings it back":   {file: "notes.txt", setting: "reversible: ask", asks: true},
		"the setting as it is shipped": {file: "notes.txt", setting: "reversible: pass"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper()
			k.refuse = tt.refuse
			w := newWorkspaceFixture(t, keeperManifest+tt.setting, k.orderTool, newPageReader())
			path := filepath.Join(w.workspace, tt.file)
			res, page := w.callAfterPage("fs_write", `{"path":"`+path+`","content":"this"}`, tt.asks)
			if !tt.asks && (res.Change == nil || !slices.Equal(res.Change.Sources, []string{page})) {
				t.Errorf("the change does not name its source: %+v", res.Change)
			}
		})
	}
}

// newPageReader is an fs_read that returns a page of others.
func newPageReader() *orderTool {
	read := newOrderTool(policy.Tool{
		Name: "fs_read", Effects: policy.Declare(policy.ReadsUntrusted), Paths: []string{"path"},
	}, pathSchema)
	read.run = func(context.Context, subjects.ToolOrder, actor.Out) (subjects.ToolResult, error) {
		return subjects.ToolResult{Result: "a page says: write this"}, nil
	}
	return read
}

// callAfterPage has the agent read a page and call a tool, whose result it returns with the name of the page. It fails
// when the user is asked and should not be, or the other way round. The user denies.
func (w *workspaceFixture) callAfterPage(tool, args string, asks bool) (res subjects.ToolResult, page string) {
	t := w.t
	t.Helper()
	if err := os.MkdirAll(w.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	broker.AskOnBus(t, w.Bus, subjects.Query{SessionID: "s1", QueryID: "q1", Query: "What does the page say?"})
	user, agent := w.userClient("user"), toolClient{t, w.Out("generator")}
	page = filepath.Join(w.workspace, "pages", "page.html")
	if res := agent.request("fs_read", "s1", "q1", "call1", nil, `{"path":"`+page+`"}`); res.Error != nil {
		t.Fatal(res.Error)
	}
	done := make(chan subjects.ToolResult, 1)
	go func() { done <- agent.request(tool, "s1", "q1", "call2", nil, args) }()
	select {
	case q := <-user.questions:
		if !asks {
			t.Errorf("asked: %s", q.Reason)
		}
		user.answer(q.ID, subjects.ApprovalDecision{})
		if res = <-done; res.Error == nil {
			t.Errorf("ran after a denial: %+v", res)
		}
	case res = <-done:
		if asks || res.Error != nil {
			t.Fatalf("not asked: %+v", res)
		}
	}
	return res, page
}

// TestSandboxedProgramAfterUntrusted: after untrusted content an agent runs a program of the build without a question
// when its working folder is kept and is the only folder of the order. Its result is untrusted and private. Whatever
// else the tool's process or the folder says, the user is asked, and nothing runs after a denial.
func TestSandboxedProgramAfterUntrusted(t *testing.T) {
	t.Parallel()
	const manifest = `
types:
  operator:
    tools: [fs_read, run_shell]
    paths: {fs_read: [WORK/]}
accounts: {generator: operator}
high_risk: [run_shell]
`
	type order = subjects.ToolOrder
	work := func(o order) []string { return []string{o.Folders.Work} }
	for name, tt := range map[string]struct {
		setting string
		folders string // of the type, "" = all working folders
		facts   func(k *orderTool)
		folder  func(work string)         // before the call
		kept    func(o order) []string    // the files that the tool says it keeps
		fault   *subjects.Fault           // of the tool, when it should keep them
		refer   func(*subjects.ChangeRef) // changes what the tool says
		asks    bool
	}{
		"kept":                         {},
		"the setting as it is shipped": {setting: "reversible: pass"},
		"the setting brings it back":   {setting: "reversible: ask", asks: true},
		"always asks":                  {setting: "always_ask: [run_shell]", asks: true},
		"it is not kept":               {kept: func(order) []string { return nil }, asks: true},
		"the sandbox fails its self-test": {
			fault: subjects.Faultf(subjects.CodeUnavailable, "run_shell is disabled: sandbox unavailable"), asks: true,
		},
		"the type has no working folder": {
			folders: "[WORK/pages/]", asks: true,
		},
		"trick: no sandbox by the build": {
			facts: func(k *orderTool) { k.facts.Sandboxed = false }, asks: true,
		},
		"trick: nothing kept by the build": {facts: func(k *orderTool) { k.facts.Keeps = false }, asks: true},
		"trick: it destroys by the build": {
			facts: func(k *orderTool) { k.facts.Effects = k.facts.Effects.With(policy.Destroy) }, asks: true,
		},
		"trick: a file is kept": {
			kept: func(o order) []string { return []string{o.Folders.Work + "/a"} }, asks: true,
		},
		"trick: the folder of all questions is kept": {
			kept: func(o order) []string { return []string{filepath.Dir(o.Folders.Work)} }, asks: true,
		},
		"trick: another folder is kept as well": {
			kept: func(o order) []string { return []string{o.Folders.Work, "/home/me"} }, asks: true,
		},
		"trick: the home folder is kept": {kept: func(order) []string { return []string{"/home/me"} }, asks: true},
		"trick: another change is kept": {
			refer: func(r *subjects.ChangeRef) { r.ID = "c1" }, asks: true,
		},
		"trick: the working folder is a link": {
			folder: func(work string) {
				other := filepath.Join(filepath.Dir(work), "other")
				if err := errors.Join(os.MkdirAll(other, 0o700), os.Symlink(other, work)); err != nil {
					t.Error(err)
				}
			},
			asks: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newOrderTool(policy.Tool{
				Name: "run_shell", Keeps: true, Sandboxed: true, Act: policy.ActExecute,
				Effects: policy.Declare(policy.Exec, policy.Mutate, policy.ReadsPrivate, policy.ReadsUntrusted),
				Args:    policy.Args{"command": {Role: policy.RoleContent}},
			}, `{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}`)
			if tt.facts != nil {
				tt.facts(k)
			}
			var ran atomic.Int32
			k.run = func(_ context.Context, o order, _ actor.Out) (res subjects.ToolResult, _ error) {
				if o.Mode != subjects.ModeCapture {
					ran.Add(1)
					if !slices.Equal(o.Folders.Allowed, work(o)) || o.Change == nil {
						t.Errorf("folders %q, change %+v", o.Folders.Allowed, o.Change)
					}
					return subjects.ToolResult{Result: "exit code: 0"}, nil
				}
				if tt.fault != nil {
					return res, tt.fault
				}
				files := work
				if tt.kept != nil {
					files = tt.kept
				}
				res.Change = &subjects.ChangeRef{ID: o.Change.ID, Files: files(o), Runs: true}
				if tt.refer != nil {
					tt.refer(res.Change)
				}
				return res, nil
			}
			w := newWorkspaceFixture(t, strings.Replace(manifest, "[WORK/]", cmp.Or(tt.folders, "[WORK/]"), 1)+
				tt.setting, k, newPageReader())
			if tt.folder != nil {
				if err := os.MkdirAll(w.workspace, 0o700); err != nil {
					t.Fatal(err)
				}
				tt.folder(policy.WorkFolder(w.workspace, "s1", "q1"))
			}
			res, _ := w.callAfterPage("run_shell", `{"command":"make deploy"}`, tt.asks)
			if got := ran.Load() == 1; got == tt.asks {
				t.Errorf("ran: %v", got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			v, err := actor.Ask(ctx, w.Out("user"), subjects.PolicyExplain, subjects.ExplainRequest{
				As: "generator", Tool: "run_shell", Args: json.RawMessage(`{"command":"ls"}`), SessionID: "s1",
			})
			if err != nil || v.Allowed == (tt.asks && tt.kept == nil && tt.fault == nil && tt.refer == nil) {
				t.Errorf("explained as %+v, %v", v, err) // it assumes that the folder can be kept
			}
			isConditional := slices.ContainsFunc(v.Layers, func(l subjects.LayerVerdict) bool {
				return l.Layer == "flow" && l.Reason == "if the state before can be kept; it asks otherwise"
			})
			if v.Allowed && !isConditional {
				t.Errorf("the condition is not said: %+v", v.Layers)
			}
			l := cmp.Or(res.Labels, &subjects.Labels{})
			if !tt.asks && (l.Trust != subjects.Untrusted || l.Privacy != subjects.Private) {
				t.Errorf("labels %+v", l)
			}
		})
	}
}
