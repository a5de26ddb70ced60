package stories_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/sandbox"
	"conclave/pkg/story"
	"conclave/stories/harness"
	"conclave/subjects"
)

const testTimeout = 60 * time.Second

// parseStory parses a story whose first three lines are the same in all these tests.
func parseStory(t testing.TB, text string) *story.Story {
	t.Helper()
	s, err := story.Parse([]byte("story: T\ntitle: a test of the harness\nwhy: to see\n"+text), "stories/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A request that does not match the script fails the story, with the line and the request.
func TestMismatchFailsTheStory(t *testing.T) {
	t.Parallel()
	r := harness.RunStory(t.Context(), parseStory(t, `model:
  assistant:
    - when: {last_contains: something else}
      reply: {content: never}
turns:
  - query: What is the time?
    answer: {contains: [never]}
`), inMemory(t), story.Options{})
	for _, want := range []string{
		`stories/t.yaml:6: a model request does not match the script: script of assistant: exchange 0 wants ` +
			`"something else" in the last message`,
		"stories/t.yaml:6: no request for this reply of assistant",
		"stories/t.yaml:10: turn 1: the answer does not contain \"never\"",
		`assistant: system "..." user "What is the time?" tools [get_datetime `,
		"generator  response.generation",
	} {
		if !strings.Contains(r.Report(), want) {
			t.Errorf("want %q\n%s", want, r.Report())
		}
	}
}

// onePage is a web with one page, which a search finds.
const onePage = "web: {pages: [{url: 'http://a.example.org/p', title: A page, snippet: found, body: <p>Words of the " +
	"page.</p>}]}\n"

// The settings of a story are decoded as strictly as any configuration, and an error names the story's line.
func TestInvalidSettingsNameTheLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"config:\n  system: {log_level: warn}\n  web_search:\n    provder: mock\n", "stories/t.yaml:7: " +
			"config.web_search:"},
		{"config:\n  web_search: {provider: nobody}\n", `stories/t.yaml:5: config.web_search: `},
		{"config: {websearch: {provider: mock}}\n", "stories/t.yaml:4: config.websearch:"},
		{"config: {system: {listen: '0.0.0.0:1'}}\n", "can be reached from other machines"},
		{"manifest: {types: {assistant: {tols: [get_datetime]}}}\n", "stories/t.yaml:4: manifest:"},
		{
			"manifest: |\n  types:\n    assistant: {tools: [get_datetime], can_spawn: [nobody]}\n",
			"stories/t.yaml:4: manifest:",
		},
		// Nothing in a story reaches the user's keyring or another machine.
		{"config: {secrets: {backend: auto}}\n", "stories/t.yaml:4: config.secrets: a story uses the keyring file"},
		{"config: {web_search: {provider: searxng}}\n", "stories/t.yaml:4: config.web_search: a search would leave " +
			"the story"},
		{"config:\n  web_search: {searxng: {url: 'http://127.0.0.1:8888'}}\n" + onePage, "stories/t.yaml:5: " +
			"config.web_search: a search would leave the story"},
		{"config: {web_search: {provider: brave}}\ncredentials: {brave_api_key: x}\n", "stories/t.yaml:5: " +
			"credentials: with the key brave_api_key a search would leave this machine"},
		{
			"config: {web_search: {provider: tavily, tavily: {key: '{{secret mine}}'}}}\ncredentials: {mine: x}\n",
			"with the key mine a search would leave this machine",
		},
	} {
		st, err := harness.Open(t.Context(), parseStory(t, tt.text+"turns: [{query: hello, no_notes: true}]\n"),
			inMemory(t))
		if err == nil {
			st.Close(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want %q", tt.text, err, tt.want)
		}
	}
}

// Close leaves no file behind, whether the story ran or could not start.
func TestCloseRemovesEverything(t *testing.T) {
	_ = sandbox.SelfTest(t.Context()) // once per process, and not in a folder that programs cannot search
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for _, text := range []string{
		"server: {down: true}\nturns: [{query: hello, answer: {equals: hi}}]\n",
		"config: {system: {nope: x}}\nturns: [{query: hello, answer: {equals: hi}}]\n",
	} {
		r := harness.RunStory(t.Context(), parseStory(t, text), inMemory(t), story.Options{})
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%q (%d failures) leaves %v, %v", text, len(r.Failures), left, err)
		}
	}
}

