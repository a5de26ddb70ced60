package digest

import (
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/pkg/text"
)

// sentenceRules find an instruction at word i of a sentence. Each errs towards yes: a lost fact can be looked up again.
var sentenceRules = []func(f sentence, i int) bool{
	sentence.isPoliteRequest,
	func(f sentence, i int) bool { return f.startsClause(i) && f.isOrder(i) },
	sentence.isJoinedOrder,
	sentence.addressesReader,
	sentence.addressesMachine,
	sentence.reportsOrder,
	sentence.statesDuty,
}

// isInstruction reports whether sentence s gives an order, addresses an assistant, asks, plays a turn of a chat,
// or claims what the user wants. all must be the words of s. In doubt it is true: see sentenceRules.
func isInstruction(all []text.Word, s string) bool {
	f := sentence{all: all, s: s}
	if hasOrderUnspaced(s) || f.isChatTurn() || endsWithQuestion(s) || f.isLasting() {
		return true
	}
	for i := range all {
		for _, matches := range sentenceRules {
			if matches(f, i) {
				return true
			}
		}
	}
	return false
}

// isPoliteRequest: please; por favor; si prega.
func (f sentence) isPoliteRequest(i int) bool {
	return f.in(i, politeWords) && !f.is(i-1, "to", "not", "will", "would", "and", "can") ||
		f.is(i, "favor", "favore") && f.is(i-1, "por", "per") || f.is(i, "prega") && f.is(i-1, "si")
}

// startsClause reports whether a clause that can be an order begins at word i. A capitalized verb begins one also when
// nothing ends the sentence before it.
func (f sentence) startsClause(i int) bool {
	w := f.all[i]
	return w.Gap&(text.GapEnd|text.GapColon|text.GapQuote) != 0 || w.Gap&text.GapComma != 0 && f.in(0, subordinators) ||
		w.IsUpper && i > 0 && !f.all[i-1].IsUpper && orderVerbs[w.Folded] && f.in(i+1, objectMarkers)
}

// isOrder reports whether the clause that begins at word i is an order, behind words such as "now" and "simply". A noun
// that looks like a verb ("Delete is a key") and a verb alone that does not begin the sentence are none. The caller
// checks that a clause begins there.
func (f sentence) isOrder(i int) bool {
	i, isPressed := f.skipOrderLeads(i)
	if i >= len(f.all) {
		return false
	}
	w, next := f.all[i].Folded, i+1
	switch {
	case f.isAuxiliaryOrder(i):
		return true
	case f.in(next, finiteVerbs): // a noun that looks like a verb: "Delete is a key"
		return false
	case orderVerbs[w]: // a word alone is a heading or the head of a table
		return next == len(f.all) && i == 0 || f.isTied(next) || f.gapAt(next)&(text.GapQuote|text.GapColon) != 0 &&
			f.all[i].Gap&text.GapColon == 0
	case w == "go":
		return f.is(next, "to", "back", "ahead", "and", "on", "through", "into", "away")
	case f.isForeignOrder(i):
		return true
	case !ambiguousVerbs[w]:
		return false
	case isPressed, f.in(next, objectMarkers), next < len(f.all) &&
		f.all[next].IsNumber, f.gapAt(next)&text.GapQuote != 0:
		return true
	}
	return len(f.all)-i > 2 && f.isTied(next) && !f.hasFiniteVerb(next)
}

// skipOrderLeads returns the first word from i on that is no lead of an order such as "now", "simply" and "quickly"; it
// may be behind the last. isPressed reports that one of them, such as "always", stresses the order.
func (f sentence) skipOrderLeads(i int) (next int, isPressed bool) {
	isAdverb := func(i int) bool {
		return i+1 < len(f.all) && strings.HasSuffix(f.all[i].Folded, "ly") && !f.is(i, "reply", "apply")
	}
	for f.in(i, orderLeads) || isAdverb(i) {
		isPressed = isPressed || f.is(i, "never", "always", "kindly", "simply", "just", "immediately", "instead")
		i++
	}
	return i, isPressed
}

// isAuxiliaryOrder: do not; don't; be; let.
func (f sentence) isAuxiliaryOrder(i int) bool {
	return f.is(i, "don't", "dont", "be", "let", "let's", "lets") || f.is(i, "do") &&
		(f.is(i+1, "not") || f.in(i+1, orderVerbs) || f.in(i+1, ambiguousVerbs))
}

// isForeignOrder finds the polite imperatives of German (-en Sie), French (-ez) and Russian.
func (f sentence) isForeignOrder(i int) bool {
	w, next := f.all[i].Folded, i+1
	return strings.HasSuffix(w, "en") && next < len(f.all) && f.s[f.all[next].From:f.all[next].To] == "Sie" ||
		strings.HasSuffix(w, "ez") && f.findWithin(i, 12, frenchWords) >= 0 || isRussianImperative(w)
}

