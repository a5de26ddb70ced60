package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/subjects"
)

func request(n int, change func(*subjects.ApprovalRequest)) subjects.ApprovalRequest {
	r := subjects.ApprovalRequest{
		ID: fmt.Sprintf("%04x0000", n), SessionID: "s", QueryID: "q", Caller: "generator", Tool: "mail_send",
		Args: json.RawMessage(fmt.Sprintf(`{"to":"p%d@example.org"}`, n)), Reason: fmt.Sprintf("reason %d", n),
	}
	if change != nil {
		change(&r)
	}
	return r
}

func TestNextBatch(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change     func(*subjects.ApprovalRequest)
		isTogether bool
	}{
		"same tool and question": {nil, true},
		"other arguments":        {func(r *subjects.ApprovalRequest) { r.Args = nil }, true},
		"other tool":             {func(r *subjects.ApprovalRequest) { r.Tool = "mail_delete" }, false},
		"other question":         {func(r *subjects.ApprovalRequest) { r.QueryID = "q2" }, false},
		"other session":          {func(r *subjects.ApprovalRequest) { r.SessionID = "s2" }, false},
		"other caller":           {func(r *subjects.ApprovalRequest) { r.Caller = "generator.coder-1" }, false},
		"other untrusted content": {func(r *subjects.ApprovalRequest) {
			r.Taint = []subjects.Taint{{Tool: "web_fetch", From: "https://evil.example/"}}
		}, false},
		"other grants": {func(r *subjects.ApprovalRequest) {
			r.Grants = []subjects.Grant{{Clause: "Send it", Acts: []string{"send"}}}
		}, false},
		"no question":          {func(r *subjects.ApprovalRequest) { r.QueryID = "" }, false},
		"a question of a call": {func(r *subjects.ApprovalRequest) { r.Form = &subjects.UserForm{} }, false},
	} {
		other := request(2, tt.change)
		for _, all := range [][]subjects.ApprovalRequest{{request(1, nil), other}, {other, request(1, nil)}} {
			if b, more := NextBatch(all); (len(b) == 2) != tt.isTogether || more != 0 || b[0].ID != all[0].ID {
				t.Errorf("%s: %d together, %d more", name, len(b), more)
			}
		}
	}
	alone := request(1, func(r *subjects.ApprovalRequest) { r.QueryID = "" })
	if b, _ := NextBatch([]subjects.ApprovalRequest{alone, alone}); len(b) != 1 {
		t.Errorf("%d calls of no question together", len(b))
	}
	var many []subjects.ApprovalRequest
	for i := range MaxBatch + 5 {
		many = append(many, request(i, nil))
	}
	b, more := NextBatch(many)
	if len(b) != MaxBatch || more != 5 {
		t.Errorf("%d together, %d more", len(b), more)
	}
	if d, _ := b.Parse("y", ""); len(d) != MaxBatch || d[MaxBatch-1].ID != many[MaxBatch-1].ID {
		t.Errorf("what is not shown was decided: %+v", d)
	}
}

// TestBatchPrint: each call has its id, its complete arguments and its reason, and what is not shown is counted.
func TestBatchPrint(t *testing.T) {
	t.Parallel()
	b := Batch{request(1, nil), request(2, nil), request(3, func(r *subjects.ApprovalRequest) {
		r.Args = json.RawMessage(`{"to":"` + strings.Repeat("x", 5000) + `.evil.example\u202e"}`)
		r.Sinks = []string{"evil.example"}
	})}
	var w strings.Builder
	b.Print(&w, 7, time.Now())
	for _, want := range []string{
		"generator requests 3 calls of mail_send", "  1  00010000", "  2  00020000", "  3  00030000",
		`"p1@example.org"`, `"p2@example.org"`, `.evil.example\u202e`, "reason 1", "reason 2",
		"target     evil.example", "7 calls not shown: asked about afterwards",
	} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("%q is not shown:\n%s", want, w.String())
		}
	}
}

func TestBatchParse(t *testing.T) {
	t.Parallel()
	b := Batch{request(1, nil), request(2, nil), request(3, nil), request(4, nil), request(5, nil)}
	for _, tt := range []struct{ line, word, want string }{
		{"y", "", "+++++"},
		{" Yes ", "", "+++++"},
		{"all", "", "+++++"},
		{"", "", "-----"},
		{"n", "", "-----"},
		{"none", "", "-----"},
		{"NO", "", "-----"},
		{"1,3-5", "", "+-+++"},
		{"2", "", "-+---"},
		{"1 4", "", "+--+-"},
		{"3-3", "", "--+--"},
		{"0", "", ""},
		{"6", "", ""},
		{"1-6", "", ""},
		{"5-1", "", ""},
		{"-1", "", ""},
		{"1,", "", "+----"},
		{",", "", ""},
		{"1,x", "", ""},
		{"y 2", "", ""},
		{"hello", "", ""},
		{"s", "", ""}, // remembering is for one call
		{"99999999999999999999", "", ""},
		{"1,2", "0001", ""}, // pasted numbers
		{"y", "0001", ""},
		{"0001", "0001", "+++++"},
		{"0001 y", "0001", "+++++"},
		{"0001 1,3-5", "0001", "+-+++"},
		{"0001 9", "0001", ""},
		{"0002", "0001", ""}, // the word of another request
		{"", "0001", "-----"},
		{"n", "0001", "-----"},
	} {
		got := ""
		decisions, complaint := b.Parse(tt.line, tt.word)
		for i, d := range decisions {
			sign := "-"
			if d.Approve {
				sign = "+"
			}
			got += sign
			if d.ID != b[i].ID || d.Remember != "" {
				t.Errorf("%q: %+v", tt.line, d)
			}
		}
		if got != tt.want || (complaint == "") != (tt.want != "") {
			t.Errorf("%q with the word %q: %q, %q, want %q", tt.line, tt.word, got, complaint, tt.want)
		}
	}
}

// TestScreenAsksAgain: after decisions that could not all be sent, the calls that still wait are asked about again.
func TestScreenAsksAgain(t *testing.T) {
	t.Parallel()
	_, slave := termtest.Open(t)
	var shown bytes.Buffer
	s := newScreen(AnswerOptions{Streams: term.NewStreams(nil, slave, &shown)})
	defer s.spinner.stop()
	s.waiting = []subjects.ApprovalRequest{request(1, nil), request(2, nil)}
	s.AskAgain() // nobody was asked
	s.prompt()
	s.asked = time.Time{}
	if got := s.Decide("0001"); len(got) != 2 {
		t.Fatalf("decided %+v", got)
	}
	s.decided(subjects.ApprovalReply{ID: s.batch[0].ID, State: subjects.ApprovalApproved})
	s.AskAgain()
	s.asked = time.Time{}
	if n := strings.Count(shown.String(), "run these 2 calls of mail_send?"); n != 2 {
		t.Errorf("asked %d times: %s", n, shown.String())
	}
	if got := s.Decide("0001"); len(got) != 1 || got[0].ID != "00020000" {
		t.Errorf("decided %+v", got)
	}
}
