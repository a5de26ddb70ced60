package document

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// writeChat writes a file with this name and text.
func writeChat(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadChatForms(t *testing.T) {
	t.Parallel()
	may := time.Date(2023, 5, 8, 13, 56, 0, 0, time.UTC)
	ana, ben := Turn{Speaker: "Ana", Happened: may, Text: "I sold the boat."}, Turn{
		Speaker:  "Ben",
		Happened: may.Add(time.Minute), Text: "Really?\nTo whom?",
	}
	named := func(conversation string, turns ...Turn) (out []Turn) {
		for _, t := range turns {
			t.Conversation = conversation
			out = append(out, t)
		}
		return out
	}
	for _, tt := range []struct {
		name, file, text string
		want             []Turn
	}{
		{
			"brackets", "a.txt", "[2023-05-08 13:56] Ana: I sold the boat.\n[2023-05-08 13:57] Ben: Really?\nTo " +
				"whom?\n",
			[]Turn{ana, ben},
		},
		{"Signal", "a.txt", "[2023-05-08, 13:56] Ana: I sold the boat.\r\n\r\n[2023-05-08, 13:57] Ben: Really?\r\nTo " +
			"whom?\r\n", []Turn{ana, ben}},
		{
			"WhatsApp on Android", "a.txt", "08/05/2023, 13:50 - Messages are encrypted.\n08/05/2023, 13:56 - Ana: I " +
				"sold the boat.\n08/05/2023, 13:57 - Ben: Really?\nTo whom?\n21/05/2023, 13:57 - Ben: <Media " +
				"omitted>\n",
			[]Turn{ana, ben},
		},
		{
			"WhatsApp on iOS, months first", "a.txt", "\u200e[5/8/23, 1:56:00\u202fPM] ~\u202fAna: I sold the " +
				"boat.\n[5/8/23, 1:57:00\u202fPM] Ben: Really?\nTo whom?\n[5/20/23, 1:57:00\u202fPM] Ben joined\n",
			[]Turn{ana, ben},
		},
		{
			"dots", "a.txt", "08.05.23, 13:56 - Ana: I sold the boat.\n08.05.23, 13:57 - Ben: Really?\nTo whom?",
			[]Turn{ana, ben},
		},
		{
			"list", "a.json",
			`[{"speaker":"Ana","text":"I sold the boat.","time":"2023-05-08T13:56:00Z"},{"from":"Ben",` +
				`"message":"Really?\nTo whom?","timestamp":1683554220}]`,
			[]Turn{ana, ben},
		},
		{
			"list of two conversations", "a.json",
			`[{"author":"Ana","content":"I sold the boat.","date":"2023-05-08 13:56","conversation":"x"},` +
				`{"role":"Ben","text":"Really?\nTo whom?","time":"2023-05-08T15:57:00+02:00",` +
				`"conversation":"y"}]`, slices.Concat(named("x", ana), named("y", ben)),
		},
		{
			"Telegram", "a.json",
			`{"name":"Boats","messages":[{"id":1,"type":"service","text":""},{"id":2,"from":"Ana",` +
				`"date":"2023-05-08T13:56:00","text":["I sold ",{"type":"bold","text":"the boat."}]},{"from":"Ben",` +
				`"date_unixtime":"1683554220","text":"Really?\nTo whom?"}]}`, named("Boats", ana, ben),
		},
		{
			"ChatGPT", "a.json",
			`[{"title":"Boats","mapping":{"c":{"message":{"author":{"role":"assistant"},"create_time":1683554220.0,` +
				`"content":{"content_type":"text","parts":["Really?\nTo whom?"]}}},` +
				`"b":{"message":{"author":{"role":"user"},"create_time":1683554160,` +
				`"content":{"parts":["I sold the boat."]}}},"a":{"message":{"author":{"role":"system"},` +
				`"content":{"parts":["secret"]}}},"r":{"message":null}}}]`,
			named("Boats", Turn{Speaker: "user", Happened: may, Text: ana.Text},
				Turn{Speaker: "assistant", Happened: ben.Happened, Text: ben.Text}),
		},
		{
			"no time, odd name", "a.json",
			`[{"speaker":"Ana\n\u001b[2J","text":"I sold the boat.","time":"soon"},{"text":" "}]`,
			[]Turn{{Speaker: "Ana [2J", Text: ana.Text}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := writeChat(t, tt.file, tt.text)
			got, err := ReadChat(path)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

func TestReadChatRejectsOtherFiles(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]string{
		"prose": "I sold the boat.\nNobody knows.\n", "blank": " \n", "invalid JSON": `[{"speaker":`,
		"numbers": "[1, 2]", "other objects": `{"a":{"text":"x"}}`,
		"only program messages": "[2023-05-08 13:56] Ana joined\n",
	} {
		if got, err := ReadChat(writeChat(t, "a.txt", s)); !errors.Is(err, ErrNotChat) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := ReadChat(writeChat(t, "a.txt", strings.Repeat("x", MaxBytes+1))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if _, err := ReadChat(writeChat(t, "a.txt", "")); !errors.Is(err, ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe.txt") // nobody writes into it
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadChat(pipe); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("pipe: %v", err)
	}
}

func TestDetectChatLeavesDocumentsAlone(t *testing.T) {
	t.Parallel()
	turns := "[2023-05-08 13:56] Ana: I sold the boat.\n[2023-05-08 13:57] Ben: Really?\n"
	for _, tt := range []struct {
		name, file, text string
		want             bool
	}{
		{"chat", "a.txt", turns, true},
		{"chat in Markdown", "a.md", turns, false},
		{"one message", "a.txt", turns[:41], false},
		{"log", "a.txt", "2023-05-08 13:56:00 INFO: started\n2023-05-08 13:57:00 ERROR: stopped\n", false},
		{"messages without a speaker", "a.json", `[{"text":"x"},{"text":"y"}]`, false},
		{"prose", "a.txt", "Ana: I sold the boat.\nBen: Really?\n", false},
	} {
		if turns, got := DetectChat(writeChat(t, tt.file, tt.text)); got != tt.want || got != (len(turns) > 0) {
			t.Errorf("%s: %t, %v", tt.name, got, turns)
		}
	}
}
