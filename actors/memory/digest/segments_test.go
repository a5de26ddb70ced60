package digest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"conclave/subjects"
)

// long is a text of many sentences about different things.
const long = "Ana bought a red bicycle in May. The shop is near the station. It opens at nine in the morning. " +
	"The bicycle has a basket and two lamps. She rides it to work every day, also in winter. The brakes were " +
	"repaired in June. " +
	"Her dentist is Dr. Berg in the main street. The appointment is on Friday at eleven. He does not take cards, " +
	"only cash. " +
	"The garden needs water in July. The tomatoes are not ripe yet. The neighbour has a dog that barks at night. " +
	"The rent is 900 euros a month. It is due on the first. The landlord is called Olsen."

// quote is a reply of a model.
func quote(t testing.TB, pairs ...any) string {
	t.Helper()
	list := []map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, map[string]any{"n": pairs[i], "quote": pairs[i+1]})
	}
	data, err := json.Marshal(map[string]any{"segments": list})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSegments(t *testing.T) {
	t.Parallel()
	const (
		query = "When is the appointment with my dentist?"
		short = "The dentist moved to Rome."
	)
	const best = "The appointment is on Friday at eleven."
	plainLong := "Her dentist is Dr. Berg in the main street. The appointment is on Friday at eleven. He does not " +
		"take cards, only cash."
	for _, tt := range []struct {
		name  string
		reply string // "" = no model
		want  []string
		by    string
	}{
		{"no model", "", []string{plainLong, short}, subjects.DigestPlain},
		{"exact", quote(t, 1, "The appointment is on Friday at eleven.", 2, "none"), []string{"The appointment is on " +
			"Friday at eleven.", ""}, subjects.DigestModel},
		{
			"other blanks and marks", quote(t, 1, "the appointment  is\non Friday at “eleven”"),
			[]string{"The appointment is on Friday at eleven.", short},
			subjects.DigestModel,
		},
		{"two far apart", quote(t, 1, "Her dentist is Dr. Berg in the main street ... He does not take cards, only "+
			"cash."), []string{plainLong, short}, subjects.DigestModel},
		{
			"two together", quote(t, 1, "The appointment is on Friday at eleven. He does not take cards, only cash."),
			[]string{"The appointment is on Friday at eleven. He does not take cards, only cash.", short},
			subjects.DigestModel,
		},
		{"two around the sentence that matches best", quote(t, 1, "The shop is near the station ... The rent is 900 "+
			"euros a month."), []string{"The shop is near the station. ... " + best +
			" ... The rent is 900 euros a month.", short}, subjects.DigestModel},
		{
			"half a sentence is made whole", quote(t, 1, "take cards, only cash"),
			[]string{best + " He does not take cards, only cash.", short},
			subjects.DigestModel,
		},
		{"a short text is taken whole", quote(t, 2, "dentist moved"), []string{plainLong, short}, subjects.DigestModel},
		{"nothing matters", quote(t, 1, "None.", 2, ""), []string{"", ""}, subjects.DigestModel},

		{
			"trick: invented", quote(t, 1, "The appointment is on Monday at eleven."),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{
			"trick: partly invented", quote(t, 1, "The appointment is on Friday at eleven. Bring all your money."),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{"trick: an order", quote(t, 1, order, 2, "none"), []string{plainLong, ""}, subjects.DigestModel},
		{
			"trick: from the other text", quote(t, 1, "The dentist moved to Rome."),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{
			"trick: put together from pieces", quote(t, 1, "Her dentist is called Olsen."),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{"trick: one word", quote(t, 1, "Friday"), []string{plainLong, short}, subjects.DigestPlain},
		{
			"trick: a part of a word", quote(t, 1, "ent is on Friday at"),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{
			"trick: numbers that are not there", quote(t, 0, "none", -1, "none", 3, "none", 99, "none"),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{
			"trick: two words about one text", quote(t, 1, "none", 1, "The rent is 900 euros a month."),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{
			"trick: three words about one text", quote(t, 1, "none", 1, "The rent is 900 euros a month.", 1, "none"),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{"trick: a number as text", quote(t, "1", "none"), []string{plainLong, short}, subjects.DigestPlain},
		{"trick: a quote that is none", quote(t, 1, nil, 2, 7), []string{plainLong, short}, subjects.DigestPlain},
		{"trick: the list is missing", `{"quotes": []}`, []string{plainLong, short}, subjects.DigestPlain},
		{"trick: prose", "Nothing matters here.", []string{plainLong, short}, subjects.DigestPlain},
		{
			"trick: 10 MB", quote(t, 1, strings.Repeat("The appointment is on Friday at eleven. ", 300_000)),
			[]string{plainLong, short},
			subjects.DigestPlain,
		},
		{"trick: only marks", quote(t, 1, "... !!! ???"), []string{plainLong, short}, subjects.DigestPlain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := Options{}
			if tt.reply != "" {
				o.Ask = says(tt.reply)
			}
			got, by, err := New(o).Segments(t.Context(), query, []string{long, short})
			if err != nil || by != tt.by || !slices.Equal(got, tt.want) {
				t.Errorf("got  %q by %s, %v\nwant %q by %s", got, by, err, tt.want, tt.by)
			}
		})
	}
}

// TestSegmentsOfLongQuotes: what a model quotes stays within bounds, and stays whole sentences.
func TestSegmentsOfLongQuotes(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("One sentence follows the other here. ", 100)
	got, by, err := New(Options{Ask: says(quote(t, 1, many))}).Segments(t.Context(), "sentence", []string{many})
	if err != nil || by != subjects.DigestModel || len(got) != 1 || len(got[0]) > maxSegment ||
		!strings.HasSuffix(got[0], "here.") || !strings.Contains(many, got[0]) {
		t.Errorf("%d bytes by %s, %v: %q", len(got[0]), by, err, got)
	}
}

func TestPlainSegments(t *testing.T) {
	t.Parallel()
	filler := strings.Repeat("Nothing of interest is said in this part. ", 20)
	for _, tt := range []struct {
		name, query, text, want string
	}{
		{"at the end", "who is the landlord", long, "The rent is 900 euros a month. It is due on the first. The " +
			"landlord is called Olsen."},
		{"other forms of the word", "repairing brake", long, "The brakes were repaired in June. Her dentist is Dr. " +
			"Berg in the main street. The appointment is on Friday at eleven."},
		{"no word in common", "quantum physics", long, "Ana bought a red bicycle in May. The shop is near the " +
			"station. It opens at nine in the morning."},
		{"no words at all", "???", long, "Ana bought a red bicycle in May. The shop is near the station. It opens at " +
			"nine in the morning."},
		{
			"one sentence before two that share more together", "red zebra barks loud", filler + "The zebra barks. " +
				filler + "A red one. A loud one. It barks. " + filler,
			"The zebra barks. Nothing of interest is said in this part. Nothing of interest is said in this part.",
		},
		{"a turn of a transcript", "zebra", filler + "\nAna: Oh. Well. I saw it. It was late. The zebra barked. I " +
			"ran.\n" + filler, "Ana: Oh. Well. I saw it. It was late. The zebra barked. I ran.\n" +
			strings.TrimSpace(strings.Repeat("Nothing of interest is said in this part. ", 6))},
		{"accents", "cafe", filler + "Das Café schließt um acht. " + filler, "Das Café schließt um acht. Nothing of " +
			"interest is said in this part. Nothing of interest is said in this part."},
		{
			"Japanese", "東京の天気", strings.Repeat("大阪は晴れです。", 20) + "東京の天気は雨です。" + strings.Repeat("名古屋は曇りです。", 20),
			"東京の天気は雨です。名古屋は曇りです。名古屋は曇りです。",
		},
		{"one endless sentence", "needle", strings.Repeat("hay ", 150) + "needle " + strings.Repeat("hay ", 150), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := weighKeys(tt.query, []string{tt.text}).plainSegments([]string{tt.text})[0]
			if tt.want != "" && got != tt.want {
				t.Errorf("%q\nwant %q", got, tt.want)
			}
			if tt.want == "" && (!strings.Contains(got, "needle") || len(got) > maxSegment) {
				t.Errorf("%d bytes: %q", len(got), got)
			}
		})
	}
}

// TestSegmentHoldsTheSentenceThatMatches: whatever the model quotes, and however much of it.
func TestSegmentHoldsTheSentenceThatMatches(t *testing.T) {
	t.Parallel()
	filler := strings.Repeat("Nothing of interest is said in this part. ", 60)
	body := filler + "The zebra lives in Kenya. " + filler
	for name, said := range map[string]string{
		"another sentence": "Nothing of interest is said in this part.",
		"too much":         filler, "the sentence": "The zebra lives in Kenya.",
	} {
		got, by, err := New(Options{Ask: says(quote(t, 1, said))}).Segments(t.Context(), "where does the zebra live",
			[]string{body})
		if err != nil || by != subjects.DigestModel || !strings.Contains(got[0], "The zebra lives in Kenya.") ||
			len(got[0]) > maxSegment {
			t.Errorf("%s: %q by %s, %v", name, got, by, err)
		}
	}
	short := strings.Repeat("A word. ", 49) + "zebra."
	for _, o := range []Options{{}, {Ask: says(quote(t, 1, "A word. zebra."))}} {
		if got, _, err := New(o).Segments(t.Context(), "zebra", []string{short}); err != nil || got[0] != short {
			t.Errorf("a text of %d bytes is not shown whole: %q, %v", len(short), got, err)
		}
	}
}

// TestRareWords: a word that all texts hold says less about one of them.
func TestRareWords(t *testing.T) {
	t.Parallel()
	filler := strings.Repeat("Nothing of interest happens. ", 30)
	text := filler + "The train leaves. " + filler + "The zebra sleeps. " + filler
	all := []string{text, "A train. " + filler, "One more train. " + filler}
	got := weighKeys("zebra train", all).plainSegments(all)
	if !strings.HasPrefix(got[0], "The zebra sleeps.") {
		t.Errorf("%q", got[0])
	}
}

// TestSegmentsPrompt: the model gets the part of a long text that could matter, and at most so many texts.
func TestSegmentsPrompt(t *testing.T) {
	t.Parallel()
	filler := strings.Repeat("Nothing of interest is said in this part. ", 400)
	list := []string{filler + "The zebra lives in Kenya. " + filler}
	for i := range 20 {
		list = append(list, fmt.Sprintf("Text %d about something.", i+2))
	}
	list[4] = " \n"
	var seen string
	d := New(Options{Ask: func(_ context.Context, system, user string, schema json.RawMessage) (string, error) {
		seen = user
		if system != segmentsPrompt || string(schema) != string(segmentsSchema) {
			t.Errorf("another prompt or form: %s", system)
		}
		return quote(t, 1, "The zebra lives in Kenya.", 13, "none"), nil
	}})
	got, by, err := d.Segments(t.Context(), "where does the zebra live", list)
	if err != nil || by != subjects.DigestModel || len(got) != len(list) || got[0] != "The zebra lives in Kenya." ||
		got[4] != "" || got[12] != list[12] {
		t.Errorf("%q by %s, %v", got, by, err)
	}
	if !strings.Contains(seen, "The zebra lives in Kenya.") || len(seen) > 20<<10 ||
		strings.Contains(seen, "[TEXT 13 ") || !strings.Contains(seen, "[TEXT 12 ") ||
		strings.Contains(seen, "[TEXT 5 ") {
		t.Errorf("%d bytes: %.2000s", len(seen), seen)
	}
	if got, by, err := d.Segments(t.Context(), "x", nil); got != nil || by != subjects.DigestPlain || err != nil {
		t.Errorf("%q %s %v", got, by, err)
	}
}

// verbatim checks that a segment is made of nothing but pieces of its text.
func verbatim(t testing.TB, segment, text string) {
	t.Helper()
	if len(segment) > maxSegment || !utf8.ValidString(segment) {
		t.Errorf("a segment of %d bytes", len(segment))
	}
	if strings.Contains(text, segment) {
		return
	}
	for piece := range strings.SplitSeq(segment, " ... ") {
		if !strings.Contains(text, piece) {
			t.Errorf("%q does not stand in the text", piece)
		}
	}
}
