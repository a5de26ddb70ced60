package digest

import (
	"encoding/json"
	"strings"
	"testing"

	"conclave/pkg/text"
)

func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "{", "[]", "null", `{"name": "a"}`, fill(f, nil), "```json\n{}\n```",
		"<think>{</think>{}", `{"a":1,"A":2}`, `{"name":"\ud800"}`,
		`{"entities":["Oslo",1,null]}`,
		`{"relations":[{"subject":"I","predicate":"lives in","object":"Oslo","tense":"is"}]}`,
		`{"segments":[{"n":1,"quote":"none"}]}`, strings.Repeat(`{"a":`, 20) + "1" +
			strings.Repeat("}", 20), `{"name":"` + strings.Repeat("w ", 30) + `"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, said string) {
		if r, err := readReply(said); err == nil && r == nil {
			t.Error("neither a reply nor an error")
		}
		d := New(Options{Ask: says(said)})
		got, err := d.Answer(t.Context(), asked, answer, false)
		if err != nil {
			t.Fatal(err)
		}
		bounded(t, got)
		if got, err = d.Answer(t.Context(), asked, pageAnswer, true); err != nil {
			t.Fatal(err)
		}
		bounded(t, got)
		if _, err := d.Refine(t.Context(), "", got.Corpus, true, true); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzSegments(f *testing.F) {
	f.Add("dentist", long, `The appointment is on Friday at eleven.`)
	f.Add("", "", "")
	f.Add("a b", "a. b. c.", "a ... c")
	f.Add("東京", "東京は雨。大阪は晴れ。", "東京は雨")
	f.Add("x", strings.Repeat("word ", 200), "word word")
	f.Add("\xff", "\xff\u202e a", "none")
	f.Fuzz(func(t *testing.T, query, body, said string) {
		query, body, said = text.Cut(query, 1<<10), text.Cut(body, 4<<10), text.Cut(said, 4<<10)
		reply, err := json.Marshal(map[string]any{"segments": []any{map[string]any{"n": 1, "quote": said}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{{}, {Ask: says(string(reply))}} {
			got, _, err := New(o).Segments(t.Context(), query, []string{body, said})
			if err != nil || len(got) != 2 {
				t.Fatalf("%q, %v", got, err)
			}
			verbatim(t, got[0], cleanText(text.Cut(body, maxCorpus)))
			verbatim(t, got[1], cleanText(text.Cut(said, maxCorpus)))
		}
	})
}
