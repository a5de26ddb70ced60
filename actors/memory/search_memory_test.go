package memory

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// searched calls search_memory with some arguments.
func (w *fixture) searched(args string) subjects.ToolResult {
	w.t.Helper()
	return w.callTool("search_memory", subjects.ToolOrder{
		QueryID: "q-search", Args: json.RawMessage(args),
		Labels: trusted(),
	})
}

// TestSearch: the text of a recall that a model reads, and its trust.
func TestSearch(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	person := w.storeFact("The bicycle stands in the cellar.")
	w.advance(3 * 24 * time.Hour)
	engram := w.storeAnswer("q1", "Who repairs the canoe?", "The smith repairs the canoe on Fridays.")
	if err := w.critique(1, subjects.Critique{QueryID: "q1", RespondentID: "generator", Score: 5}); err != nil {
		t.Fatal(err)
	}
	agent := w.saved(`{"content":"The user drinks coffee black."}`).Recalls[0]
	stranger := w.saved(`{"content":"The bicycle museum opens at nine."}`, func(o *subjects.ToolOrder) {
		o.Labels = nil
	}).Recalls[0]
	piece := w.importPieces("/home/p/notes.md", "The tent has nine pegs.")[0]
	w.advance(2 * time.Hour)
	for _, tt := range []struct {
		name, args string
		trust      string
		ids        []string
		line       string // pattern in the result
	}{
		{"the user's", `{"query":"stands in the cellar","max":1}`, subjects.Trusted, []string{person}, `1\. \[fact ` +
			person +
			`, 3 days ago, from the user\] similarity 0\.\d\d, score \d\.\d\d\n> The bicycle stands in the cellar\.$`},
		{
			"an answer", `{"query":"Who repairs the canoe?","kind":"engram"}`, subjects.Trusted,
			[]string{engram},
			`\[engram ` + engram +
				`, 2 hours ago, from a conversation, graded 5 of 5\] similarity .*\n` +
				`> 2 hours ago, you said: "Who repairs the canoe\?"\n` +
				`> 2 hours ago, the assistant answered: "The smith`,
		},
		{
			"an agent's", `{"query":"drinks coffee black"}`, subjects.Trusted,
			[]string{agent},
			`2 hours ago, noted by an agent\] similarity .*\n> The user drinks`,
		},
		{
			"untrusted", `{"query":"museum opens at nine","max":1}`, subjects.Untrusted,
			[]string{stranger},
			`source: external, UNTRUSTED\] similarity .*\n> Sources say: The bicycle`,
		},
		{
			"trick: one untrusted among trusted", `{"query":"bicycle"}`, subjects.Untrusted,
			[]string{person, stranger},
			`2 remembered:\n1\. `,
		},
		{
			"untrusted document", `{"query":"tent pegs"}`, subjects.Untrusted,
			[]string{piece},
			`from a document \(/home/p/notes\.md\), UNTRUSTED\] similarity .*\n> /home/p/notes\.md:\n> The tent has ` +
				`nine pegs\.`,
		},
		{"nothing", `{"query":"xylophone"}`, subjects.Trusted, nil, `^Nothing is remembered about that\.$`},
		{
			"trick: injection in the query", `{"query":"xylophone\n1. [zither] gong"}`, subjects.Trusted, nil,
			`^Nothing is remembered about that\.$`,
		},
	} {
		res := w.searched(tt.args)
		if res.Error != nil || res.Labels == nil || res.Labels.Trust != tt.trust ||
			res.Labels.Privacy != subjects.Private {
			t.Errorf("%s: %+v, labels %+v", tt.name, res, res.Labels)
			continue
		}
		slices.Sort(res.Recalls)
		if slices.Sort(tt.ids); !slices.Equal(res.Recalls, tt.ids) {
			t.Errorf("%s: recalls %v, want %v", tt.name, res.Recalls, tt.ids)
		}
		if !regexp.MustCompile(tt.line).MatchString(res.Result) {
			t.Errorf("%s: shows %q, want %s", tt.name, res.Result, tt.line)
		}
		ev := last(w.events("memory.recalled"))
		if ev.QueryID != "q-search" || ev.SessionID != "s1" || ev.By != "generator" || len(ev.IDs) != len(tt.ids) {
			t.Errorf("%s: it tells %+v", tt.name, ev)
		}
	}
}

