package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// headMessages returns n messages of a stream.
func headMessages(stream string, n int) (out []Stored) {
	for i := range n {
		out = append(out, Stored{
			Stream: stream, Seq: uint64(i + 1), Subject: "audit.x.y",
			Data: fmt.Appendf(nil, "%s %d", stream, i),
		})
	}
	return out
}

// headOf returns the head of messages.
func headOf(msgs ...[]Stored) LogHead {
	var h HeadHasher
	for _, m := range slices.Concat(msgs...) {
		h.Add(m)
	}
	return h.Head()
}

func TestLogHeadTextFormIsParsed(t *testing.T) {
	all := headOf(headMessages("", 3), headMessages("model", 5), headMessages("memory", 2))
	old := headOf(headMessages("", 3))
	if !strings.Contains(all.String(), "-3+memory.2+model.5-") || !strings.Contains(old.String(), "-3-") {
		t.Errorf("%s, %s", all, old)
	}
	for _, h := range []LogHead{all, old} {
		if got, err := ParseLogHead(h.String()); err != nil || !got.Equal(h) {
			t.Errorf("%s: %v, %v", h, got, err)
		}
	}
	for _, bad := range []string{
		"", "17", old.Log + "-3", strings.Replace(all.String(), "model.5", "model.05", 1),
		strings.Replace(all.String(), "model.5", "model.0", 1),
		strings.Replace(all.String(), "+memory.2+model.5", "+model.5+memory.2", 1), strings.Replace(all.String(),
			"memory.2", "model.5", 1),
		strings.Replace(all.String(), "model.5", "broker.5", 1), strings.Replace(all.String(), "model.5", "a*b.5", 1),
		all.String() + "0",
	} {
		if h, err := ParseLogHead(bad); err == nil {
			t.Errorf("%q was parsed as %s", bad, h)
		}
	}
}

// TestHeadCheckerComparesEveryStream: the kept head is that of 3 messages of the broker, 5 of model and 2 of memory.
func TestHeadCheckerComparesEveryStream(t *testing.T) {
	main, model, memory := headMessages("", 6), headMessages("model", 8), headMessages("memory", 2)
	kept := headOf(main[:3], model[:5], memory)
	changed := slices.Clone(model)
	changed[4].Data = []byte("forged")
	for _, tc := range []struct {
		name string
		log  []Stored
		want string // of the problem; "" = none
	}{
		{"the same log", slices.Concat(main[:3], model[:5], memory), ""},
		{"a longer log, in another order", slices.Concat(model, main, memory), ""},
		{"trick: one stream rolled back", slices.Concat(main, model[:4], memory), "it ends at model/4, and the head " +
			"that the test holds is that of model/5"},
		{"trick: one stream deleted", slices.Concat(main, model), "it ends at memory/0, and the head that the test " +
			"holds is that of memory/2"},
		{"trick: the main stream rolled back", slices.Concat(main[:2], model, memory), "it ends at broker/2"},
		{
			"trick: a message of another stream changed", slices.Concat(main, changed, memory),
			"a message up to broker/3, memory/2, model/5 was changed",
		},
		{
			"trick: the last message of the head deleted", slices.Concat(main, model[:4], model[5:], memory),
			"does not match",
		},
		{"trick: messages of two streams exchanged", slices.Concat(main, headMessages("memory", 8),
			headMessages("model", 2)), "rolled back"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewHeadChecker([]KeptHead{{LogHead: kept, Where: "the test"}})
			for _, m := range tc.log {
				c.Add(m)
			}
			_, problems, foreign := c.Finish()
			switch {
			case len(foreign) > 0:
				t.Errorf("foreign %v", foreign)
			case tc.want == "" && len(problems) > 0, tc.want != "" &&
				(len(problems) == 0 || !strings.Contains(problems[0].Text, tc.want)):
				t.Errorf("problems %v, want %q", problems, tc.want)
			}
		})
	}
	old := NewHeadChecker([]KeptHead{{LogHead: headOf(main[:3]), Where: "an earlier build, which covered one stream"}})
	for _, m := range slices.Concat(main, model, memory) {
		old.Add(m)
	}
	if _, problems, foreign := old.Finish(); len(problems)+len(foreign) > 0 {
		t.Errorf("%v, %v", problems, foreign)
	}
}

// TestMessageOfAnotherWriterIsReported: a writer's stream holds its own messages only, and each stream has its own
// sequences.
func TestMessageOfAnotherWriterIsReported(t *testing.T) {
	s := newFixture(t)
	src := source(s.msgs)
	src.Others = []StreamRange{{Stream: "model", First: 1, Last: 3}}
	walk := src.Messages
	src.Messages = func(yield func(Stored, error) bool) {
		walk(yield)
		yield(Stored{Stream: "model", Seq: 2, Subject: s.msgs[1].Subject, Data: s.msgs[1].Data}, nil)
	}
	r := verifySource(t, src, s.heads)
	want := []string{"message model/1 is missing", "does not write to this stream", "message model/3 is missing"}
	if len(r.Problems) != len(want) {
		t.Fatalf("%v", r.Problems)
	}
	for i, p := range r.Problems {
		if !strings.Contains(p.Text, want[i]) {
			t.Errorf("problem %d is %v, want %q", i, p, want[i])
		}
	}
}
