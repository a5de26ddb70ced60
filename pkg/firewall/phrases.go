package firewall

import "strings"

// plain applies the rules that a word without a class sets off, or one that no class describes.
func (s *scanner) plain(i int) {
	t := s.tokens[i]
	switch s.text[t.from:t.to] {
	case "you":
		s.you(i)
	case "this":
		s.thisIs(i)
	case "i":
		if s.is(i+1, "am") && (s.is(i+2, "your") || s.is(i+2, "the")) && s.has(i+3, cBoss) && s.begins(i) {
			s.add(techAuthority, s.quoted(i, 5), i, i+3)
		}
	case "before":
		s.before(i)
	case "after":
		if s.is(i+1, "you") && s.any(i+2, "do", "did", "have", "are") && s.any(i+3, "that", "this", "done", "so") && s.next(i+3, cSolve, 4) >= 0 {
			s.add(techCompletion, 5, i, i+3)
		}
	case "when", "while", "whenever":
		s.when(i)
	case "from":
		if s.any(i+1, "now") && s.is(i+2, "on") && s.begins(i) {
			weight := 4
			if s.any(i+3, "you", "your", "always", "respond", "answer", "reply", "act", "ignore") {
				weight = 6
			}
			s.add(techPersona, s.quoted(i, weight), i, i+2)
		}
	case "system", "developer", "admin", "administrator", "system_message", "system_prompt":
		s.boss(i)
	case "end", "begin", "beginning", "start":
		s.bounds(i)
	case "new", "updated", "revised", "additional", "real", "actual", "hidden", "secret":
		n := i + 1
		if s.any(n, "system", "important", "secret", "user") {
			n++
		}
		if s.begins(i) && s.any(n, "instruction", "instructions", "directive", "directives", "prompt", "policy", "rules", "orders", "objective") &&
			n+1 < len(s.tokens) && s.tokens[n+1].stop&sColon != 0 {
			s.add(techDelimiter, s.quoted(i, 7), i, n)
		}
	case "decode", "decrypt", "decoding", "unscramble", "base64", "rot13", "dekodiere":
		s.decodeAndDo(i)
	case "important":
		if s.any(i+1, "message", "instructions", "instruction", "notice", "note") && s.any(i+2, "from", "to", "for") {
			weight := 4
			if s.is(i+2, "from") && s.any(i+3, "me", "the", "your") {
				weight = 7
			}
			s.add(techAuthority, s.quoted(i, weight), i, i+2)
		}
	case "your":
		if s.any(i+1, "role", "job", "task", "goal", "purpose") && s.is(i+2, "is") && s.any(i+3, "to", "now") {
			s.add(techPersona, s.quoted(i, 3), i, i+3)
		}
		if s.any(i+1, "new", "real", "true", "actual", "primary") && s.any(i+2, "role", "task", "goal", "job", "instructions", "purpose", "objective", "mission") {
			s.add(techPersona, s.quoted(i, 5), i, i+2)
		}
	}
}

// you: you are now ...; you have successfully analyzed ... Please ...
func (s *scanner) you(i int) {
	switch {
	case s.is(i+1, "are") && s.any(i+2, "now", "no", "henceforth") && s.begins(i):
		weight := 5
		if s.any(i+3, "a", "an", "dan", "in", "the", "longer", "free", "my", "unrestricted", "acting") {
			weight = 7
		}
		s.add(techPersona, s.quoted(i, weight), i, min(i+3, len(s.tokens)-1))
	case s.any(i+1, "have", "ve") && s.any(i+2, "successfully", "now", "already") && s.worked(i+3) && s.begins(i):
		weight := 4
		// A report of work done, then a request: the second sentence is the next task.
		for j := i + 4; j < len(s.tokens) && j <= i+50; j++ {
			if s.has(j, cPlease) && s.begins(j) && !s.any(j+1, "note", "find", "see", "contact", "visit", "let", "click", "close", "wait") || s.tokens[j].stop&(sEnd|sLine) != 0 && s.has(j, cIgnore) {
				weight = 10
				break
			}
		}
		s.add(techCompletion, s.quoted(i, weight), i, i+3)
	case s.any(i+1, "must", "will", "should", "shall") && s.begins(i):
		if s.any(i+2, "now", "strictly", "only", "always") && s.has(i+3, cFollow|cSay|cBe) {
			s.add(techPersona, s.quoted(i, 4), i, i+3)
		}
	}
}

// worked tells a participle of work that an assistant does from what people are told about their accounts.
func (s *scanner) worked(i int) bool {
	if i >= len(s.tokens) {
		return false
	}
	word := s.text[s.tokens[i].from:s.tokens[i].to]
	return s.has(i, cWorked) || strings.HasSuffix(word, "ed") && !personal[word]
}

var personal = map[string]bool{
	"registered": true, "subscribed": true, "unsubscribed": true, "logged": true, "signed": true, "verified": true, "changed": true,
	"updated": true, "completed": true, "confirmed": true, "submitted": true, "activated": true, "created": true, "enrolled": true,
	"purchased": true, "installed": true, "configured": true, "connected": true, "joined": true, "booked": true, "added": true,
	"removed": true, "deleted": true, "canceled": true, "cancelled": true, "linked": true, "passed": true, "ordered": true, "applied": true,
	"uploaded": true, "downloaded": true, "enabled": true, "disabled": true, "scheduled": true, "reserved": true, "renewed": true,
}

