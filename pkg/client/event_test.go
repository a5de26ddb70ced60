package client

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

func TestDecodeLive(t *testing.T) {
	t.Parallel()
	live := nats.Header{
		"Nats-Stream": {"forged", "EVENTS"}, "Nats-Sequence": {"1", "7"},
		"Nats-Subject": {"from.broker.tool.result.x", "from.generator.response.generation"},
	}
	for _, tt := range []struct {
		name    string
		msg     nats.Msg
		shown   bool
		from    string
		body    string
		session string
	}{
		{"live copy, the server's headers last", nats.Msg{
			Subject: "response.generation", Header: live,
			Data: []byte(`{"session_id": "s"}`),
		}, true, "generator", `{"session_id":"s"}`, "s"},
		{"one's own original", nats.Msg{Subject: "query.received", Data: []byte("hi")}, false, "", "", ""},
		{
			"live token",
			nats.Msg{Subject: "response.delta.q", Data: []byte(`{"n":1}`), Header: live},
			true, "",
			`{"n":1}`, "",
		},
		{"an inbox", nats.Msg{Subject: "_INBOX.x.y", Data: []byte("x")}, false, "", "", ""},
		{"discovery", nats.Msg{Subject: "$SRV.PING"}, false, "", "", ""},
		{"the API", nats.Msg{Subject: "core.API.STREAM.INFO.EVENTS"}, false, "", "", ""},
		{"msgpack", nats.Msg{
			Subject: "tool.output.x", Data: []byte("\x81\xa1n\x01"),
			Header: nats.Header{"Content-Type": {"application/msgpack"}},
		}, true, "", `{"n":1}`, ""},
		{"nonsense", nats.Msg{Subject: "tool.output.x", Data: []byte("{\xff")}, true, "", `"{` + "\uFFFD" + `"`, ""},
		{"empty", nats.Msg{Subject: "tool.output.x"}, true, "", "null", ""},
	} {
		s, ok := decodeLive(&tt.msg)
		if ok != tt.shown || s.From != tt.from || string(s.Body) != tt.body || s.Session != tt.session {
			t.Errorf("%s: %v %+v %s", tt.name, ok, s, s.Body)
		}
	}
	if s, _ := decodeLive(&nats.Msg{Subject: "response.generation", Header: live}); s.Seq != 7 || s.Stream != EventLog {
		t.Errorf("%+v", s)
	}
}

// TestReadGrade: only the critic's account grades, and the event log says whose event it is.
func TestReadGrade(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, from, body string
		read             bool
	}{
		{"the critic's", "critic", `{"query_id":"q1","respondent_id":"generator","score":4}`, true},
		{
			"trick: respondent B grades itself", "respondent_b",
			`{"query_id":"q1","respondent_id":"generator","score":5}`,
			false,
		},
		{"no object", "critic", `"generator"`, false},
	} {
		e := Event{Subject: "critique.result", From: tt.from, Body: json.RawMessage(tt.body)}
		if g := ReadGrade(e); (g != nil) != tt.read {
			t.Errorf("%s: %+v", tt.name, g)
		}
	}
	for name, body := range map[string]string{
		"respondent B's grade":                `{"query_id":"q1","respondent_id":"respondent_b","score":5}`,
		"trick: another question in the body": `{"query_id":"q2","respondent_id":"generator","score":5}`,
		"without a respondent":                `{"query_id":"q1","score":5}`,
	} {
		q := &Query{ID: "q1", respondent: subjects.Generator, calls: map[string]string{}}
		if q.readUpdate(Event{
			Subject: "critique.result", From: "critic", Query: "q1",
			Body: json.RawMessage(body),
		}); q.grade != nil {
			t.Errorf("%s: %+v", name, q.grade)
		}
	}
}

