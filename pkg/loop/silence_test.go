package loop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/model"
)

// A reply that goes on is not ended, however long it takes in all.
func TestSlowReplyIsNotCutWhileTokensCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := scriptedReply{each: 100 * time.Second, chunks: []model.Chunk{
			{Content: "one "},
			{Content: "two "},
			{Content: "three", Done: true},
		}}
		a, _ := newAgent(t, slow)
		start := time.Now()
		s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
		wantAnswer(t, s, err, "one two three", false)
		if d := time.Since(start); d != 300*time.Second {
			t.Errorf("it took %s", d)
		}
	})
}

// The text before the silence is kept as a partial answer, and the note names the setting and its file.
func TestSilenceAfterTextKeepsThePartialAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAgent(t,
			scriptedReply{each: time.Minute, chunks: []model.Chunk{{Content: "It is "}, {Content: "late"}}, wait: true})
		a.Settings = "generator.yaml"
		start := time.Now()
		s, err := RunTurn(t.Context(), a, question("q"), Hooks{})
		wantAnswer(t, s, err, "It is late", true)
		wantNotes(t, s, NoteCut)
		if d := time.Since(start); d != 4*time.Minute {
			t.Errorf("it ended after %s, not two minutes after the last token", d)
		}
		if want := "nothing came for 2m0s (call_timeout in generator.yaml); the answer is " +
			"incomplete"; !strings.Contains(s.Notes[0].Text, want) {
			t.Errorf("note %q", s.Notes[0].Text)
		}
	})
}

// The first token may take as long as the server needs for the prompt, by its measured speed.
func TestFirstTokenLimitFollowsTheExpectedReadingTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reading *model.Reading
		first   time.Duration // when the first token comes
		ends    time.Duration
		fails   string
	}{
		"nothing measured, in time": {nil, 290 * time.Second, 290 * time.Second, ""},
		"nothing measured, too late": {nil, 310 * time.Second, 300 * time.Second, "the model began no reply within " +
			"5m0s (first_token_timeout in generator.yaml)"},
		"a short prompt has the floor": {
			&model.Reading{Tokens: 100, Expected: time.Second}, 310 * time.Second,
			300 * time.Second, "about 100 tokens within 5m0s",
		},
		"a long prompt has longer": {
			&model.Reading{Tokens: 9000, Expected: 3 * time.Minute}, 700 * time.Second,
			700 * time.Second, "",
		},
		"a long prompt is bounded too": {
			&model.Reading{Tokens: 9000, Expected: 3 * time.Minute}, 730 * time.Second,
			720 * time.Second, "about 9000 tokens within 12m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				reply := scriptedReply{each: c.first, chunks: []model.Chunk{{Content: "yes", Done: true}}}
				if c.reading != nil {
					reply.chunks = append([]model.Chunk{{Reading: c.reading}}, reply.chunks...)
				}
				a, _ := newAgent(t, reply)
				a.Limits.TurnTimeout, a.Settings = -1, "generator.yaml"
				var seen *model.Reading
				start := time.Now()
				s, err := RunTurn(t.Context(), a, question("q"), Hooks{Reading: func(_ int, r model.Reading) {
					seen = &r
				}})
				if d := time.Since(start); d != c.ends {
					t.Errorf("it ended after %s, want %s", d, c.ends)
				}
				if (seen == nil) != (c.reading == nil) || seen != nil && *seen != *c.reading {
					t.Errorf("reported reading %+v", seen)
				}
				if c.fails == "" {
					wantAnswer(t, s, err, "yes", false)
					return
				}
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.fails) || !s.Partial {
					t.Errorf("error %v, partial %v", err, s.Partial)
				}
			})
		})
	}
}

// A notice about the machine of the model is reported each time and noted once; it is no part of the reply, and does
// not count as the first token.
func TestNoticeIsReportedEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := model.Chunk{Notice: "the connection to gpu-box is interrupted"}
		a, _ := newAgent(t,
			scriptedReply{each: time.Minute, chunks: []model.Chunk{
				gone,
				{Notice: "the connection to gpu-box is back"},
				gone,
				{Content: "yes", Done: true},
			}})
		a.Limits.TurnTimeout = -1
		var told []string
		s, err := RunTurn(t.Context(), a, question("q"), Hooks{Note: func(n Note) { told = append(told, n.Text) }})
		wantAnswer(t, s, err, "yes", false)
		if len(told) != 3 || told[0] != gone.Notice || told[2] != gone.Notice || len(s.Notes) != 2 ||
			s.Notes[0].Code != NoteMachine {
			t.Errorf("told %q, notes %+v", told, s.Notes)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAgent(t, scriptedReply{
			chunks: []model.Chunk{{Notice: "the connection to gpu-box is interrupted"}},
			wait:   true,
		})
		a.Limits.TurnTimeout = -1
		start := time.Now()
		if _, err := RunTurn(t.Context(), a, question("q"), Hooks{}); err == nil || time.Since(start) != 5*time.Minute {
			t.Errorf("%v after %s: a notice changed the time for the first token", err, time.Since(start))
		}
	})
}
