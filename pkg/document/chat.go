package document

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"conclave/pkg/date"
	"conclave/pkg/text"
	"conclave/subjects"
)

// ErrNotChat means that a file is no chat export in a form that [ReadChat] knows.
var ErrNotChat = errors.New("not a chat export; it reads lines such as [2023-05-08 13:56] Ana: text, and JSON lists " +
	"of messages with speaker, text and time")

// Turn is one message of a chat export.
type Turn struct {
	Conversation string    // as the export names it; "" = the file has one conversation without a name
	Speaker      string    // one line of printable characters; "" = unknown
	Happened     time.Time // zero = unknown
	Text         string
}

// ReadChat reads a chat export: plain text with a time and a speaker in front of each message, as WhatsApp, Signal and
// many other programs write it, or JSON. The turns are in the order of the file, those of a ChatGPT conversation in the
// order of their times. A time without a zone is taken as UTC. It rejects what [Load] rejects with a limit of
// [MaxBytes], and with [ErrNotChat] a file in which it finds no turn.
func ReadChat(path string) ([]Turn, error) {
	data, err := Load(path, MaxBytes)
	if err != nil {
		return nil, err
	}
	var turns []Turn
	switch first := bytes.TrimLeft(data, " \t\r\n\ufeff"); {
	case len(first) > 0 && first[0] == '{', len(first) > 1 && first[0] == '[' && !isDigit(first[1]):
		turns, err = parseJSONChat(first)
	default:
		turns = parseTextChat(string(data))
	}
	if err != nil || len(turns) == 0 {
		return nil, errors.Join(ErrNotChat, err)
	}
	return turns, nil
}

// DetectChat returns the turns of a file that is certainly a chat export: a .txt or .json file whose turns have
// speakers, two at least, and are no lines of a log. For any other file it is not ok.
func DetectChat(path string) (turns []Turn, ok bool) {
	if ext := strings.ToLower(filepath.Ext(path)); ext != ".txt" && ext != ".json" {
		return nil, false
	}
	turns, err := ReadChat(path)
	if err != nil || len(turns) < 2 {
		return nil, false
	}
	for _, t := range turns {
		if t.Speaker == "" || slices.Contains(logLevels, strings.ToUpper(t.Speaker)) {
			return nil, false
		}
	}
	return turns, true
}

// logLevels stand in the lines of a log where the lines of a chat have a speaker.
var logLevels = []string{"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// chatLine matches the first line of a message: three numbers of a date, a time, a speaker and text. A line with a time
// but without a speaker is a message of the program, such as that somebody joined.
var (
	chatLine = text.Pattern(
		`^\[?(\d{1,4})([-/.])(\d{1,2})[-/.](\d{1,4}),?[ T]+(\d{1,2}:\d{2}(?::\d{2})?)(?: ` +
			`?([AaPp])\.?[Mm]\.?)?\]?(?: -|:)? +([^:\n]{1,100}): ?(.*)$`)
	stampLine = text.Pattern(`^\[?\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4},?[ T]+\d{1,2}:\d{2}`)
)

// stamp is the time of a message as it is written: the order of day and month is decided for the whole file.
type stamp struct {
	a, b, c int    // the numbers of the date
	clock   string // 13:56 or 13:56:00
	half    string // a, p or ""
	dotted  bool   // 8.5.2023: the day is first
}

// parseTextChat reads a chat export in plain text. Lines without a time continue the message before them.
func parseTextChat(s string) []Turn {
	var turns []Turn
	var stamps []stamp
	var lines []string // of the last message
	open := false      // lines without a time continue it
	closeTurn := func() {
		if len(turns) > 0 {
			turns[len(turns)-1].Text = strings.TrimSpace(strings.Join(lines, "\n"))
		}
		lines = nil
	}
	for line := range strings.Lines(s) {
		line = strings.Map(func(r rune) rune { // writers of right-to-left languages, and narrow spaces before AM
			switch {
			case unicode.Is(unicode.Cf, r):
				return -1
			case unicode.Is(unicode.Zs, r):
				return ' '
			}
			return r
		}, strings.TrimRight(line, "\r\n"))
		m := chatLine().FindStringSubmatch(line)
		switch {
		case m != nil:
			at := stamp{clock: m[5], half: strings.ToLower(m[6]), dotted: m[2] == "."}
			at.a, _ = strconv.Atoi(m[1])
			at.b, _ = strconv.Atoi(m[3])
			at.c, _ = strconv.Atoi(m[4])
			closeTurn()
			stamps, turns = append(stamps, at), append(turns, Turn{Speaker: cleanSpeaker(m[7])})
			lines, open = append(lines, m[8]), true
		case stampLine().MatchString(line):
			open = false
		case open:
			lines = append(lines, line)
		}
	}
	if len(turns) == 0 {
		return nil
	}
	closeTurn()
	for i, at := range chooseOrder(stamps) {
		turns[i].Happened = at
	}
	return slices.DeleteFunc(turns, func(t Turn) bool { return t.Text == "" || t.Text == "<Media omitted>" })
}

// chooseOrder returns the times of a file, read with the day or with the month first: as more of the dates exist and
// follow each other, and where both fit the month with AM and PM, otherwise the day. A date that does not exist is the
// zero time.
func chooseOrder(stamps []stamp) []time.Time {
	read := func(monthFirst bool) (times []time.Time, faults int) {
		var last time.Time
		for _, s := range stamps {
			t, err := s.time(monthFirst)
			if err != nil || t.Before(last) {
				faults++
			}
			if err == nil {
				last = t
			}
			times = append(times, t)
		}
		return times, faults
	}
	days, daysWrong := read(false)
	months, monthsWrong := read(true)
	half := slices.ContainsFunc(stamps, func(s stamp) bool { return s.half != "" })
	if monthsWrong < daysWrong || monthsWrong == daysWrong && half {
		return months
	}
	return days
}

// time returns the time of a stamp; a date that does not exist is an error.
func (s stamp) time(monthFirst bool) (time.Time, error) {
	year, month, day := s.c, s.b, s.a
	switch {
	case s.a > 31: // 2023-05-08
		year, month, day = s.a, s.b, s.c
	case monthFirst && !s.dotted:
		month, day = s.a, s.b
	}
	if year < 100 {
		year += 2000
	}
	layout, value := "2006-1-2 15:4:5", fmt.Sprintf("%d-%d-%d %s", year, month, day, s.clock)
	if strings.Count(s.clock, ":") == 1 {
		value += ":00"
	}
	if s.half != "" {
		layout, value = "2006-1-2 3:4:5 PM", value+" "+strings.ToUpper(s.half)+"M"
	}
	return time.Parse(layout, value)
}

// cleanSpeaker returns a name on one line of printable characters, at most [subjects.MaxSpeaker] bytes.
func cleanSpeaker(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(text.Cut(strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimSpace(s), "~")), " "),
		subjects.MaxSpeaker))
}

