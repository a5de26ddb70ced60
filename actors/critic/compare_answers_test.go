package critic

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// compareOrder calls the tool as the broker does.
func (w *harness) compareOrder(args string) (res subjects.ToolResult, err error) {
	w.t.Helper()
	got, err := w.rec.Deliver(w.t, w.c, actortest.Message{
		Subject: "tool.request.compare_answers", Query: "q1", Session: "s1", Deadline: w.rec.Time.Add(time.Minute),
		Body: subjects.ToolOrder{CallID: "c1", QueryID: "q1", Args: json.RawMessage(args), Caller: "generator"},
	})
	if err == nil {
		err = json.Unmarshal([]byte(got), &res)
	}
	return res, err
}

func TestCompareAnswers(t *testing.T) {
	t.Parallel()
	ask := `{"question":"What is the capital of Norway?","first":"Good: Oslo.","second":"Bad: Bergen.",` +
		`"reference":"Oslo"}`
	for _, c := range []struct {
		name, args string
		judge      func(model.Request) (string, error)
		chunk      subjects.ChatChunk
		want       string // of the result
		code       string // of the fault
		says       string // in the fault
	}{
		{name: "the first", args: ask, judge: judgeEither, want: "The first answer is better.\nThe judge says " +
			"(Response A is the first, Response B the second): A is good."},
		{
			name: "the second", args: `{"question":"q","first":"Bad","second":"Good"}`, judge: judgeEither,
			want: "The second answer is better.\nThe judge says (Response A is the first, Response B the second): B " +
				"is good.",
		},
		{name: "even", args: ask, judge: always("Feedback: A. [RESULT] A"), want: "They are even: asked with the " +
			"answers swapped, the judge decided differently. Take either one."},
		{name: "a secret in its words", args: ask, judge: inTurn("Feedback: sk-abcdefghijklmnopqrstuvwxyz [RESULT] A",
			"Feedback: b [RESULT] B"), want: "The first answer is better.\nThe judge says (Response A is the first, " +
			"Response B the second): [redacted: api key]"},
		{
			name: "nothing to compare", args: `{"question":"q","first":"a","second":" "}`, code: subjects.CodeTool,
			says: "second is missing",
		},
		{name: "no question", args: `{"first":"a","second":"b"}`, code: subjects.CodeTool, says: "question is missing"},
		{
			name: "another argument", args: `{"question":"q","first":"a","second":"b","third":"c"}`,
			code: subjects.CodeTool, says: "bad arguments",
		},
		{name: "no object", args: `[]`, code: subjects.CodeTool, says: "bad arguments"},
		{
			name: "too long", args: `{"question":"q","first":"a","second":"` + strings.Repeat("b", maxArgAnswer+1) +
				`"}`,
			code: subjects.CodeTool, says: "at most 12000",
		},
		{name: "a question too long", args: `{"question":"` + strings.Repeat("q", maxArgQuestion+1) +
			`","first":"a","second":"b"}`, code: subjects.CodeTool, says: "at most 4000"},
		{name: "unreadable", args: ask, judge: always("both"), code: subjects.CodeTool, says: "choose yourself"},
		{name: "the script", args: ask, judge: judgeEither, chunk: subjects.ChatChunk{
			Model:     "built-in",
			DemoModel: true,
		}, code: subjects.CodeUnavailable, says: "the built-in demo model stands in; choose " +
			"yourself"},
		{
			name: "busy", args: ask, judge: fails(subjects.Faultf(subjects.CodeBusy, "full")),
			code: subjects.CodeUnavailable, says: "retry once, or choose yourself",
		},
		{
			name: "nobody there", args: ask, judge: fails(subjects.Faultf(subjects.CodeUnavailable, "gone")),
			code: subjects.CodeUnavailable, says: "retry once, or choose yourself",
		},
		{
			name: "no model", args: ask,
			judge: fails(subjects.Faultf(subjects.CodeModelMissing, "fetch it with: ollama "+
				"pull x")), code: subjects.CodeUnavailable,
			says: "no model judged: fetch it with: ollama pull x; choose yourself",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.judge = c.judge
			if c.chunk.Model != "" {
				w.last = c.chunk
			}
			res, err := w.compareOrder(c.args)
			if err != nil {
				t.Fatal(err)
			}
			if res.CallID != "c1" || res.QueryID != "q1" || res.Tool != "compare_answers" || res.Result != c.want {
				t.Errorf("%+v, want %q", res, c.want)
			}
			if (res.Error == nil) != (c.code == "") || res.Error != nil &&
				(res.Error.Code != c.code || !strings.Contains(res.Error.Text, c.says)) {
				t.Errorf("%+v, want %s with %q", res.Error, c.code, c.says)
			}
			if len(w.rec.Published()) > 0 {
				t.Errorf("it says %+v", w.rec.Published())
			}
		})
	}
	w := newHarness(t)
	w.setJudge(inTurn("Feedback: "+strings.Repeat("words ", 2000)+"[RESULT] A", "Feedback: b [RESULT] B"))
	if res, err := w.compareOrder(ask); err != nil || len(res.Result) > maxResultFeedback+200 ||
		len(res.Result) < maxResultFeedback {
		t.Errorf("%d bytes, %v", len(res.Result), err)
	}
}

// TestToolFacts: the tool does nothing but answer, and what it takes fits its bounds.
func TestToolFacts(t *testing.T) {
	t.Parallel()
	all := Tools()
	if len(all) != 1 || all[0].Facts.Name != all[0].Schema.Name ||
		subjects.ZoneOf(all[0].Facts.Name) != all[0].Facts.Zone {
		t.Fatalf("%+v", all)
	}
	f := all[0].Facts
	for _, e := range []policy.Effect{policy.ReadsPrivate, policy.Remember} {
		if f.Has(e) {
			t.Errorf("it has the effect %v", e)
		}
	}
	if !f.Known || f.Effects.String() != policy.Declare().String() || f.Timeout != 5*time.Minute ||
		f.MaxArgs < 4*(maxArgQuestion+2*maxArgAnswer+maxArgReference) || f.MaxArgs > subjects.ToolCallService.Limit() {
		t.Errorf("%+v", f)
	}
	var schema struct {
		Properties map[string]struct {
			MaxLength int `json:"maxLength"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(all[0].Schema.Parameters, &schema); err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]int{
		"question": maxArgQuestion, "first": maxArgAnswer, "second": maxArgAnswer,
		"reference": maxArgReference,
	} {
		if schema.Properties[name].MaxLength != most {
			t.Errorf("%s: the schema says %d and the tool %d", name, schema.Properties[name].MaxLength, most)
		}
	}
}
