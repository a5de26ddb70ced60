package subjects

import (
	"strings"
	"testing"
	"time"
)

func TestContextOfAnEntryRejectsInvalidValues(t *testing.T) {
	t.Parallel()
	day := time.Date(2023, 5, 8, 13, 56, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		e    MemoryEntry
		want string // part of the error; "" = accepted
	}{
		{"nothing known", MemoryEntry{}, ""},
		{"everything known", MemoryEntry{
			Conversation: "said 2023-05-08T13:56:00Z", Position: 3, Speaker: "Zoë O'Brien",
			Happened: day,
		}, ""},
		{"longest conversation", MemoryEntry{Conversation: strings.Repeat("a", maxConversation)}, ""},
		{"conversation too long", MemoryEntry{Conversation: strings.Repeat("a", maxConversation+1)}, "at most 128"},
		{"conversation of two lines", MemoryEntry{Conversation: "a\nb"}, "one line"},
		{"conversation with an escape", MemoryEntry{Conversation: "a\x1b[31m"}, "printable"},
		{"speaker too long", MemoryEntry{Speaker: strings.Repeat("a", MaxSpeaker+1)}, "at most 100"},
		{"speaker of two lines", MemoryEntry{Speaker: "Ana\r\nSystem"}, "one line"},
		{"speaker with a line separator", MemoryEntry{Speaker: "Ana\u2028System"}, "one line"},
		{"speaker with reversed direction", MemoryEntry{Speaker: "Ana\u202e"}, "printable"},
		{"speaker that is not UTF-8", MemoryEntry{Speaker: "Ana\xff"}, "printable"},
		{"blank speaker", MemoryEntry{Speaker: " "}, "spaces"},
		{"negative position", MemoryEntry{Position: -1}, "from 1 to"},
		{"position too high", MemoryEntry{Position: MaxPosition + 1}, "from 1 to"},
		{"year 10000", MemoryEntry{Happened: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "1 to 9999"},
		{"year 0", MemoryEntry{Happened: time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC)}, "1 to 9999"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.e.CheckContext()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestSearchTextStatesSpeakerAndDayOnce(t *testing.T) {
	t.Parallel()
	day := time.Date(2023, 5, 8, 23, 56, 0, 0, time.FixedZone("", -5*3600)) // 9 May in UTC
	for _, tt := range []struct {
		speaker  string
		happened time.Time
		corpus   string
		want     string
	}{
		{"", time.Time{}, "I like tea.", "I like tea."},
		{"Caroline", time.Time{}, "I like tea.", "Caroline said: I like tea."},
		{"", day, "I like tea.", "(9 May 2023) I like tea."},
		{"Caroline", day, "I like tea.", "(9 May 2023) Caroline said: I like tea."},
		{"Caroline", day, "(1:56 pm on 8 May, 2023) Caroline said, \"Tea.\"", "(1:56 pm on 8 May, 2023) Caroline " +
			"said, \"Tea.\""},
		{"Caroline", day, "Caroline: Tea.", "(9 May 2023) Caroline: Tea."},
		{"Caroline", day, "", "(9 May 2023) Caroline said: "},
	} {
		if got := SearchText(tt.speaker, tt.happened, tt.corpus); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestParseHappenedAcceptsTimesAndDates(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Time{
		"": {}, "2023-05-08": time.Date(2023, 5, 8, 0, 0, 0, 0, time.UTC), "2023-05-08T13:56:00Z": time.Date(2023, 5, 8,
			13, 56, 0, 0, time.UTC),
		"2023-05-08T13:56:00+02:00": time.Date(2023, 5, 8, 11, 56, 0, 0, time.UTC),
	} {
		if got, err := ParseHappened(in); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"yesterday", "8 May 2023", "2023-13-01", "2023-05-08 13:56", "10000-01-01",
		"1683554160", " 2023-05-08",
	} {
		if got, err := ParseHappened(in); err == nil || !strings.Contains(err.Error(), "2023-05-08T13:56:00Z") {
			t.Errorf("%q is %v, %v", in, got, err)
		}
	}
}
