package loop

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/jsonschema"
	"conclave/pkg/text"
)

// cleanAnswer returns an answer without what the model copied from its prompt: rules of the system message, which are
// lines that begin with "- ", sentences of the loop's own instructions, and the name of the choice before it. An answer
// that as a whole is a decision or a call of a tool of this turn becomes the text in a call of "answer", or "". copied
// reports whether something was removed.
func (t *turn) cleanAnswer(answer string) (clean string, copied bool) {
	clean = answer
	if !t.hasNote(NoteCopied) { // a call that is quoted from a page is part of the answer
		if call, ok := t.readCopiedCall(answer); ok {
			return call, true
		}
	}
	for line := range strings.SplitSeq(t.agent.System, "\n") {
		if rule, ok := strings.CutPrefix(line, "- "); ok && len(rule) >= minOwnLine {
			clean = strings.ReplaceAll(clean, rule, "")
		}
	}
	if t.instructed {
		for _, s := range ownSentences() {
			clean = removeFold(clean, s)
		}
	}
	if rest, ok := cutPrefixFold(strings.TrimSpace(clean), answerChoice+":"); ok {
		clean = rest
	}
	if clean == answer {
		return answer, false
	}
	return strings.TrimSpace(clean), true
}

// ownSentences are the sentences of the loop's instructions, without the question that some of them quote. Sentences of
// fewer than three words are left out: an answer may have them by itself.
var ownSentences = sync.OnceValue(func() []string {
	var out []string
	for _, instruction := range []string{
		instructForced, instructPlain, instructEmpty, instructDropped, instructMalformed, instructCut, instructAnnounce,
		instructClaimed, instructUseResults, instructCopied, instructFromResults("", true), instructAfterFailure(""),
		instructFromMemory(quote("")),
		instructDecide("", "", []string{answerChoice}), headChoices,
	} {
		for _, s := range text.SentenceTexts(strings.ReplaceAll(instruction, quote(""), "\n"), maxOwnSentences) {
			for line := range strings.Lines(s) {
				if line = strings.TrimSpace(line); len(strings.Fields(line)) >= 3 {
					out = append(out, line)
				}
			}
		}
	}
	return out
})

// minOwnLine is how many bytes a rule of the system message must have to count as copied.
const minOwnLine = 40

// maxOwnSentences bounds the sentences of one instruction.
const maxOwnSentences = 16

// readCopiedCall reports whether an answer is nothing but a decision or a call as JSON, of "answer" or of a tool of
// this turn, and returns the longest text among the arguments of "answer".
func (t *turn) readCopiedCall(answer string) (content string, ok bool) {
	body := strings.TrimSpace(answer)
	if rest, fenced := strings.CutPrefix(body, "```"); fenced {
		_, rest, _ = strings.Cut(rest, "\n")
		body = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "```"))
	}
	v, err := jsonschema.Parse(json.RawMessage(body))
	if err != nil || v.Type != jsonschema.Object {
		return "", false
	}
	if choice := v.Member("choice"); choice != nil && len(v.Members) == 1 {
		return "", t.isStep(choice.Text)
	}
	name, arguments := v.Member("name"), v.Member("arguments")
	if name == nil || arguments == nil || !t.isStep(name.Text) {
		return "", false
	}
	if name.Text == answerChoice {
		for _, m := range arguments.Members {
			if m.Value.Type == jsonschema.String && len(m.Value.Text) > len(content) {
				content = m.Value.Text
			}
		}
	}
	return content, true
}

// isStep reports whether name is a choice of this turn's decisions or a tool that was called for it.
func (t *turn) isStep(name string) bool {
	return name == answerChoice || t.tools.has(name) ||
		slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool {
			return d.Call.Name == name
		})
}

// removeFold removes every occurrence of part from s, in any case of ASCII letters.
func removeFold(s, part string) string {
	lower, want := strings.ToLower(s), strings.ToLower(part)
	if len(lower) != len(s) { // folding moved the bytes: compare as they are
		lower, want = s, part
	}
	for {
		at := strings.Index(lower, want)
		if at < 0 {
			return s
		}
		s, lower = s[:at]+s[at+len(want):], lower[:at]+lower[at+len(want):]
	}
}

// cutPrefixFold is strings.CutPrefix in any case of ASCII letters.
func cutPrefixFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
