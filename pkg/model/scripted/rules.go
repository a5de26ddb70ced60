package scripted

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the machine may have no zone files

	"conclave/pkg/text"
)

// The tools that the demo model knows how to use.
const (
	timeTool      = "get_datetime"
	saveTool      = "save_memory"
	searchTool    = "search_memory"
	readNotesTool = "notes_read"
	addNoteTool   = "notes_add"
	webTool       = "web_search"
)

// notesFolder is where the notes of the user are, by the manifest as shipped.
const notesFolder = "~/notes/"

var (
	timeWord         = text.Pattern(`(?i)\b(time|date|day|today|hour|weekday|clock|o'clock|month|year)\b`)
	questionWord     = text.Pattern(`(?i)\b(what|what's|which|current|currently|now|tell|how late|is it)\b`)
	zoneName         = text.Pattern(`\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+(/[A-Z][A-Za-z_]+)?\b`)
	asksAboutHistory = text.Pattern(
		`(?i)\b(did i|have i|i just|i) (ask|asked|say|said|tell|told)\b|\b(previous|earlier|last|first) (question|` +
			`message)\b|\bask(ed)? before\b`)
	pronoun = text.Pattern(
		`(?i)\b(it|its|that|this|they|them|their|those|these|he|him|his|she|her|there|one)\b`)
	placeName       = text.Pattern(`\b(in|at) \p{Lu}\p{L}+`)
	rememberRequest = text.Pattern(`(?i)^\s*(please\s+)?(remember|keep in mind|note)\s*(that\b|:)\s*`)
	aboutUser       = text.Pattern(`(?i)\b(my|do i|did i|am i|was i|about me)\b`)
	// toolWithArguments matches a name and the start of a JSON object.
	toolWithArguments = text.Pattern(`\b([A-Za-z][A-Za-z0-9_-]*)\s*\{`)
	followUpStart     = text.Pattern(`(?i)^\s*(and|but|so|why|what about|how about|also|more)\b`)
	// addsNote has what to add in one of its two groups.
	addsNote = text.Pattern(`(?is)^\s*(?:please\s+)?(?:add|write)\s+(?:(?:to|in|into)\s+my\s+notes?\s*:\s*(.+)|` +
		`(.+?)\s+(?:to|in|into)\s+my\s+notes?\s*[.!]?\s*$)`)
	readsNotes    = text.Pattern(`(?i)\bmy notes?\b|\b(read|show|open)\b.*\.md\b`)
	notePath      = text.Pattern(`[~/\pL\pN][\pL\pN/_.-]*\.md\b`)
	searchesWeb   = text.Pattern(`(?i)^\s*(?:please\s+)?search\s+(?:the\s+)?(?:web|internet|online)\s+(?:for\s+)?(.+)$`)
	asksAboutDemo = text.Pattern(`(?i)\b(who|what) are you\b|\bwhat (can|do) you (do|know|answer)\b|` +
		`^\s*(help|hello|hi)\b`)
)

// notesArguments are the arguments that read the note at path, or with "" list the notes.
func notesArguments(path string) map[string]string {
	args := map[string]string{"query": "*"}
	if path != "" {
		args["path"] = path
	}
	return args
}

// mentionsTime reports whether q asks for the time or the date.
func mentionsTime(q string) bool { return timeWord().MatchString(q) && questionWord().MatchString(q) }

// refersBack reports whether q asks about an earlier question or depends on one: it has at most eight words and
// contains a pronoun or starts like a follow-up.
func refersBack(q string) bool {
	if asksAboutHistory().MatchString(q) {
		return true
	}
	return len(strings.Fields(q)) <= 8 && (pronoun().MatchString(q) || followUpStart().MatchString(q))
}

// regions are what precedes the place in the names of time zones.
var regions = []string{"Europe/", "America/", "Asia/", "Africa/", "Australia/", "Pacific/"}

// maxPlaceWords is in how many words of a question a place is looked for.
const maxPlaceWords = 40

// guessZone returns the time zone that q names, by something in the form of a zone name, which is not checked, or by a
// place of one or two words in a zone name, and UTC otherwise. unknownPlace reports that q names another place.
func guessZone(q string) (zone string, unknownPlace bool) {
	if name := zoneName().FindString(q); name != "" {
		return name, false
	}
	words := strings.FieldsFunc(text.Fold(q), func(r rune) bool { return r < 'a' || r > 'z' })
	words = words[:min(len(words), maxPlaceWords)]
	for i, w := range words {
		place := strings.ToUpper(w[:1]) + w[1:]
		for _, region := range regions {
			if i+1 < len(words) {
				two := region + place + "_" + strings.ToUpper(words[i+1][:1]) + words[i+1][1:]
				if _, err := time.LoadLocation(two); err == nil {
					return two, false
				}
			}
			if _, err := time.LoadLocation(region + place); err == nil {
				return region + place, false
			}
		}
	}
	return "UTC", placeName().MatchString(q)
}

// trimFrame removes the lines that mark the beginning and the end of an untrusted tool result.
func trimFrame(s string) string {
	lines := slices.DeleteFunc(strings.Split(s, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), "[") && strings.Contains(line, "TOOL_RESULT")
	})
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// schema is the part of JSON Schema that fillSchema supports.
type schema struct {
	Type       any                        `json:"type"`
	Enum       []json.RawMessage          `json:"enum"`
	Const      json.RawMessage            `json:"const"`
	Minimum    *float64                   `json:"minimum"`
	MinItems   int                        `json:"minItems"`
	Required   []string                   `json:"required"`
	Properties map[string]json.RawMessage `json:"properties"`
	Items      json.RawMessage            `json:"items"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
}

// fillSchema returns a minimal JSON value that satisfies a schema, so that a caller that requested structured output
// can continue. Strings state that the demo model wrote them.
func fillSchema(raw json.RawMessage) string {
	b, err := json.Marshal(buildValue(raw, 0))
	if err != nil {
		return "{}"
	}
	return string(b)
}

// buildValue returns a value for a schema. Below a depth of 8 and for an invalid schema it is an empty object; objects
// have only their required properties, and arrays at most 16 elements.
func buildValue(raw json.RawMessage, depth int) any {
	var s schema
	if depth > 8 || json.Unmarshal(raw, &s) != nil {
		return map[string]any{}
	}
	switch {
	case len(s.Const) > 0:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.AnyOf) > 0:
		return buildValue(s.AnyOf[0], depth+1)
	}
	switch s.firstType() {
	case "string":
		return "made by the built-in demo model, which is not a language model"
	case "integer", "number":
		if s.Minimum != nil {
			return *s.Minimum
		}
		return 0
	case "boolean":
		return false
	case "null":
		return nil
	case "array":
		list := make([]any, min(max(s.MinItems, 0), 16))
		for i := range list {
			list[i] = buildValue(s.Items, depth+1)
		}
		return list
	}
	object := make(map[string]any)
	for _, name := range s.Required {
		if p, ok := s.Properties[name]; ok {
			object[name] = buildValue(p, depth+1)
		}
	}
	return object
}

// firstType returns the type of s, the first one of a list, "" if none is given.
func (s schema) firstType() string {
	switch t := s.Type.(type) {
	case string:
		return t
	case []any:
		if len(t) > 0 {
			k, _ := t[0].(string)
			return k
		}
	}
	return ""
}

// maxQuotedBytes bounds a quotation of a question or a tool result, in bytes.
const maxQuotedBytes = 400
