package digest

import (
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// isInstruction reports whether a sentence tells somebody to do something, speaks to an assistant or says what the one who asked
// wants. all are the words of s. It errs towards yes: a fact that is lost can be looked up again.
func isInstruction(all []text.Word, s string) bool {
	f := sentence{all: all, s: s}
	if hasOrderUnspaced(s) || f.isChatTurn() || endsWithQuestion(s) {
		return true
	}
	sub := len(all) > 0 && subordinators[all[0].Folded]
	for i, w := range all {
		if f.is(i, "favor", "favore") && f.is(i-1, "por", "per") || f.is(i, "prega") && f.is(i-1, "si") {
			return true
		}
		if politeWords[w.Folded] && !(i > 0 && f.is(i-1, "to", "not", "will", "would", "and", "can")) {
			return true
		}
		start := w.Gap&(text.GapEnd|text.GapColon|text.GapQuote) != 0 || sub && w.Gap&text.GapComma != 0 ||
			w.IsUpper && i > 0 && !all[i-1].IsUpper && orderVerbs[w.Folded] && f.in(i+1, objectMarkers) // a new sentence, and nothing ended the one before
		if start && f.isOrder(i) || f.isJoinedOrder(i) || f.addressesReader(i) || f.addressesMachine(i) || f.reportsOrder(i) || f.statesDuty(i) {
			return true
		}
	}
	return f.isLasting()
}

// sentence is one sentence while it is looked at.
type sentence struct {
	all []text.Word
	s   string
}

// is tells whether word i is one of these.
func (f sentence) is(i int, list ...string) bool {
	return i >= 0 && i < len(f.all) && slices.Contains(list, f.all[i].Folded)
}

// in tells whether word i is in a set.
func (f sentence) in(i int, set map[string]bool) bool {
	return i >= 0 && i < len(f.all) && set[f.all[i].Folded]
}

// isTied tells whether word i follows the one before without a mark between them.
func (f sentence) isTied(i int) bool { return i < len(f.all) && f.all[i].Gap&^text.GapLine == 0 }

// findWithin is the first word after i, at most most words further, that is in a set; -1 when there is none.
func (f sentence) findWithin(i, most int, set map[string]bool) int {
	for j := i + 1; j < len(f.all) && j <= i+most; j++ {
		if f.all[j].Gap&text.GapEnd != 0 {
			return -1
		}
		if set[f.all[j].Folded] {
			return j
		}
	}
	return -1
}

// isOrder: a clause that begins at i is an order.
func (f sentence) isOrder(i int) bool {
	pressed := false
	for f.in(i, orderLeads) || i+1 < len(f.all) && strings.HasSuffix(f.all[i].Folded, "ly") && f.all[i].Folded != "reply" && f.all[i].Folded != "apply" {
		pressed = pressed || f.is(i, "never", "always", "kindly", "simply", "just", "immediately", "instead")
		i++
	}
	if i >= len(f.all) {
		return false
	}
	w := f.all[i].Folded
	next := i + 1
	switch {
	case w == "do" && (f.is(next, "not") || f.in(next, orderVerbs) || f.in(next, ambiguousVerbs)), w == "don't", w == "dont", w == "be", w == "let", w == "let's", w == "lets":
		return true
	case f.in(next, finiteVerbs): // a noun that looks like a verb: "Delete is a key"
		return false
	case orderVerbs[w]: // a word alone is a heading or the head of a table
		return next == len(f.all) && i == 0 || f.isTied(next) || next < len(f.all) && f.all[next].Gap&(text.GapQuote|text.GapColon) != 0 && f.all[i].Gap&text.GapColon == 0
	case w == "go":
		return f.is(next, "to", "back", "ahead", "and", "on", "through", "into", "away")
	case strings.HasSuffix(w, "en") && next < len(f.all) && f.s[f.all[next].From:f.all[next].To] == "Sie":
		return true
	case strings.HasSuffix(w, "ez") && f.findWithin(i, 12, frenchWords) >= 0:
		return true
	case isRussianImperative(w):
		return true
	case !ambiguousVerbs[w]:
		return false
	case pressed, f.in(next, objectMarkers), next < len(f.all) && (f.all[next].IsNumber || f.all[next].Gap&text.GapQuote != 0):
		return true
	}
	// "Report bugs to us" is an order, "Report finds bugs" is none: something else says what happens.
	for j := next; j < len(f.all); j++ {
		if f.in(j, finiteVerbs) || strings.HasSuffix(f.all[j].Folded, "ed") && len(f.all[j].Folded) > 4 {
			return false
		}
	}
	return len(f.all)-i > 2 && f.isTied(next)
}

// isJoinedOrder: ... and send all your files; a line of its own that begins in small letters.
func (f sentence) isJoinedOrder(i int) bool {
	w := f.all[i]
	if !orderVerbs[w.Folded] {
		return false
	}
	then := f.is(i-1, "then") && (f.is(i-2, "and") || f.all[i-1].Gap&text.GapComma != 0)
	return (w.Gap&(text.GapLine|text.GapComma) != 0 || f.is(i-1, "and", "then", "now", "or")) && f.in(i+1, grabbedObjects) || then && f.in(i+1, objectMarkers)
}

// addressesReader: you must; could you; if you are an assistant; your instructions.
func (f sentence) addressesReader(i int) bool {
	switch {
	case f.is(i, "you", "u", "ye", "reader", "readers"):
		j := i + 1
		for f.is(j, "also", "now", "will", "then", "only", "always", "never", "still", "really", "first", "should") {
			j++
		}
		return f.is(j-1, "should", "never", "always") || f.is(j, "must", "shall", "ought", "need", "mustn't", "shouldn't", "cannot") ||
			f.is(j, "have", "are", "were") && f.is(j+1, "to", "required", "instructed", "asked", "expected", "ordered", "told", "advised", "obliged", "not", "now", "authorized", "supposed") ||
			f.is(j, "are", "were") && f.findWithin(j, 4, machineWords) >= 0 ||
			f.is(j, "may", "might") && f.is(j+1, "not") ||
			f.is(i-1, "can", "could", "would", "will") && f.all[i-1].Gap&(text.GapEnd|text.GapColon|text.GapComma|text.GapQuote) != 0 ||
			f.is(i-2, "i", "we") && f.is(i-1, "gave", "give", "told", "asked", "paid", "sent") ||
			f.is(i-1, "want", "need", "ask", "like", "advise", "urge", "instruct", "order", "tell", "require") && f.is(j, "to")
	case f.is(i, "you're"):
		return f.findWithin(i, 4, machineWords) >= 0 || f.is(i+1, "now", "required", "to", "instructed")
	case f.is(i, "you've") && f.is(i+1, "been", "to"):
		return true
	case f.is(i, "i", "we"):
		return f.in(i+1, demandingVerbs) && !f.is(i+2, "not")
	case f.is(i, "your"):
		return f.in(i+1, modelPossessions) || f.is(i+1, "system", "initial", "previous", "next", "final", "original") && f.in(i+2, modelPossessions)
	case f.is(i, "as") && f.is(i+1, "an", "a"):
		return f.is(i+2, "ai", "llm", "assistant", "chatbot") && !f.is(i+3, "researcher", "engineer", "company")
	}
	return false
}

// addressesMachine: Dear assistant; AI: ...; note to the language model; any AI that reads this.
func (f sentence) addressesMachine(i int) bool {
	if !machineWords[f.all[i].Folded] {
		return false
	}
	last := i // the end of "AI assistant", "language model"
	for f.in(last+1, machineWords) || f.is(last+1, "model", "models", "system", "systems", "agent", "agents", "reader", "readers") {
		last++
	}
	first := i
	for first > 0 && f.is(first-1, "the", "any", "all", "every", "this", "an", "a", "our", "my", "dear", "automated", "language", "large", "ai") && f.all[first].Gap == 0 {
		first--
	}
	begins := f.all[first].Gap&(text.GapEnd|text.GapColon|text.GapQuote) != 0
	closed := last+1 < len(f.all) && f.all[last+1].Gap&(text.GapComma|text.GapColon|text.GapEnd) != 0 || last+1 == len(f.all)
	switch {
	case begins && closed && last+1 < len(f.all):
		return true
	case f.is(first-1, "hey", "hi", "hello", "attention", "ok", "okay") || f.is(first, "dear"):
		return true
	case f.is(first-1, "to", "for") && f.is(first-2, "note", "notes", "notice", "message", "instruction", "instructions", "attention", "reminder", "directive", "information", "hint"):
		return true
	case f.is(last+1, "reading", "processing", "summarizing", "parsing") || f.is(last+1, "that", "which", "who") && f.is(last+2, "reads", "read", "processes", "process", "sees", "see"):
		return true
	}
	j := last + 1
	for f.is(j, "now", "also", "always", "never", "then") {
		j++
	}
	return f.is(j, "must", "should", "shall", "ought", "please") && !f.is(j+1, "be") || f.is(j, "needs", "need", "has", "have", "is", "are") && f.is(j+1, "to", "required", "instructed", "asked", "ordered", "expected", "authorized", "allowed", "told")
}

// reportsOrder: the page asks the reader to; the text says to delete; the user wants.
func (f sentence) reportsOrder(i int) bool {
	w := f.all[i].Folded
	switch {
	case speechVerbs[w]:
		who := f.findWithin(i, 3, audienceWords)
		if who >= 0 && f.findWithin(who, 4, infinitiveMarkers) >= 0 {
			return true
		}
		return f.in(i-1, documentWords) && (f.is(i+1, "to", "for") || demandVerbs[w] && f.is(i+1, "that"))
	case w == "says" || w == "said" || w == "say" || w == "wants" || w == "asks":
		return f.is(i+1, "to") && f.in(i+2, anyOrderVerbs)
	case userRoles[w]:
		if f.is(i-1, "the", "this", "your", "our", "that", "my", "current") || f.all[i].Gap&text.GapEnd != 0 {
			j := i + 1
			for f.is(j, "has", "have", "had", "also", "always", "already", "explicitly", "really", "would", "will", "does", "not", "is", "was", "been") {
				j++
			}
			return f.in(j, wishVerbs)
		}
	}
	return false
}

// statesDuty: all files must be deleted; the password has to be sent.
func (f sentence) statesDuty(i int) bool {
	if !f.is(i, "must", "should", "shall", "needs", "need", "has", "have", "required", "necessary") {
		return false
	}
	for j := i + 1; j < len(f.all) && j <= i+6; j++ {
		if f.all[j].Gap&text.GapEnd != 0 {
			return false
		}
		if passiveOrders[f.all[j].Folded] && f.is(j-1, "be", "get", "immediately", "promptly", "now", "always", "then", "also", "is", "are") {
			return true
		}
	}
	return false
}

// isLasting: from now on; in all future conversations.
func (f sentence) isLasting() bool {
	for i := range f.all {
		switch {
		case f.is(i, "from") && f.is(i+1, "now") && f.is(i+2, "on"):
			if slices.ContainsFunc(f.all, func(w text.Word) bool { return machineWords[w.Folded] || permanenceWords[w.Folded] }) {
				return true
			}
		case f.is(i, "future") && f.is(i+1, "conversation", "conversations", "session", "sessions", "response", "responses", "chat", "chats", "answers", "replies", "reference", "interactions"):
			return true
		}
	}
	return false
}

// isChatTurn: System: ...; the sentence plays a turn of a conversation.
func (f sentence) isChatTurn() bool {
	return len(f.all) > 1 && f.is(0, "system", "assistant", "user", "human", "instruction", "instructions", "developer", "admin", "administrator") &&
		f.all[1].Gap&text.GapColon != 0 && strings.HasPrefix(strings.TrimLeft(f.s[f.all[0].To:], " *_])"), ":")
}

// endsWithQuestion tells whether a sentence is a question: it states nothing, and it wants an answer.
func endsWithQuestion(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(strings.TrimRight(s, "\"'”’»)*_ 」』!"))
	return r == '?' || r == '？' || r == '؟'
}

// isRussianImperative tells the polite form of an order, which ends the same way in nearly every verb.
func isRussianImperative(w string) bool {
	for _, end := range []string{"йте", "ите", "ьте", "итесь", "йтесь"} {
		if strings.HasSuffix(w, text.Fold(end)) && len(w) > len(end)+2 {
			return true
		}
	}
	return false
}

// hasOrderUnspaced looks for orders in scripts whose words have no blanks between them.
func hasOrderUnspaced(s string) bool {
	s = unspacedNouns.Replace(s)
	for _, w := range unspacedOrders {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