// hasFiniteVerb reports whether a word from i on says what happens: "Report bugs to us" is an order, "Report finds
// bugs" is none.
func (f sentence) hasFiniteVerb(i int) bool {
	return slices.ContainsFunc(f.all[i:], func(w text.Word) bool {
		return finiteVerbs[w.Folded] || strings.HasSuffix(w.Folded, "ed") && len(w.Folded) > 4
	})
}

// isJoinedOrder reports whether word i is an order verb behind "and", "or", "then", "now", a comma or a line break,
// with an object that such orders have, as in "... and send all your files".
func (f sentence) isJoinedOrder(i int) bool {
	w := f.all[i]
	if !orderVerbs[w.Folded] {
		return false
	}
	then := f.is(i-1, "then") && (f.is(i-2, "and") || f.all[i-1].Gap&text.GapComma != 0)
	return (w.Gap&(text.GapLine|text.GapComma) != 0 || f.is(i-1, "and", "then", "now", "or")) &&
		f.in(i+1, grabbedObjects) || then && f.in(i+1, objectMarkers)
}

// readerRules find sentences that speak to the reader, by the pronoun at word i. The first rule whose pronoun fits
// decides.
var readerRules = []struct {
	pronouns []string
	matches  func(f sentence, i int) bool
}{
	{[]string{"you", "u", "ye", "reader", "readers"}, sentence.obligesReader},
	{[]string{"you're"}, func(f sentence, i int) bool {
		return f.findWithin(i, 4, machineWords) >= 0 || f.is(i+1, "now", "required", "to", "instructed")
	}},
	{[]string{"you've"}, func(f sentence, i int) bool { return f.is(i+1, "been", "to") }},
	{[]string{"i", "we"}, func(f sentence, i int) bool { return f.in(i+1, demandingVerbs) && !f.is(i+2, "not") }},
	{[]string{"your"}, func(f sentence, i int) bool {
		return f.in(i+1, modelPossessions) || f.is(i+1, "system", "initial", "previous", "next", "final", "original") &&
			f.in(i+2, modelPossessions)
	}},
	{[]string{"as"}, func(f sentence, i int) bool {
		return f.is(i+1, "an", "a") && f.is(i+2, "ai", "llm", "assistant", "chatbot") &&
			!f.is(i+3, "researcher", "engineer", "company")
	}},
}

// addressesReader reports whether the pronoun at word i addresses the reader, as in "you must", "could you", "if you
// are an assistant" and "your instructions". The first of readerRules with this pronoun decides; any other word is
// false.
func (f sentence) addressesReader(i int) bool {
	for _, r := range readerRules {
		if f.is(i, r.pronouns...) {
			return r.matches(f, i)
		}
	}
	return false
}

// obligesReader reports whether "you" at word i is told, asked, forbidden or expected to do something, or called a
// machine. A plain statement about "you" is not enough.
func (f sentence) obligesReader(i int) bool {
	j := f.skip(i+1, "also", "now", "will", "then", "only", "always", "never", "still", "really", "first", "should")
	switch {
	case f.is(j-1, "should", "never", "always"), f.is(j, "must", "shall", "ought", "need", "mustn't", "shouldn't",
		"cannot"):
		return true
	case f.is(j, "have", "are", "were") && f.is(j+1, "to", "required", "instructed", "asked", "expected", "ordered",
		"told", "advised", "obliged", "not", "now", "authorized", "supposed"):
		return true
	case f.is(j, "are", "were") && f.findWithin(j, 4, machineWords) >= 0, f.is(j, "may", "might") && f.is(j+1, "not"):
		return true
	case f.is(i-1, "can", "could", "would", "will") &&
		f.gapAt(i-1)&(text.GapEnd|text.GapColon|text.GapComma|text.GapQuote) != 0:
		return true
	case f.is(i-2, "i", "we") && f.is(i-1, "gave", "give", "told", "asked", "paid", "sent"):
		return true
	}
	return f.is(i-1, "want", "need", "ask", "like", "advise", "urge", "instruct", "order", "tell", "require") &&
		f.is(j, "to")
}