// Names of fields in JSON exports, the first that is there counts.
var (
	speakerFields      = []string{"speaker", "author", "role", "from", "sender", "name"}
	textFields         = []string{"text", "content", "message", "parts", "body"}
	timeFields         = []string{"happened", "time", "timestamp", "date", "create_time", "created_at", "date_unixtime"}
	conversationFields = []string{"conversation", "conversation_id", "session_id", "title", "name", "id", "uuid"}
	listFields         = []string{"messages", "chat_messages", "turns", "conversations", "chats"}
)

// parseJSONChat reads a chat export in JSON: a list of messages, a conversation with a list of them, or a list of
// conversations, also in the form of ChatGPT. It rejects invalid JSON.
func parseJSONChat(data []byte) (turns []Turn, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("reading JSON: %w", err)
	}
	addTurns(&turns, v, "")
	return turns, nil
}

// addTurns adds the turns in a value of an export to turns. conversation is that of the value around it. A value of
// another form has none.
func addTurns(turns *[]Turn, v any, conversation string) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			addTurns(turns, one, conversation)
		}
	case map[string]any:
		if nodes, ok := v["mapping"].(map[string]any); ok {
			addNodes(turns, nodes, cmp.Or(stringField(v, conversationFields), conversation))
			return
		}
		for _, name := range listFields {
			if list, ok := v[name].([]any); ok {
				addTurns(turns, list, cmp.Or(stringField(v, conversationFields), conversation))
				return
			}
		}
		if t, ok := newTurn(v, conversation); ok {
			*turns = append(*turns, t)
		}
	}
}

// addNodes adds the messages of a ChatGPT conversation by the user and the assistant, in the order of their times.
func addNodes(turns *[]Turn, nodes map[string]any, conversation string) {
	var all []Turn
	for _, n := range nodes {
		node, _ := n.(map[string]any)
		message, _ := node["message"].(map[string]any)
		t, ok := newTurn(message, conversation)
		if ok && (t.Speaker == "user" || t.Speaker == "assistant") {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Turn) int {
		return cmp.Or(a.Happened.Compare(b.Happened), cmp.Compare(a.Text, b.Text))
	})
	*turns = append(*turns, all...)
}

// newTurn returns the message of a JSON object; ok is false when it has no text.
func newTurn(v map[string]any, conversation string) (t Turn, ok bool) {
	for _, name := range textFields {
		if t.Text = strings.TrimSpace(textOf(v[name])); t.Text != "" {
			break
		}
	}
	for _, name := range timeFields {
		if t.Happened = timeOf(v[name]); !t.Happened.IsZero() {
			break
		}
	}
	author, _ := v["author"].(map[string]any)
	t.Speaker = cleanSpeaker(cmp.Or(stringField(v, speakerFields), stringField(author, []string{"name", "role"})))
	t.Conversation = cmp.Or(stringField(v, conversationFields[:3]), conversation)
	return t, t.Text != ""
}

// stringField returns the first of these fields that is a string with text in it.
func stringField(v map[string]any, names []string) string {
	for _, name := range names {
		if s, ok := v[name].(string); ok && strings.TrimSpace(s) != "" {
			return s
		}
	}
	return ""
}

// textOf returns the text of a value: a string, or the strings of a list of parts or of an object with parts or a text.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var b strings.Builder
		for _, part := range v {
			b.WriteString(textOf(part))
		}
		return b.String()
	case map[string]any:
		return cmp.Or(textOf(v["parts"]), textOf(v["text"]))
	}
	return ""
}

// timeOf returns the time of a value: seconds or milliseconds since 1970, as a number or in a string, or what
// [date.Parse] reads. Anything else is the zero time.
func timeOf(v any) time.Time {
	if n, ok := v.(json.Number); ok {
		v = n.String()
	}
	s, _ := v.(string)
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil {
		at, _ := date.Parse(s, time.UTC)
		return at
	}
	if seconds > 1e11 {
		seconds /= 1000
	}
	if !(seconds > 0 && seconds < 2.5e11) {
		return time.Time{}
	}
	return time.UnixMicro(int64(seconds * 1e6)).UTC()
}
