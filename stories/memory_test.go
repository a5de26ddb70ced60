package stories_test

import (
	"errors"
	"strings"
	"testing"

	"conclave/pkg/story"
	"conclave/stories/harness"
	"conclave/subjects"
)

// The user's hand reaches memory, what changes nothing is an error, and what memory does not take is its refusal.
func TestChangeMemory(t *testing.T) {
	t.Parallel()
	st, ctx := openSystem(t, parseStory(t, "turns: [{query: hello, no_notes: true}]\n"))
	add := func(s string) story.Memory { return story.Memory{Add: &story.Add{Text: s}} }
	for _, tt := range []struct {
		name string
		act  story.Memory
		want string // error; "" = it is done
		no   bool   // it is memory's own refusal
	}{
		{"add", add("The bicycle stands in the cellar."), "", false},
		{"add another", add("The sledge hangs under the roof."), "", false},
		{
			"import",
			story.Memory{Import: &story.Import{From: "boat.md", Text: "# Boat\n\nThe boat lies at pier nine.\n"}},
			"",
			false,
		},
		{"pin", story.Memory{Pin: "bicycle"}, "", false},
		{"pin once more", story.Memory{Pin: "bicycle"}, "memory pin: no entry about", false},
		{"unpin", story.Memory{Unpin: "bicycle"}, "", false},
		{"forget", story.Memory{Forget: "bicycle"}, "", false},
		{"trick: forget it again", story.Memory{Forget: "bicycle"}, `memory forget: no entry about "bicycle"`, false},
		{"trick: pin what is not there", story.Memory{Pin: "bicycle"}, "memory pin: no entry contains", false},
		{"trick: accept without proposals", story.Memory{Accept: story.All}, "memory accept: no entry contains", false},
		{"trick: a fact is no proposal", story.Memory{Reject: "sledge"}, "memory reject: no entry contains", false},
		{"a key", add("The api_key: kq7Zr2Lx9Wp4Ts8Vb3"), "looks like a password or a key", true},
		{"nothing", story.Memory{}, "no operation given", false},
		{
			"trick: a file that is no text",
			story.Memory{Import: &story.Import{From: "boat.png", Text: "\x89PNG\x00\x01"}},
			"reading boat.png", false,
		},
	} {
		err := st.ChangeMemory(ctx, tt.act)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if no := (*subjects.Fault)(nil); err != nil && errors.As(err, &no) != tt.no {
			t.Errorf("%s: a refusal of memory: %t", tt.name, !tt.no)
		}
	}
	events, err := st.ReadEvents(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	var did []string
	for _, e := range events {
		if action, _ := e.Field("action"); e.Subject == "memory.stored" {
			did = append(did, action)
		}
	}
	if got := strings.Join(did, " "); got != "stored stored imported pinned unpinned forgotten" {
		t.Errorf("memory tells of %s", got)
	}
}

// Memory asks no model unless the story says so: no script expects it. The vectors come all the same, also when the
// server wants a key.
func TestMemoryWithScriptedModel(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no model is asked": `model: {assistant: [{reply: {content: Noted.}}]}
turns:
  - query: My bicycle stands in the cellar.
  - request: {as: generator, tool: search_memory, args: {query: where is the bicycle}}
    after: memory.stored action=stored
    answer: {contains: [cellar], not_contains: [Only words]}
`,
		"behind a key": `credentials: {openai: made-up-key-of-this-test-1f}
server: {key: openai}
model: {assistant: [{reply: {content: Noted.}}]}
turns:
  - query: My bicycle stands in the cellar.
  - request: {as: generator, tool: search_memory, args: {query: where is the bicycle}}
    after: memory.stored action=stored
    answer: {contains: [cellar], not_contains: [Only words]}
`,
		"a model behind a key": `credentials: {openai: made-up-key-of-this-test-1f}
server: {key: openai}
config: {memory: {model: true}}
model:
  assistant: [{reply: {content: Noted.}}]
  summaries:
    - when: {contains: [cellar]}
      reply: {content: '{"name": "a place for wheels", "description": "The bicycle stands in the cellar."}'}
turns:
  - query: My bicycle stands in the cellar.
  - after: memory.stored action=edited
events: {absent: ["> body~made-up-key"]}
`,
		"a model that chooses tools": onePage + `config: {generator: {max_tools: 4}}
model:
  assistant:
    - when: {tools_include: [save_memory, search_memory]}
      reply: {content: Hello.}
  tools:
    - when: {contains: [save_memory, web_fetch]}
      reply: {content: '{"tools": ["save_memory"]}'}
turns:
  - query: Hello?
    answer: {equals: Hello.}
`,
		"the tools that the story is about": onePage + `model:
  assistant:
    - when: {tools_include: [web_fetch, web_search, get_datetime]}
      reply: {content: Hello.}
turns:
  - query: Save the memory of this knowledge graph. # words that speak for other tools
    answer: {equals: Hello.}
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r := harness.RunStory(t.Context(), parseStory(t, text), inMemory(t), story.Options{}); !r.OK() {
				t.Error(r.Report())
			}
		})
	}
}

// Memory is killed like any other actor, comes back, and keeps what was said meanwhile.
func TestKilledMemoryRestarts(t *testing.T) {
	t.Parallel()
	r := harness.RunStory(t.Context(), parseStory(t, `model:
  assistant:
    - reply: {content: Noted.}
    - reply: {content: Noted too.}
turns:
  - query: My bicycle stands in the cellar.
    crash: {actor: memory, after: {event: response.generation}}
    answer: {equals: Noted.}
  - query: My sledge hangs under the roof.
    after: memory.stored action=stored
    crash: {actor: memory, after: {event: agent.state.generator to=GENERATING}}
    answer: {equals: Noted too.}
  - after: memory.stored action=stored times=2
events: {present: [memory.stored times=2]}
`), inMemory(t), story.Options{})
	if !r.OK() {
		t.Error(r.Report())
	}
}