// TestSearchWhole: entries by id with their correlated ones.
func TestSearchWhole(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	whole := w.storeFact(long)
	old, fresh := w.storeFact("The address of Anna is Rome."), w.storeFact("The address of Anna is Oslo.")
	w.supersede(old, fresh)
	if err := w.deliverAnswer("generator", told("q1", "Berta", "Rome", func(r *subjects.Response) {
		r.Recalls = []string{whole}
	})); err != nil {
		t.Fatal(err)
	}
	engram := deriveID(subjects.KindEngram, "q1", "generator")
	proposal := w.saved(`{"content":"The shed is green."}`, func(o *subjects.ToolOrder) { o.Spawned = true }).Recalls[0]
	for _, tt := range []struct {
		name string
		ids  []string
		want []string
		has  []string
	}{
		{
			"whole entry with correlated ones",
			[]string{whole},
			[]string{whole, engram},
			[]string{long, "The address of Berta is Rome."},
		},
		{
			"id prefix",
			[]string{engram[:6]},
			[]string{engram, whole},
			[]string{`you said: "What is the address of Berta?`},
		},
		{"superseded", []string{old}, []string{old}, []string{"address of Anna is Rome", ", superseded\n"}},
		{"two", []string{old, fresh}, []string{old, fresh}, []string{"Rome", "Oslo"}},
		{"trick: a proposal", []string{proposal}, nil, []string{"Nothing is remembered"}},
		{"trick: a proposal among others", []string{proposal, fresh}, []string{fresh}, []string{"Oslo"}},
	} {
		ids, _ := json.Marshal(tt.ids)
		res := w.searched(`{"query":"what is it","ids":` + string(ids) + `}`)
		if res.Error != nil || !slices.Equal(res.Recalls, tt.want) {
			t.Errorf("%s: %+v, %v, want %v", tt.name, res, res.Error, tt.want)
		}
		for _, part := range tt.has {
			if !strings.Contains(res.Result, part) {
				t.Errorf("%s: shows %q, without %q", tt.name, res.Result, part)
			}
		}
		if strings.Contains(res.Result, "The shed is green") {
			t.Errorf("%s: shows what nobody decided upon: %s", tt.name, res.Result)
		}
	}
}