// A live run uses the user's configuration and not the script.
func TestLiveUsesTheConfiguredModels(t *testing.T) {
	t.Parallel()
	real := modeltest.New(t, scriptserver.Script{"mine": {
		{When: scriptserver.When{LastContains: "capital"}, Reply: scriptserver.Reply{Content: "Paris, of course."}},
	}})
	dir := t.TempDir()
	text := "ollama: {url: '" + real.URL + "'}\nroles: {assistant: mine}\ndemo_model: never\n"
	for file, text := range map[string]string{
		"models.yaml": text, "memory.yaml": "model: false\n",
		"critic.yaml": "enabled: false\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	live := harness.Options{Live: true, Config: dir}
	s := parseStory(t, `model:
  assistant:
    - reply: {content: the script}
turns:
  - query: What is the capital of France?
    answer: {contains: [Paris]}
    thinking: {not_empty: true, scripted_only: true}
events:
  in_order: [query.received, response.generation model=mine]
`)
	if r := harness.RunStory(t.Context(), s, live, story.Options{}); !r.OK() {
		t.Error(r.Report())
	}
	if err := real.Err(); err != nil {
		t.Error(err)
	}
	s = parseStory(t, "scripted_only: true\nturns: [{query: hello, no_notes: true}]\n")
	if r := harness.RunStory(t.Context(), s, live, story.Options{}); !r.OK() || r.Skipped == "" {
		t.Errorf("got %+v", r)
	}
	s = parseStory(t, "needs: [tools, vision]\nturns: [{query: hello, no_notes: true}]\n")
	if r := harness.RunStory(t.Context(), s, live, story.Options{}); !r.OK() ||
		r.Skipped != "it needs vision, which mine lacks" {
		t.Errorf("got %+v", r)
	}
}

// openSystem opens the system of a story until the test ends, and returns a context with the timeout of a test.
func openSystem(t *testing.T, s *story.Story) (*harness.Harness, context.Context) {
	t.Helper()
	st, err := harness.Open(t.Context(), s, inMemory(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return st, ctx
}

// A story's web is all the web there is: its pages are read and counted, also those that are not there, and nothing
// else is reached. The user calls, so nobody has to be asked.
func TestWebReachesOnlyThePagesOfTheStory(t *testing.T) {
	t.Parallel()
	s := parseStory(t, onePage+"turns: [{query: hello, no_notes: true}]\n")
	st, ctx := openSystem(t, s)
	heard, err := st.Subscribe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, tool, arg, value, want, fault string }{
		{
			"a page", "web_fetch", "url", "http://a.example.org/p",
			"A page\nhttp://a.example.org/p\n\nWords of the page.",
			"",
		},
		{"a search", "web_search", "query", "whatever", "1. A page\n   found\n   http://a.example.org/p", ""},
		{"a page that is not there", "web_fetch", "url", "http://a.example.org/p?q=1", "", "fetch failed: 404"},
		{"trick: another host", "web_fetch", "url", "http://example.org/p", "", "fetch failed: the host was not found"},
		{"trick: a secure connection", "web_fetch", "url", "https://a.example.org/p", "", "fetch failed: "},
		{"trick: this machine", "web_fetch", "url", "http://127.0.0.1/", "", ""},
	} {
		res, err := st.CallTool(ctx, subjects.Caller{Account: "operator"},
			story.Request{Tool: tt.tool, Args: map[string]any{tt.arg: tt.value}}, "s", "q")
		if err != nil {
			t.Fatal(err)
		}
		if tt.want == "" && res.Error == nil || tt.want != "" && !strings.Contains(res.Result, tt.want) ||
			tt.fault != "" && (res.Error == nil || !strings.Contains(res.Error.Text, tt.fault)) {
			t.Errorf("%s: %q, %v", tt.name, res.Result, res.Error)
		}
	}
	if n := st.PageRequests(); len(n) != 2 || n["http://a.example.org/p"] != 1 || n["http://a.example.org/p?q=1"] != 1 {
		t.Errorf("pages %v", n)
	}
	for e := range heard {
		if e.Subject == story.PageRequested {
			if url, _ := e.Field("url"); url != "http://a.example.org/p" {
				t.Errorf("first %s was asked for", url)
			}
			break
		}
	}
}

// A tool goes by its own name: it is killed like any other actor, and comes back.
func TestKilledToolRestarts(t *testing.T) {
	t.Parallel()
	r := harness.RunStory(t.Context(), parseStory(t, `config: {generator: {tool_timeout: 3s}}
web: {pages: [{url: "http://a.example.org/p", title: A, body: <p>A little later.</p>, slow: 2s, asked: 1}]}
model:
  assistant:
    - reply: {tool_calls: [{name: web_fetch, arguments: {url: "http://a.example.org/p"}}]}
    - when: {last_role: tool, last_contains: "[tool unavailable]"}
      reply: {content: It is gone.}
turns:
  - query: What stands on http://a.example.org/p?
    crash: {actor: web_fetch, after: {page: "http://a.example.org/p"}}
    answer: {equals: It is gone.}
  - request: {as: operator, tool: web_fetch, args: {url: "http://a.example.org/q"}}
    error: tool_failed
`), inMemory(t), story.Options{})
	if !r.OK() {
		t.Error(r.Report())
	}
}

// Events come from the stream with their authors, and questions stand before what came of them.
func TestEventsAreOrderedAndAttributed(t *testing.T) {
	t.Parallel()
	s := parseStory(t, "model: {assistant: [{reply: {content: hi}}, {reply: {content: ho}}]}\nturns: [{query: hello, "+
		"answer: {equals: hi}}]\n")
	st, ctx := openSystem(t, s)
	heard, err := st.Subscribe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var seen []story.Event
	for _, query := range []string{"q1", "q2"} {
		if err := st.Ask(ctx, subjects.Generator, subjects.Query{
			SessionID: "s", QueryID: query,
			Query: "hello",
		}); err != nil {
			t.Fatal(err)
		}
		for e := range heard {
			if e.Query == query && e.Subject == "answer.dialog" {
				break
			}
		}
		if seen, err = st.ReadEvents(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	var asked, answered []int
	for i, e := range seen {
		switch e.Subject {
		case "query.received":
			asked = append(asked, i)
		case "answer.dialog":
			answered = append(answered, i)
			if e.From != "generator" || e.Session != "s" || e.Seq == 0 || e.Time.IsZero() {
				t.Errorf("event %+v", e)
			}
		}
	}
	if len(asked) != 2 || len(answered) != 2 || asked[0] != 0 || asked[1] < answered[0] || answered[1] < asked[1] {
		t.Errorf("asked %v, answered %v in %v", asked, answered, seen)
	}
	half := seen[len(seen)/2].Seq
	rest, err := st.ReadEvents(ctx, half)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range rest {
		if e.Seq > 0 && e.Seq <= half {
			t.Errorf("event %d is not after %d", e.Seq, half)
		}
	}
	nobody := subjects.Caller{Account: "nobody"}
	if _, err := st.CallTool(ctx, nobody, story.Request{Tool: "get_datetime"}, "s", "q"); err == nil {
		t.Error("nobody asked the broker")
	}
	if _, err := st.Spawn(ctx, nobody, story.Child{Type: "coder"}, "s", "q"); err == nil {
		t.Error("nobody has a child")
	}
	if err := st.DecideApproval(ctx, "none", subjects.ApprovalDecision{Approve: true}); err == nil ||
		!strings.Contains(err.Error(), "the approval is unknown") {
		t.Errorf("an answer to no question: %v", err)
	}
	if err := st.KillActor(ctx, "nobody"); err == nil {
		t.Error("nobody was ended")
	}
}
