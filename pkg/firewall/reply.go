package firewall

import "conclave/pkg/text"

// matchReply adds a reply sign when the verb at token i dictates the answer: "add ... to your answer", "include ... in
// your response". It must stand where an order may begin, with at most 16 words up to "your".
func (s *scanner) matchReply(i int) {
	if !s.begins(i) {
		return
	}
	y := s.next(i, cYour, 16)
	if y < 0 {
		return
	}
	if r := s.next(y, cReply, 1); r >= 0 && s.any(r, "response", "reply", "answer", "responses", "answers", "replies") {
		s.addTokens(techReply, s.halveDescribed(i, 10), i, r)
	}
}

// matchInsertedCode adds a reply sign when the word for code at token i is the object of an order such as "blend the
// following code into your solution". Manuals say that too, of a project or a page; it weighs most when the answer
// itself must hold the code, or when one of systemCalls is in the 900 bytes after it.
func (s *scanner) matchInsertedCode(i int) {
	if n := i - 1; n < 0 || !s.isBehind(i, cNext, 3) || s.tokens[i].stop&(sEnd|sColon) != 0 {
		return
	}
	from := i
	for from > 0 && i-from < 16 && s.tokens[from].stop&(sEnd|sLine) == 0 {
		from--
	}
	for j := from; j < len(s.tokens) && j <= i+16; j++ {
		if j > i && s.tokens[j].stop&(sEnd|sColon) != 0 {
			return
		}
		if !s.has(j, cYour) {
			continue
		}
		w := s.next(j, cWork|cReply, 2)
		if w < 0 {
			continue
		}
		weight := 6
		if s.any(w, "response", "answer", "reply", "solution", "output") {
			weight = 8
		}
		after := s.text[s.tokens[max(i, w)].to:min(len(s.text), int(s.tokens[max(i, w)].to)+900)]
		if containsAny(after, systemCalls) {
			weight += 4
		}
		s.addTokens(techReply, s.halveQuoted(from, weight), from, max(i, w))
		return
	}
}

// systemCalls are calls by which code reaches the network, another program or the system.
var systemCalls = []string{
	"requests.", "urllib", "urlopen", "socket", "subprocess", "os.system", "popen", "smtplib", "http.client",
	"paramiko", "ftplib", "eval(",
	"exec(", "fetch(", "xmlhttprequest", "curl ", "wget ", "ssh ", "sudo ", "os.remove", "shutil", "rm -", "pynput",
	"pyautogui", "pexpect",
	"telnet", "webbrowser", "os.environ", "getpass", "clipboard", "httpx", "aiohttp", "ctypes", "winreg", "crontab",
	"chmod",
}

// writingShapes are words for how letters or words are written, which no document asks of its readers.
var writingShapes = text.WordSet(
	`capital capitals uppercase lowercase backwards reverse reversed rhyming rhymes emoji emojis symbols cipher`)

// matchReplyShape adds a reply sign when token i begins a demand on the form of the answer: "your response should end
// with ...", "reply using base64". The second weighs most with the name of a language or encoding.
func (s *scanner) matchReplyShape(i int) {
	if !s.has(i, cReply) && !s.is(i, "respond") {
		return
	}
	if i > 0 && s.is(i-1, "your") && s.begins(i-1) && s.any(i+1, "must", "should", "has", "shall", "needs") {
		weight := 10
		if s.is(i+1, "should") || s.any(i, "answers", "responses") { // as teachers say
			weight = 8
		}
		s.addTokens(techReply, s.halveQuoted(i-1, weight), i-1, i+1)
		return
	}
	if s.begins(i) && s.any(i+1, "using", "only", "in", "with", "exclusively", "as") && s.tokens[i].stop&sProse == 0 {
		weight := 5
		if s.next(i, cLang, 4) >= 0 || s.find(i, writingShapes, 4) >= 0 {
			weight = 10
		}
		s.addTokens(techReply, weight, i, i+1)
	}
}