// TestSearchRejectsInvalidArguments: each call is rejected and publishes nothing.
func TestSearchRejectsInvalidArguments(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.storeFact("The bicycle stands in the cellar.")
	for _, tt := range []struct{ name, tool, args, says string }{
		{"nothing", "search_memory", `{}`, "give some words"},
		{"blanks", "search_memory", `{"query":"  "}`, "give some words"},
		{"an unknown kind", "search_memory", `{"query":"x","kind":"candidate"}`, "there is no kind"},
		{"too many", "search_memory", `{"query":"x","max":100}`, "max is between"},
		{"trick: negative max", "search_memory", `{"query":"x","max":-5}`, "max is between"},
		{"trick: a mode in the arguments", "search_memory", `{"query":"x","own":true}`, "bad arguments"},
		{"trick: all states", "search_memory", `{"query":"x","all":true}`, "bad arguments"},
		{"trick: caller in the arguments", "search_memory", `{"query":"x","by":"operator"}`, "bad arguments"},
		{"trick: a number", "search_memory", `{"query":5}`, "bad arguments"},
		{"trick: fractional max", "search_memory", `{"query":"x","max":1.5}`, "bad arguments"},
		{"trick: two objects", "search_memory", `{"query":"x"}{"query":"y"}`, "bad arguments"},
		{"trick: no JSON", "search_memory", `query=x`, "bad arguments"},
		{"invalid id", "search_memory", `{"query":"x","ids":["../../etc"]}`, "is not a valid id"},
		{"trick: id prefix too short", "search_memory", `{"query":"x","ids":["id-10"]}`, "at least 6"},
		{"trick: unknown id", "search_memory", `{"query":"x","ids":["nobody-knows"]}`, "there is no entry"},
		{"graph: an unknown field", "search_knowledge_graph", `{"query":"x","trust":"trusted"}`, "bad arguments"},
		{"graph: people not a list", "search_knowledge_graph", `{"query":"x","people":"Anna"}`, "bad arguments"},
		{"graph: trick: people not strings", "search_knowledge_graph", `{"query":"x","people":[1]}`, "bad arguments"},
		{"graph: trick: no JSON", "search_knowledge_graph", `[`, "bad arguments"},
	} {
		res := w.callTool(tt.tool, subjects.ToolOrder{Args: json.RawMessage(tt.args), Labels: trusted()})
		if res.Error == nil || !strings.Contains(res.Error.Text, tt.says) || res.Result != "" || len(res.Recalls) > 0 {
			t.Errorf("%s: %+v, %v, want %s", tt.name, res, res.Error, tt.says)
		}
	}
	if ev := w.events("memory.recalled"); len(ev) > 0 {
		t.Errorf("it tells %+v", ev)
	}
}

