package tools

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

var noon = time.Date(2026, 11, 13, 12, 0, 0, 0, time.UTC)

// runIn runs a tool with one allowed folder, and returns its text or the failure.
func runIn(t *testing.T, x *Tool, folder, mode string, args any) string {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x.run(t.Context(),
		Call{Args: raw, Now: noon, Mode: mode, Folders: &subjects.FolderRules{
			Allowed: []string{folder + "/"},
			Closed:  []string{filepath.Join(folder, "closed") + "/"},
		}})
	var f Failure
	if errors.As(err, &f) || errors.Is(err, actor.ErrArguments) {
		return "failed: " + err.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Text
}

// realFolder is a temporary folder without symlinks in its path.
func realFolder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

type object = map[string]string

// TestNotes: notes are listed, read, searched and added to inside of the allowed folders only.
func TestNotes(t *testing.T) {
	t.Parallel()
	dir := realFolder(t)
	note := filepath.Join(dir, "shopping.md")
	for name, text := range map[string]string{
		"shopping.md": "# Shopping\nBread\n", "other.txt": "Bread too",
		"closed/keys.md": "secret bread",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(realFolder(t), "outside.md")
	if err := os.WriteFile(outside, []byte("not yours"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link.md")); err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, notesAdd(), dir, subjects.ModePreview, object{"path": note, "text": "Milk"}); !strings.Contains(
		got, "+Milk") {
		t.Errorf("the preview: %s", got)
	}
	if data, _ := os.ReadFile(note); string(data) != "# Shopping\nBread\n" {
		t.Errorf("the preview wrote %q", data)
	}
	for _, tt := range []struct {
		name, want string
		tool       *Tool
		args       object
	}{
		{"list", "closed/\nshopping.md", notesRead(), object{"path": dir}},
		{"read", "# Shopping\nBread\n", notesRead(), object{"path": note}},
		{
			"search", "shopping.md:2: Bread\n[1 files or folders could not be read]", notesRead(),
			object{"path": dir, "query": "bread"},
		},
		{
			"search words are no pattern", "[no matches]\n[1 files or folders could not be read]", notesRead(),
			object{"path": dir, "query": "br.ad"},
		},
		{
			"add", `{"path":"` + note + `","bytes":44,"created":false}`, notesAdd(),
			object{"path": note, "text": " Milk\n"},
		},
		{
			"a new note", `{"path":"` + dir + `/new.md","bytes":27,"created":true}`, notesAdd(),
			object{"path": dir + "/new.md", "text": "Milk"},
		},
		{
			"not a note", "failed: read failed: a note is a file that ends in .md", notesRead(),
			object{"path": filepath.Join(dir, "other.txt")},
		},
		{
			"trick: add to a script", "failed: bad arguments: a note is a file that ends in .md", notesAdd(),
			object{"path": filepath.Join(dir, "run.sh"), "text": "x"},
		},
		{"trick: outside", "failed: ", notesRead(), object{"path": outside}},
		{"trick: by a link", "failed: ", notesRead(), object{"path": filepath.Join(dir, "link.md")}},
		{"trick: add by a link", "failed: ", notesAdd(), object{"path": filepath.Join(dir, "link.md"), "text": "x"}},
		{"trick: a closed folder", "failed: ", notesRead(), object{"path": filepath.Join(dir, "closed", "keys.md")}},
		{
			"trick: add to a closed folder", "failed: ", notesAdd(),
			object{"path": filepath.Join(dir, "closed", "keys.md"), "text": "x"},
		},
	} {
		got := runIn(t, tt.tool, dir, "", tt.args)
		if got != tt.want && !(tt.want == "failed: " && strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if data, _ := os.ReadFile(outside); string(data) != "not yours" {
		t.Errorf("outside was written: %s", data)
	}
	if data, _ := os.ReadFile(note); !strings.HasPrefix(string(data), "# Shopping\nBread\n\n## 2026-11-13 ") ||
		!strings.HasSuffix(string(data), "\n\nMilk\n") {
		t.Errorf("the note: %q", data)
	}
}

// TestDefaultPaths: a call without a path is about the one file or folder there is; with several files it fails and
// names them.
func TestDefaultPaths(t *testing.T) {
	t.Parallel()
	dir := realFolder(t)
	for _, tt := range []struct {
		name, want string
		tool       *Tool
		args       object
	}{
		{"no notes", "[no notes]", notesRead(), object{"query": "*"}},
		{"no calendar", "[no events]", calendarRead(), object{"from": "today"}},
		{
			"the first note", `{"path":"` + dir + `/notes.md","bytes":27,"created":true}`, notesAdd(),
			object{"text": "Milk"},
		},
		{
			"the one note", `{"path":"` + dir + `/notes.md","bytes":54,"created":false}`, notesAdd(),
			object{"text": "Salt"},
		},
		{"search the notes", "notes.md:4: Milk", notesRead(), object{"query": "milk"}},
		{"the first event", `"path":"` + dir + `/calendar.ics"`, calendarAdd(), object{
			"title": "Dentist", "start": "2026-11-14 09:00",
		}},
		{"the one calendar", `"created":false`, calendarAdd(), object{"title": "Choir", "start": "2026-11-15 19:00"}},
		{"the events of tomorrow", "2026-11-14 09:00 to 2026-11-14 10:00  Dentist", calendarRead(), object{
			"from": "tomorrow", "to": "tomorrow",
		}},
		{"another note", `"created":true`, notesAdd(), object{"path": dir + "/shopping.md", "text": "Bread"}},
		{
			"several notes", "failed: add failed: bad arguments: there are 2 such files; give path, fs_list shows them",
			notesAdd(),
			object{"text": "Bread"},
		},
	} {
		if got := runIn(t, tt.tool, dir, "", tt.args); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	for _, x := range []*Tool{notesRead(), notesAdd(), calendarRead(), calendarAdd()} {
		var schema struct{ Required []string }
		if err := json.Unmarshal(x.Schema().Parameters, &schema); err != nil || len(schema.Required) == 0 {
			t.Errorf("%s requires %v, %v", x.Name(), schema.Required, err)
		}
	}
}

const calendarFile = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\n" +
	"BEGIN:VEVENT\r\nSUMMARY:Dentist\\, second vi\r\n " +
	"sit\r\nDTSTART:20261116T090000Z\r\nDTEND:20261116T100000Z\r\nLOCATION:Main " +
	"street\r\nBEGIN:VALARM\r\nDESCRIPTION:alarm\r\nEND:VALARM\r\nEND:VEVENT\r\n" +
	"BEGIN:VEVENT\r\nSUMMARY:Fair\r\nDTSTART;VALUE=DATE:20261120\r\nDTEND;VALUE=DATE:20261123\r\nEND:VEVENT\r\n" +
	"BEGIN:VEVENT\r\nSUMMARY:Choir\r\n" +
	"DTSTART;TZID=\"Europe/Berlin\":20200107T193000\r\nRRULE:FREQ=WEEKLY\r\nEND:VEVENT\r\n" +
	"BEGIN:VEVENT\r\nSUMMARY:Old " +
	"course\r\nDTSTART:20200107T193000Z\r\nRRULE:FREQ=WEEKLY;UNTIL=20210101T000000Z\r\nEND:VEVENT\r\n" +
	"BEGIN:VEVENT\r\nSUMMARY:Long ago\r\nDTSTART:20200107T193000Z\r\nEND:VEVENT\r\n" +
	"BEGIN:VEVENT\r\nSUMMARY:Broken\r\nDTSTART:soon\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"

// TestCalendar: events of the days are listed, new ones are added where the rest stays as it is.
func TestCalendar(t *testing.T) {
	t.Parallel()
	dir := realFolder(t)
	file := filepath.Join(dir, "home.ics")
	if err := os.WriteFile(file, []byte(calendarFile), 0o600); err != nil {
		t.Fatal(err)
	}
	local := func(s string) string {
		at, err := time.Parse("20060102T150405Z", s)
		if err != nil {
			t.Fatal(err)
		}
		return at.In(time.Local).Format(timeForm)
	}
	want := local("20200107T183000Z") + "  Choir [repeats from then: FREQ=WEEKLY]\n" +
		local("20261116T090000Z") + " to " + local("20261116T100000Z") + "  Dentist, second visit (Main street)\n" +
		"2026-11-20 to 2026-11-22  Fair\n[1 events or files could not be read]"
	for _, at := range []string{dir, file} {
		if got := runIn(t, calendarRead(), dir, "", object{"path": at}); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", at, got, want)
		}
	}
	add := object{"path": file, "title": "Tea; with Anna,\nat 5", "start": "2026-12-24 17:00", "location": "Home"}
	if got := runIn(t, calendarAdd(), dir, subjects.ModePreview, add); !strings.Contains(got,
		`+SUMMARY:Tea\; with Anna\, at 5`) {
		t.Errorf("the preview: %s", got)
	}
	if got := runIn(t, calendarAdd(), dir, "", add); !strings.Contains(got, `"created":false`) {
		t.Error(got)
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(data), strings.TrimSuffix(calendarFile, "END:VCALENDAR\r\n")) ||
		!strings.HasSuffix(string(data), "END:VEVENT\r\nEND:VCALENDAR\r\n") {
		t.Errorf("%v: %s", err, data)
	}
	if got := runIn(t, calendarRead(), dir, "",
		object{"path": file, "from": "2026-12-24", "to": "2026-12-24"}); !strings.Contains(got,
		"2026-12-24 17:00 to 2026-12-24 18:00  Tea; with Anna, at 5 (Home)") {
		t.Error(got)
	}
	if got := runIn(t, calendarAdd(), dir, "", object{
		"path": dir + "/new.ics", "title": "Holiday",
		"start": "2026-12-25", "end": "2026-12-26",
	}); !strings.Contains(got, `"created":true`) {
		t.Error(got)
	}
	if got := runIn(t, calendarRead(), dir, "",
		object{"path": dir + "/new.ics", "from": "2026-12-26"}); got != "2026-12-25 to 2026-12-26  Holiday" {
		t.Error(got)
	}
	text := filepath.Join(dir, "text.ics")
	if err := os.WriteFile(text, []byte("Dear user"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		tool *Tool
		args object
	}{
		"trick: outside":      {calendarRead(), object{"path": "/etc/hosts.ics"}},
		"trick: another kind": {calendarRead(), object{"path": filepath.Join(dir, "notes.md")}},
		"trick: add to a script": {calendarAdd(), object{
			"path": filepath.Join(dir, "run.sh"), "title": "x",
			"start": "2026-12-24",
		}},
		"not a calendar":      {calendarRead(), object{"path": text}},
		"add to what is none": {calendarAdd(), object{"path": text, "title": "x", "start": "2026-12-24"}},
		"no time":             {calendarAdd(), object{"path": file, "title": "x", "start": "soon"}},
		"an end before the start": {calendarAdd(), object{
			"path": file, "title": "x", "start": "2026-12-24 10:00",
			"end": "2026-12-24 09:00",
		}},
		"a day that does not exist": {calendarRead(), object{"path": file, "from": "2026-02-30"}},
		"from after to":             {calendarRead(), object{"path": file, "from": "2026-03-30", "to": "2026-03-01"}},
	} {
		if got := runIn(t, tt.tool, dir, "", tt.args); !strings.HasPrefix(got, "failed: ") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if data, _ := os.ReadFile(text); string(data) != "Dear user" {
		t.Errorf("%q", data)
	}
}

// TestLongCalendarLine: a line of very many parts takes no more time than its length.
func TestLongCalendarLine(t *testing.T) {
	t.Parallel()
	data := "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20260101\nSUMMARY:x" + strings.Repeat("\n y", maxAppendBytes/3) +
		"\nEND:VEVENT\nEND:VCALENDAR\n"
	events, skipped, err := parseCalendar([]byte(data), time.UTC)
	if err != nil || skipped != 0 || len(events) != 1 || len(events[0].title) != 1+maxAppendBytes/3 {
		t.Errorf("%d events, %d skipped, %v", len(events), skipped, err)
	}
}

// TestCalendarOfOtherLanguages: an event is added to a calendar whose text has another length in upper case.
func TestCalendarOfOtherLanguages(t *testing.T) {
	t.Parallel()
	for _, letter := range []string{"ı", "ȿ", "ß", "\xff"} { // shorter, longer, the same, and not UTF-8
		old := "BEGIN:VCALENDAR\nX-WR-CALNAME:" + strings.Repeat(letter, 50) + "\nend:vcalendar\n"
		got, err := insertEvent([]byte(old), renderEvent(icalEvent{title: "Tea", start: noon}, "u1", noon))
		if err != nil {
			t.Errorf("%q: %v", letter, err)
			continue
		}
		if events, _, err := parseCalendar(got, time.UTC); err != nil || len(events) != 1 || events[0].title != "Tea" {
			t.Errorf("%q: %+v, %v", letter, events, err)
		}
	}
}

// FuzzCalendar: whatever a file holds, it is read without a panic, and an event that was added to a calendar is read
// back with the events of before.
func FuzzCalendar(f *testing.F) {
	f.Add([]byte(calendarFile), "Tea; with Anna")
	f.Add([]byte("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;X=\"a:b;c\":20260101\nEND:VEVENT\nEND:VCALENDAR\n"), `\n,;`)
	f.Add([]byte("begin:vcalendar\r\n \r\nEND:VCALENDAR"), "")
	// an event without end
	f.Add([]byte("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20260101\nEND:VCALENDAR\n"), "of no event")
	f.Fuzz(func(t *testing.T, data []byte, title string) {
		before, skipped, err := parseCalendar(data, time.UTC)
		if err != nil && (before != nil || skipped != 0) {
			t.Fatal("events of what is no calendar")
		}
		renderEvents(before, skipped, false)
		e := icalEvent{title: oneLine(title, maxTitle), start: noon, end: noon.Add(time.Hour)}
		event := renderEvent(e, "u1", noon)
		for line := range strings.SplitSeq(event, "\r\n") {
			if len(line) > 75 {
				t.Fatalf("a line of %d bytes", len(line))
			}
		}
		fresh, err := insertEvent(nil, event)
		if err != nil {
			t.Fatal(err)
		}
		got, bad, err := parseCalendar(fresh, time.UTC)
		if err != nil || bad != 0 || len(got) != 1 || got[0].title != e.title || !got[0].start.Equal(noon) {
			t.Fatalf("%+v, %d, %v of %q", got, bad, err, fresh)
		}
		if added, err := insertEvent(data, event); err == nil && len(before) < maxEvents {
			if after, _, err := parseCalendar(added, time.UTC); err != nil || len(after) != len(before)+1 {
				t.Fatalf("%d events became %d, %v", len(before), len(after), err)
			}
		}
	})
}

// TestLocation: the setting is the answer; without it the tool is disabled.
func TestLocation(t *testing.T) {
	t.Parallel()
	if got := runIn(t, getLocation(Workspace{Location: "Oslo, Norway"}), realFolder(t), "",
		object{}); got != "Oslo, Norway" {
		t.Error(got)
	}
	if getLocation(Workspace{}).Disabled() == "" || getLocation(Workspace{Location: "x"}).Disabled() != "" {
		t.Error("a location that is not set is offered, or one that is set is not")
	}
}

// TestProvidersWithoutKey: how Wikipedia, arXiv and Semantic Scholar are asked, and what is made of their answers.
func TestProvidersWithoutKey(t *testing.T) {
	t.Parallel()
	const feed = `<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><entry>
<id>http://arxiv.org/abs/1706.03762v7</id><title>Attention Is
 All You Need</title><summary>The dominant models</summary><published>2017-06-12T17:57:34Z</published>
<author><name>A. Vaswani</name></author><author><name>N. Shazeer</name></author><author><name>N. Parmar</name></author>
<author><name>J. Uszkoreit</name></author></entry></feed>`
	for name, tt := range map[string]struct {
		cfg          WebSearch
		path, query  string // as asked
		answer, want string
	}{
		"wikipedia": {
			WebSearch{Provider: "wikipedia", Results: 5},
			"/w/api.php", "srsearch=wind+%26+boats",
			`{"query":{"search":[{"title":"Sail","pageid":7,"snippet":"a <span class=\"searchmatch\">wind</span> ` +
				`&amp; boat"}]}}`,
			"1. Sail\n   a wind & boat\n   URL/?curid=7",
		},
		"arxiv": {
			WebSearch{Results: 5, Academic: Academic{Provider: "arxiv"}},
			"/api/query", "search_query=all%3Awind+AND+all%3A%26+AND+all%3Aboats", feed,
			"1. Attention Is All You Need (A. Vaswani, N. Shazeer, N. Parmar and 1 others 2017)\n   The dominant " +
				"models\n   https://arxiv.org/abs/1706.03762v7",
		},
		"semantic_scholar": {
			WebSearch{Results: 5, Academic: Academic{Provider: "semantic_scholar"}},
			"/graph/v1/paper/search", "query=wind+%26+boats",
			`{"data":[{"title":"Boats","abstract":null,"url":"https://example.org/p","year":2020,` +
				`"authors":[{"name":"A"}]}]}`,
			"1. Boats (A 2020)\n   https://example.org/p",
		},
	} {
		if err := tt.cfg.Validate(); err != nil && tt.cfg.Provider != "" {
			t.Errorf("%s: %v", name, err)
		}
		status, answer := http.StatusOK, tt.answer
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != tt.path || !strings.Contains(r.URL.RawQuery, tt.query) || r.Header.Get("X-Api-Key") != "" {
				t.Errorf("%s: asked %s", name, r.URL)
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(answer))
		}))
		tool := "academic_search"
		if tt.cfg.Provider == "wikipedia" {
			tool = "web_search"
		}
		search := func() string {
			for _, x := range newTools(Config{WebSearch: tt.cfg}, srv.URL) { // anew: without cache and rate limit
				if x.Name() == tool {
					out, err := x.run(context.Background(), Call{
						Args: json.RawMessage(`{"query":"wind & boats"}`),
						Now:  noon,
					})
					if err != nil {
						return err.Error()
					}
					return out.Text
				}
			}
			return "no tool"
		}
		if got, want := search(), "Today is Friday, 13 November 2026.\n\n"+strings.ReplaceAll(tt.want, "URL",
			srv.URL); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		answer = "no answer at all"
		if got := search(); !strings.HasSuffix(got, "cannot be read") {
			t.Errorf("%s: %s", name, got)
		}
		status = http.StatusTooManyRequests
		if got := search(); got != "search failed: too many requests" {
			t.Errorf("%s: %s", name, got)
		}
		srv.Close()
		if got := search(); !strings.HasSuffix(got, "cannot be reached") {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, x := range Configured(Config{WebSearch: WebSearch{Provider: noProvider}}) {
		if x.Name() == "academic_search" {
			t.Error("academic_search runs without being configured")
		}
	}
}