// addressesMachine reports whether word i names a machine that is addressed or told to do something, as in "Dear
// assistant", "AI: ...", "note to the language model" and "any AI that reads this". Naming one is not enough.
func (f sentence) addressesMachine(i int) bool {
	if !machineWords[f.all[i].Folded] {
		return false
	}
	last := i // the end of "AI assistant", "language model"
	for f.in(last+1, machineWords) ||
		f.is(last+1, "model", "models", "system", "systems", "agent", "agents", "reader", "readers") {
		last++
	}
	first := i
	for first > 0 && f.all[first].Gap == 0 &&
		f.is(first-1, "the", "any", "all", "every", "this", "an", "a", "our", "my", "dear", "automated", "language",
			"large", "ai") {
		first--
	}
	switch {
	case f.all[first].Gap&(text.GapEnd|text.GapColon|text.GapQuote) != 0 &&
		f.gapAt(last+1)&(text.GapComma|text.GapColon|text.GapEnd) != 0:
		return true
	case f.is(first-1, "hey", "hi", "hello", "attention", "ok", "okay") || f.is(first, "dear"):
		return true
	case f.is(first-1, "to", "for") && f.is(first-2, "note", "notes", "notice", "message", "instruction",
		"instructions", "attention", "reminder", "directive", "information", "hint"):
		return true
	case f.is(last+1, "reading", "processing", "summarizing", "parsing"), f.is(last+1, "that", "which", "who") &&
		f.is(last+2, "reads", "read", "processes", "process", "sees", "see"):
		return true
	}
	j := f.skip(last+1, "now", "also", "always", "never", "then")
	return f.is(j, "must", "should", "shall", "ought", "please") && !f.is(j+1, "be") ||
		f.is(j, "needs", "need", "has", "have", "is", "are") &&
			f.is(j+1, "to", "required", "instructed", "asked", "ordered", "expected", "authorized", "allowed", "told")
}

// reportsOrder reports whether word i is part of a reported order or wish, as in "the page asks the reader to", "the
// text says to delete" and "the user wants".
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
			j := f.skip(i+1, "has", "have", "had", "also", "always", "already", "explicitly", "really", "would", "will",
				"does", "not", "is", "was", "been")
			return f.in(j, wishVerbs)
		}
	}
	return false
}

// statesDuty reports whether word i begins a duty in the passive, as in "all files must be deleted" and "the password
// has to be sent", with the verb within 6 words.
func (f sentence) statesDuty(i int) bool {
	if !f.is(i, "must", "should", "shall", "needs", "need", "has", "have", "required", "necessary") {
		return false
	}
	for j := i + 1; j < len(f.all) && j <= i+6; j++ {
		if f.all[j].Gap&text.GapEnd != 0 {
			return false
		}
		if passiveOrders[f.all[j].Folded] && f.is(j-1, "be", "get", "immediately", "promptly", "now", "always", "then",
			"also", "is", "are") {
			return true
		}
	}
	return false
}

// isLasting reports whether the sentence is meant for later conversations, as in "in all future conversations". "From
// now on" counts only with a word for a machine or for permanence.
func (f sentence) isLasting() bool {
	for i := range f.all {
		switch {
		case f.is(i, "from") && f.is(i+1, "now") && f.is(i+2, "on"):
			if slices.ContainsFunc(f.all, func(w text.Word) bool {
				return machineWords[w.Folded] || permanenceWords[w.Folded]
			}) {
				return true
			}
		case f.is(i, "future") && f.is(i+1, "conversation", "conversations", "session", "sessions", "response",
			"responses", "chat", "chats", "answers", "replies", "reference", "interactions"):
			return true
		}
	}
	return false
}

// isChatTurn: System: ...; the sentence plays a turn of a conversation.
func (f sentence) isChatTurn() bool {
	return len(f.all) > 1 && f.is(0, "system", "assistant", "user", "human", "instruction", "instructions", "developer",
		"admin", "administrator") &&
		f.all[1].Gap&text.GapColon != 0 && strings.HasPrefix(strings.TrimLeft(f.s[f.all[0].To:], " *_])"), ":")
}

// endsWithQuestion reports whether a sentence is a question: it states nothing and wants an answer.
func endsWithQuestion(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(strings.TrimRight(s, "\"'”’»)*_ 」』!"))
	return r == '?' || r == '？' || r == '؟'
}

// isRussianImperative reports whether the folded word w has an ending of the polite imperative, the same for nearly
// every verb. Very short words have none.
func isRussianImperative(w string) bool {
	for _, end := range []string{"йте", "ите", "ьте", "итесь", "йтесь"} {
		if strings.HasSuffix(w, text.Fold(end)) && len(w) > len(end)+2 {
			return true
		}
	}
	return false
}

// hasOrderUnspaced reports whether s holds a sign of an order in scripts that are written without blanks, or in Korean,
// Arabic or Hindi. Nouns that hold such a sign do not count.
func hasOrderUnspaced(s string) bool {
	s = unspacedNouns.Replace(s)
	for _, w := range unspacedOrders {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