// thisIs: this is your developer; this is an important message from me.
func (s *scanner) thisIs(i int) {
	if !s.any(i+1, "is", "comes") {
		return
	}
	for j := i + 2; j < len(s.tokens) && j <= i+4 && s.tokens[j].stop&sEnd == 0; j++ {
		if s.any(j-1, "your", "the", "from") && s.has(j, cBoss) && (s.has(j+1, cBoss) || j+1 < len(s.tokens) && s.tokens[j+1].stop != 0 || s.any(j+1, "speaking", "team", "of")) {
			s.add(techAuthority, s.quoted(i, 5), i, j)
			return
		}
	}
}

// before: before you can solve the task, please do the following first.
func (s *scanner) before(i int) {
	j := i + 1
	if s.is(j, "you") {
		j++
	}
	for s.any(j, "can", "could", "may", "are", "able", "to", "do", "begin", "start") && !s.has(j+1, cTask) && j < i+5 {
		j++
	}
	if !s.has(j, cSolve) {
		return
	}
	if t := s.next(j, cTask, 3); t >= 0 {
		weight := 4
		// the task that I gave you
		for k := t + 1; k < len(s.tokens) && k <= t+4; k++ {
			if s.any(k, "gave", "given", "asked") {
				weight = 8
			}
		}
		if p := s.next(t, cPlease|cStrict, 8); p >= 0 && weight < 7 {
			weight = 6
		}
		s.add(techAuthority, s.quoted(i, weight), i, t)
		return
	}
	if s.any(j, "continuing", "proceeding", "answering", "responding") && j+1 < len(s.tokens) && s.tokens[j+1].stop&sComma != 0 && s.has(j+1, cPlease) {
		s.add(techAuthority, 4, i, j+1)
	}
}

// when: when you answer, include this image.
func (s *scanner) when(i int) {
	if !s.any(i+1, "you", "answering", "responding", "replying", "summarizing", "summarising", "asked", "the") {
		return
	}
	for j := i + 1; j < len(s.tokens) && j <= i+3; j++ {
		if s.any(j, "answer", "respond", "reply", "summarize", "summarise", "answering", "responding", "replying", "summarizing", "summarising") {
			for k := j + 1; k < len(s.tokens) && k <= j+8 && s.tokens[k].stop&sEnd == 0; k++ {
				if s.tokens[k].stop&sComma != 0 && s.has(k, cSay|cPlease|cStrict) || s.any(k, "always", "must") {
					s.add(techReply, s.quoted(i, 5), i, k)
					return
				}
			}
			return
		}
	}
}

// boss: system message, developer override, admin note: as a heading.
func (s *scanner) boss(i int) {
	if !s.begins(i) {
		return
	}
	if s.any(i, "system_message", "system_prompt") {
		if s.tokens[i].stop&(sMark|sOpen) != 0 && !s.data || s.text[max(0, int(s.tokens[i].from)-4):s.tokens[i].from] == "###(" {
			s.add(techAuthority, 9, i, i)
		}
		return
	}
	for j := i + 1; j < len(s.tokens) && j <= i+4 && s.tokens[j].stop&(sEnd|sColon) == 0; j++ {
		if s.any(j, "message", "note", "notice", "override", "alert", "instruction", "instructions", "update", "command", "directive", "prompt", "thought", "announcement") {
			if j+1 < len(s.tokens) && s.tokens[j+1].stop&sColon != 0 || s.any(j, "override") || s.any(j, "thought") && s.is(j+1, "result") {
				s.add(techAuthority, s.quoted(i, 6), i, j)
				return
			}
		}
	}
}

// bounds: end of document, beginning of new instructions.
func (s *scanner) bounds(i int) {
	if !s.begins(i) || !s.is(i+1, "of") || s.tokens[i].stop&(sMark|sOpen) == 0 {
		return
	}
	if s.tokens[i+1].stop != 0 {
		return
	}
	for j := i + 2; j < len(s.tokens) && j <= i+4 && s.tokens[j].stop&(sEnd|sColon|sLine) == 0; j++ {
		if s.any(j, "document", "session", "context", "prompt", "data", "instructions", "conversation", "message", "input", "text", "email", "article",
			"file", "content", "results", "result", "page", "output", "tool_result", "transcript") {
			if j+1 == len(s.tokens) || s.tokens[j+1].stop&(sMark|sClose|sLine) != 0 {
				s.add(techDelimiter, s.quoted(i, 5), i, j)
			}
			return
		}
	}
}

// decodeAndDo: decode this and do what it says.
func (s *scanner) decodeAndDo(i int) {
	for j := i + 1; j < len(s.tokens) && j <= i+9 && s.tokens[j].stop&sEnd == 0; j++ {
		if s.has(j, cFollow) && s.any(j-1, "and", "then", "to") && (s.any(j+1, "what", "the", "it", "as", "its", "them") || s.has(j+1, cOrders)) {
			s.add(techEncoding, s.quoted(i, 8), i, j)
			return
		}
	}
}