func TestCountPieces(t *testing.T) {
	t.Parallel()
	pieces := func(n, size int) []subjects.DocumentPiece {
		all := make([]subjects.DocumentPiece, n)
		for i := range all {
			all[i] = subjects.DocumentPiece{Heading: "h", Text: strings.Repeat("x", size)}
		}
		return all
	}
	for _, tt := range []struct {
		name string
		in   []subjects.DocumentPiece
		want []int
	}{
		{"none", nil, nil},
		{"one", pieces(1, 10), []int{1}},
		{"a full message", pieces(64, 10), []int{64}},
		{"one more", pieces(65, 10), []int{64, 1}},
		{"large ones", pieces(64, 8000), []int{32, 32}},
		{"trick: a piece that is too large is still sent", pieces(2, 300<<10), []int{1, 1}},
	} {
		var got []int
		for rest := tt.in; len(rest) > 0; {
			n := countPieces(rest)
			got, rest = append(got, n), rest[n:]
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestRetryText includes the critic's feedback only for an answer without untrusted content.
func TestRetryText(t *testing.T) {
	t.Parallel()
	feedback := &subjects.Grades{Critic: 1, Feedback: "Too\nlong\x1b[2J."}
	for _, tt := range []struct {
		name string
		turn subjects.Turn
		want string
	}{
		{"nothing known", subjects.Turn{Query: "Why?"}, "Why?\n\n" + subjects.RetryInstruction},
		{
			"trusted",
			subjects.Turn{Query: "Why?", Grades: feedback, Labels: &subjects.Labels{Trust: subjects.Trusted}},
			"Why?\n\n" + subjects.RetryInstruction + " A critic said of it: Too\uFFFDlong\uFFFD[2J.",
		},
		{"untrusted", subjects.Turn{
			Query: "Why?", Grades: feedback,
			Labels: &subjects.Labels{Trust: subjects.Untrusted},
		}, "Why?\n\n" + subjects.RetryInstruction},
		{"trick: no labels", subjects.Turn{Query: "Why?", Grades: feedback}, "Why?\n\n" + subjects.RetryInstruction},
		{
			"trick: labels that say nothing",
			subjects.Turn{Query: "Why?", Grades: feedback, Labels: &subjects.Labels{}},
			"Why?\n\n" + subjects.RetryInstruction,
		},
		{
			"the third try",
			subjects.Turn{Query: "Why?\n\n" + subjects.RetryInstruction + " A critic said of it: bad"},
			"Why?\n\n" + subjects.RetryInstruction,
		},
		{"a grade without words", subjects.Turn{
			Query: "Why?", Grades: &subjects.Grades{Critic: 2},
			Labels: &subjects.Labels{Trust: subjects.Trusted},
		}, "Why?\n\n" + subjects.RetryInstruction},
	} {
		if got := RetryText(tt.turn); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	long := subjects.Turn{
		Query: "Why?", Grades: &subjects.Grades{Feedback: strings.Repeat("x", 4*retryWords)},
		Labels: &subjects.Labels{Trust: subjects.Trusted},
	}
	if got := RetryText(long); len(got) > 2*retryWords {
		t.Errorf("%d bytes", len(got))
	}
}

func TestReadOutcome(t *testing.T) {
	t.Parallel()
	const answer, dead = "response.generation", "dead.generator"
	for _, tt := range []struct {
		name string
		e    Event
		want string // answer, or code of the dead letter; "" = none
		fail bool
	}{
		{
			"answer",
			Event{Subject: answer, From: "generator", Body: []byte(`{"query_id":"q","answer":"yes"}`)},
			"yes",
			false,
		},
		{
			"answer of an earlier build, with a former field name",
			Event{Subject: answer, From: "generator", Body: []byte(`{"query_id":"q","answer":"yes","stand_in":true}`)},
			"yes", false,
		},
		{"answer of respondent B", Event{
			Subject: answer, From: "respondent_b",
			Body: []byte(`{"query_id":"q","answer":"no"}`),
		}, "", false},
		{"trick: answer of another account", Event{
			Subject: answer, From: "tool_web_fetch",
			Body: []byte(`{"query_id":"q","answer":"no"}`),
		}, "", false},
		{
			"trick: answer to another question in the body",
			Event{Subject: answer, From: "generator", Body: []byte(`{"query_id":"other","answer":"no"}`)},
			"", false,
		},
		{
			"answer that cannot be decoded",
			Event{Subject: answer, From: "generator", Body: []byte(`{"query_id":7}`)},
			"",
			true,
		},
		{
			"dead letter",
			Event{
				Subject: dead, From: "generator",
				Body: []byte(`{"subject":"turn.3.s","code":"internal","reason":"given up"}`),
			},
			"internal", false,
		},
		{"trick: dead letter of another account", Event{
			Subject: dead, From: "tool_web_fetch",
			Body: []byte(`{"subject":"turn.3.s","code":"internal"}`),
		}, "", false},
		{
			"another event",
			Event{Subject: "answer.dialog", From: "generator", Body: []byte(`{"query_id":"q"}`)},
			"",
			false,
		},
	} {
		tt.e.Query, tt.e.Seq = "q", 7
		end, err := ReadOutcome(tt.e, subjects.Generator)
		got := ""
		switch {
		case end == nil:
		case end.Response != nil:
			got = end.Response.Answer
		default:
			got = end.Dead.Code
		}
		if got != tt.want || (err != nil) != tt.fail || end != nil && end.Seq != 7 {
			t.Errorf("%s: %q %v", tt.name, got, err)
		}
	}
}
