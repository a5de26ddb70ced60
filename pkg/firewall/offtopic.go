package firewall

import "conclave/pkg/text"

const (
	questionWords = `who what what's when where why how which`
	taskWords     = `explain describe write translate compare calculate define suggest recommend create generate provide compose
		solve outline analyze analyse discuss determine classify convert draft identify compute invent propose`
)

// Words of the rule for tasks that have nothing to do with their document.
var (
	taskVerbs     = text.WordSet(taskWords)
	meVerbs       = text.WordSet(`give tell show teach`) // tasks only with "me"
	countVerbs    = text.WordSet(`list name`)            // tasks only with a number
	counts        = text.WordSet(`two three four five six seven eight nine ten some several`)
	questions     = text.WordSet(questionWords)
	questionVerbs = text.WordSet(
		`is are was were do does did can could should would has have wrote painted invented discovered composed said to many much won`)
	// backReferences are words that tie a sentence to the text around it.
	backReferences = text.WordSet(`this that these those it its it's he him his she her they them their we us our ours above below here there you your yours following attached same such next previous
		today tomorrow yesterday tonight monday tuesday wednesday thursday friday saturday sunday`)
	functionWords = text.WordSet(`about after also among between both does down each from have into just like made make many more most much must only other over same should some such than that then
		they this those through under until upon very want were what what's when where which while will with within without would your three four five give tell show list write name good best
		how's please kindly using used work works mean means five people thing things used during every`)
)

const (
	minDocument = 12 // words of a document besides the task
	maxTask     = 30 // words of a task
	// questions and orders in a document; texts with more are exercises, questions and answers, or manuals
	maxOrders = 3
	shortText = 600 // words of a document in which a task counts wherever it stands
)

// matchOffTopicTasks adds a request sign for a question or task that stands by itself in a document and has no content
// word in common with it: "Explain the theory of relativity." in an invoice. A task that refers to the text around it
// is part of the document, and so is one of several.
func (s *scanner) matchOffTopicTasks() {
	tasks, first, end := 0, 0, 0
	seen, asked := 0, 0 // sentences that ask or order something, that ask
	for i := range s.tokens {
		if i > 0 && s.tokens[i].stop&(sEnd|sLine) == 0 {
			continue
		}
		next, ok := s.standaloneTask(i)
		if ok {
			tasks, first, end = tasks+1, i, next
		}
		if s.tokens[i].stop&sAsk != 0 {
			asked++
		}
		if ok || s.tokens[i].stop&sAsk != 0 || i > 0 && s.startsOrder(i) {
			if seen++; seen > maxOrders {
				return
			}
		}
	}
	isAnswered := asked > 1 && tasks == 1 && s.endsAsQuestion(end) // questions and answers
	if tasks != 1 || isAnswered || len(s.tokens)-(end-first) < minDocument || first > 0 && end < len(s.tokens) &&
		len(s.tokens) > shortText {
		return
	}
	if !s.sharesWord(first, end) {
		s.addTokens(techRequest, s.halveQuoted(first, 10), first, end-1)
	}
}

// standaloneTask reports whether the sentence that begins at token i is a task or a question that an assistant could be
// asked without the text around it. end is the token after it.
func (s *scanner) standaloneTask(i int) (end int, ok bool) {
	verb := i
	if s.has(verb, cPlease) {
		verb++
	}
	if s.any(verb, "can", "could", "would") && s.is(verb+1, "you") {
		verb += 2
	}
	isQuestion, isTask := s.opensTask(verb)
	if !isQuestion && !isTask || s.tokens[i].stop&sMark != 0 || s.isRecord && s.opensValue(i) {
		return 0, false // a bullet is part of a list, and a value of a record may be a title
	}
	for end = verb + 1; end < len(s.tokens) && s.tokens[end].stop&(sEnd|sLine) == 0; end++ {
		if end-i > maxTask || backReferences[s.word(end)] &&
			!(isQuestion && s.is(end, "you") && s.any(end-1, "do", "can", "could")) {
			return 0, false
		}
	}
	if isQuestion && !s.endsAsQuestion(end) || end < len(s.tokens) && s.tokens[end].stop&sColon != 0 {
		return 0, false
	}
	return end, end-verb >= 3
}

// opensTask reports whether token i is the first word of a question, or the verb of a task.
func (s *scanner) opensTask(i int) (isQuestion, isTask bool) {
	if !s.has(i, cOpensTask) {
		return false, false
	}
	isQuestion = s.in(i, questions) && (s.in(i+1, questionVerbs) || s.any(i, "which", "what", "who", "what's"))
	isTask = s.in(i, taskVerbs) || s.in(i, meVerbs) && s.is(i+1, "me") || s.in(i, countVerbs) &&
		(s.in(i+1, counts) || s.has(i+1, cDigits))
	return isQuestion, isTask
}

// startsOrder reports whether the sentence that begins at token i is an order of its document: not a polite phrase of a
// mail, which many documents hold.
func (s *scanner) startsOrder(i int) bool {
	return s.has(i, cAct|cSay) && !s.has(i, cCourtesy|cNote) || s.any(i, "do", "don't", "never") &&
		s.any(i+1, "not", "leave", "use", "forget")
}

// endsAsQuestion reports whether a question mark stands before token end, or ends the text.
func (s *scanner) endsAsQuestion(end int) bool {
	if end < len(s.tokens) {
		return s.tokens[end].stop&sAsk != 0
	}
	for i := len(s.text) - 1; i >= int(s.tokens[end-1].to); i-- {
		if s.text[i] == '?' {
			return true
		}
	}
	return false
}

// sharesWord reports whether a content word between two tokens also stands elsewhere in the text, or there is none.
func (s *scanner) sharesWord(first, end int) bool {
	content := map[string]bool{}
	for i := first + 1; i < end; i++ {
		if w := s.word(i); len(w) >= 4 && !functionWords[w] {
			content[wordKey(w)] = true
		}
	}
	if len(content) == 0 {
		return true
	}
	for i := range s.tokens {
		if (i < first || i >= end) && content[wordKey(s.word(i))] {
			return true
		}
	}
	return false
}

// wordKey returns the beginning of a word, by which its forms are compared.
func wordKey(w string) string { return w[:min(len(w), 5)] }
