package loop

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// cleanAnswer returns an answer without what the model copied from its prompt: whole lines that are rules of the system
// message, whole sentences of the loop's own instructions, and the name of the choice before it. What only resembles
// them stays: a part of a sentence can change its meaning. An answer that as a whole is a decision or a call of a tool
// of this turn becomes "". copied reports whether something was removed. All of it was seen from a model of 1.5 billion
// parameters.
func (t *turn) cleanAnswer(answer string) (clean string, copied bool) {
	isConstrained := t.state.Calls == CallConstrained // only its prompts name choices and ask for calls as JSON
	// a call that is quoted from a page is part of the answer
	if isConstrained && !t.hasNote(NoteCopied) && t.isCopiedStep(answer) {
		return "", true
	}
	clean = t.removeRules(answer)
	if t.instructed {
		clean = removeOwnSentences(clean)
	}
	if rest, ok := cutPrefixFold(strings.TrimSpace(clean), answerChoice+":"); ok && isConstrained {
		clean = rest
	}
	if clean == answer {
		return answer, false
	}
	if clean = strings.TrimSpace(clean); clean != "" {
		t.addNote(NoteCleaned, "text that the model copied from its prompt was taken out of the answer")
	}
	return clean, true
}

// removeRules removes the lines that are rules of the system message, and its sentences. One that is the whole answer
// stays: the user may have configured it and asked for it.
func (t *turn) removeRules(answer string) string {
	var kept []string
	removed := 0
	rules, copied := strings.Split(t.agent.System, "\n"), t.copiedSentences(answer)
	isCopied := func(s string) bool { return slices.Contains(copied, s) }
	for line := range strings.SplitSeq(answer, "\n") {
		rule := "- " + strings.TrimPrefix(strings.TrimSpace(line), "- ")
		if len(rule) >= minOwnLine && slices.Contains(rules, rule) {
			removed++
			continue
		}
		if len(copied) > 0 {
			all := text.SentenceTexts(line, maxCleaned)
			if own := slices.DeleteFunc(slices.Clone(all), isCopied); len(own) < len(all) {
				removed += len(all) - len(own)
				line = strings.Join(own, " ")
			}
		}
		kept = append(kept, line)
	}
	clean := strings.Join(kept, "\n")
	if removed == 0 || removed == 1 && strings.TrimSpace(clean) == "" {
		return answer
	}
	return clean
}

// copiedSentences are the sentences of the system message of at least minOwnWords words that stand in an answer.
func (t *turn) copiedSentences(answer string) (out []string) {
	for line := range strings.Lines(t.agent.System) {
		for _, s := range text.SentenceTexts(line, maxOwnSentences) {
			if strings.Contains(answer, s) && len(strings.Fields(s)) >= minOwnWords {
				out = append(out, s)
			}
		}
	}
	return out
}

// removeOwnSentences removes the sentences of a text that are, in any case of ASCII letters, sentences of the loop's
// instructions. Of one that quotes the question, the words before the quote are removed.
func removeOwnSentences(s string) string {
	var b strings.Builder
	from := 0
	for _, span := range text.Sentences(s, maxCleaned) {
		sentence := s[span.From:span.To]
		for _, own := range ownSentences() {
			rest, ok := cutPrefixFold(sentence, own)
			if ok && (rest == "" || strings.HasSuffix(own, ":")) {
				b.WriteString(s[from:span.From])
				from = span.To - len(rest)
				break
			}
		}
	}
	b.WriteString(s[from:])
	return b.String()
}

// maxCleaned bounds the sentences of an answer that are looked at.
const maxCleaned = 10_000

// ownSentences are the sentences of the instructions after which the loop expects an answer, without the question that
// some of them quote. Sentences of fewer than six words are left out: an answer may have them by itself.
var ownSentences = sync.OnceValue(func() []string {
	var out []string
	for _, instruction := range []string{
		instructForced, instructPlain, instructEmpty, instructDropped, instructMalformed, instructCut, instructAnnounce,
		instructUseResults, instructCopied, instructFromResults("", true), instructAfterFailure(""),
		instructFromMemory(quote("")), headChoices,
	} {
		for _, s := range text.SentenceTexts(strings.ReplaceAll(instruction, quote(""), "\n"), maxOwnSentences) {
			for line := range strings.Lines(s) {
				if line = strings.TrimSpace(line); len(strings.Fields(line)) >= minOwnWords {
					out = append(out, line)
				}
			}
		}
	}
	return out
})

// minOwnWords is how many words a sentence of an instruction must have to count as copied.
const minOwnWords = 6

// minOwnLine is how many bytes a rule of the system message must have to count as copied.
const minOwnLine = 40

// maxOwnSentences bounds the sentences of one instruction.
const maxOwnSentences = 16

// isCopiedStep reports whether an answer is nothing but a decision or a call as JSON, fenced or not: of the answer, of
// an offered tool or of one that was called for this turn.
func (t *turn) isCopiedStep(answer string) bool {
	names := append(slices.Clone(t.tools), answerChoice)
	for i := range t.state.Finished {
		names = append(names, t.state.Finished[i].Call.Name)
	}
	body := strings.TrimPrefix(strings.Trim(answer, "`"+blanks), "json")
	if v, err := strict.Parse([]byte(body)); err == nil && len(v.Members) == 1 && v.Members[0].Name == "choice" {
		return names.has(v.Members[0].Value.Text)
	}
	calls, _ := names.parseCalls(json.RawMessage(body))
	return len(calls) > 0
}

// cutPrefixFold is strings.CutPrefix in any case of ASCII letters. prefix must be ASCII.
func cutPrefixFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