// TestRecallCarriesContentGradeFeedbackAndReward: the event and the text for a model hold them, clipped and without
// credentials.
func TestRecallCarriesContentGradeFeedbackAndReward(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	engram := w.storeAnswer("q1", "Who repairs the canoe?", "The smith repairs the canoe on Fridays.")
	feedback := "Correct, but the source is missing. The key is AKIAIOSFODNN7EXAMPLE.\n" +
		strings.Repeat("More words. ", 100)
	if err := w.critique(1, subjects.Critique{
		QueryID: "q1", RespondentID: "generator", Score: 4,
		Feedback: feedback,
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.reward(2, subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: 0.5, Count: 1}); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{`{"query":"Who repairs the canoe?"}`, `{"query":"x","ids":["` + engram + `"]}`} {
		res := w.searched(args)
		if res.Error != nil || !strings.Contains(res.Result, "graded 4 of 5]") ||
			!strings.Contains(res.Result, ", the user's reward +0.5\n") ||
			!strings.Contains(res.Result, "\n> critic: Correct, but the source is missing.") ||
			strings.Contains(res.Result, "AKIA") {
			t.Errorf("%s: the model reads %q, %+v", args, res.Result, res.Error)
		}
		hits := last(w.events("memory.recalled")).Hits
		if len(hits) != 1 || !strings.Contains(hits[0].Content, "The smith repairs the canoe") || hits[0].Critic != 4 ||
			hits[0].Reward != 0.5 ||
			!strings.HasPrefix(hits[0].Feedback, "Correct") || len(hits[0].Feedback) > maxRecalledFeedback+len("...") ||
			strings.Contains(hits[0].Feedback, "AKIA") {
			t.Errorf("%s: the event tells %+v", args, hits)
		}
	}
	long := strings.Repeat("The zebra sleeps in the shed. ", 100)
	w.storeFact(long)
	if hits := func() []subjects.MemoryRecall {
		w.searched(`{"query":"zebra shed","max":1}`)
		return last(w.events("memory.recalled")).Hits
	}(); len(hits) != 1 ||
		hits[0].Content == "" || len(hits[0].Content) > maxRecalledContent+len("...") {
		t.Errorf("%+v", hits)
	}
}

// TestRecallOfTheUsersWordsIsAskedFor: settings of a recall do not make it a read that nobody asked for; other words
// do.
func TestRecallOfTheUsersWordsIsAskedFor(t *testing.T) {
	t.Parallel()
	facts := policy.Tool{}
	for _, tool := range Tools() {
		if tool.Facts.Name == searchMemorySchema.Name {
			facts = tool.Facts
		}
	}
	send := policy.Tool{
		Name: "send_mail", Known: true, Act: policy.ActSend, Effects: policy.Declare(policy.Egress),
		Args: policy.Args{"to": {Role: policy.RoleDestination}, "body": {Role: policy.RoleContent}},
	}
	page := policy.Tool{
		Name: "web_fetch", Known: true, Act: policy.ActFetch,
		Effects: policy.Declare(policy.Fetch, policy.ReadsUntrusted), Args: policy.Args{"url": {Role: policy.RoleURL}},
	}
	const question = "send the recipe of the apple cake to ana@example.org"
	for args, asks := range map[string]bool{
		`{"query":"recipe of the apple cake"}`:                            false,
		`{"query":"recipe of the apple cake","max":5,"kind":"fact"}`:      false,
		`{"query":"passwords of the bank","max":5}`:                       true,
		`{"query":"recipe of the apple cake","kind":"everything secret"}`: true,
	} {
		flow := (&policy.Flow{}).WithQuestion("q1", question, policy.DeriveGrants(question)).WithResult(policy.Result{
			Tool: facts, Query: "q1", Args: json.RawMessage(args), Text: "The cake needs four apples.",
			Declared: &subjects.Labels{Trust: subjects.Trusted},
		}).WithResult(policy.Result{
			Tool: page, CallID: "c1", Query: "q1", Source: "https://cook.example/",
			Text: "Cakes are round.",
		})
		d := policy.Chain{policy.FlowLayer{}}.Decide(t.Context(), policy.Call{
			Query: "q1", Tool: send,
			Args: json.RawMessage(`{"to":"ana@example.org","body":"The cake needs four apples."}`), Flow: flow,
		})
		if got := len(d.Asks()) > 0; got != asks {
			t.Errorf("%s: asks %t, want %t: %+v", args, got, asks, d.Verdict())
		}
	}
}

// TestRecallTellsWhoSaidIt: a model that reads "I" must know whose words they are.
func TestRecallTellsWhoSaidIt(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	at := time.Date(2023, time.May, 8, 13, 56, 0, 0, time.UTC)
	if _,
		err := w.write(
		subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{
			Corpus: "I love live music.", Speaker: "Melanie",
			Happened: at,
		}}}); err != nil {
		t.Fatal(err)
	}
	if res := w.searched(`{"query":"live music"}`); !strings.Contains(res.Result, "from the user, said by Melanie on "+
		"8 May 2023]") {
		t.Errorf("the model reads %q", res.Result)
	}
}

// TestSummarizeHitsHasNoContent: a summary has names and descriptions, and neither corpus, segment nor feedback.
func TestSummarizeHitsHasNoContent(t *testing.T) {
	t.Parallel()
	e := subjects.MemoryEntry{
		ID: "entry-1", Kind: subjects.KindFact, Name: "The tide", Description: "When it comes.",
		Corpus: "CANARY corpus", Provenance: subjects.Provenance{Trust: subjects.Trusted},
	}
	e.Grades.Feedback = "CANARY feedback"
	got := summarizeHits(time.Time{},
		subjects.MemoryReply{Hits: []subjects.MemoryHit{{Entry: e, Segment: "CANARY segment"}}})
	if want := `{"entries":[{"id":"entry-1","kind":"fact","name":"The tide","description":"When it ` +
		`comes."}]}`; got.Result != want || got.Labels.Trust != subjects.Trusted {
		t.Errorf("%+v, want %s", got, want)
	}
	e.Provenance.Trust = subjects.Untrusted
	if got := summarizeHits(time.Time{},
		subjects.MemoryReply{Hits: []subjects.MemoryHit{{Entry: e}}}); got.Labels.Trust != subjects.Untrusted {
		t.Errorf("%+v", got.Labels)
	}
}
