package digest

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// modelName returns a model's name for a text, shortened to maxNameWords and maxName; "" when it is blank or has more
// than twice as much.
func modelName(s string) string {
	s = strings.Trim(shortLine(s, 2*maxName), " .,:;\"'“”*#`_")
	if n := len(strings.Fields(s)); n > 2*maxNameWords || strings.HasSuffix(s, "...") || isBlank(s) {
		return ""
	}
	return firstWords(s)
}

// modelDescription returns the first 3 sentences of a model's description, at most maxDescription bytes; "" when it is
// blank or holds a number of more than two digits that source does not hold.
func modelDescription(s, source string) string {
	if s = shortLine(s, maxReply); isBlank(s) || !numbersOf(source).holdAll(s) {
		return ""
	}
	return firstSentences(s, 3, maxDescription)
}

// firstWords returns the beginning of s, at most maxNameWords words and maxName bytes (72 in scripts without blanks),
// without punctuation at its end.
func firstWords(s string) string {
	fields := strings.Fields(s)
	s = strings.Join(fields[:min(len(fields), maxNameWords)], " ")
	most := maxName
	if r, _ := utf8.DecodeRuneInString(s); text.IsUnspaced(r) { // a character says as much as a word
		most = 3 * 24
	}
	return strings.TrimRight(text.CutWords(s, most), " .,:;")
}

// firstSentences returns the beginning of s: at most n sentences and most bytes, cut between words if the first alone
// is longer.
func firstSentences(s string, n, most int) string {
	var out string
	for _, t := range text.SentenceTexts(s, n) {
		if out != "" && len(out)+len(t)+1 > most {
			break
		}
		out = strings.TrimSpace(out + " " + t)
	}
	return shortLine(out, most)
}

// plainName returns a name from the first question in asked, else its first sentence, without its opening phrases. A
// blank asked means said. It returns "untitled" when both are blank.
func plainName(asked, said string) string {
	source := asked
	if isBlank(source) {
		source = said
	}
	list := text.SentenceTexts(stripMarkdown(text.Cut(source, 4<<10)), 40)
	best := ""
	for _, t := range list {
		if best == "" || text.IsQuestion(t) && !text.IsQuestion(best) {
			if short := trimOpening(t); short != "" {
				best = t
			}
		}
	}
	name := firstWords(trimOpening(best))
	if name == "" {
		name = firstWords(strings.Join(strings.Fields(source), " "))
	}
	if isBlank(name) {
		return "untitled"
	}
	return name
}

// openingPhrases begin a question or a note and do not tell its topic. The longest that fits is dropped.
var openingPhrases = func() (out [][]string) {
	for line := range strings.Lines(`hello|hi|hey|ok|okay|so|well|thanks|thank you|good morning|good evening|dear assistant
please|please could you|could you|could you please|can you|can you please|would you|would you please|will you|i want you to|i'd like you to
i want to know|i would like to know|i'd like to know|do you know|tell me|tell me about|explain|explain to me|show me|give me|let me know
remember|remember that|please remember|please remember that|note|note that|please note that|keep in mind that|save|save that|don't forget that
what is|what are|what was|what were|what's|who is|who are|who was|who were|who's|where is|where are|where was|where's|when is|when was|when did
which is|the|a|an|me|about|to know
was ist|was sind|wer ist|wer war|wo ist|bitte|kannst du|kannst du mir|sag mir|merke dir dass|der|die|das
qu'est-ce que|quel est|quelle est|qui est|s'il te plait|peux-tu|dis-moi
que es|cual es|quien es|donde esta|por favor|puedes|dime`) {
		for phrase := range strings.SplitSeq(strings.TrimSpace(line), "|") {
			out = append(out, strings.Fields(phrase))
		}
	}
	return out
}()

// trimOpening returns a sentence without its opening phrases and end marks; a phrase that is all of the rest is kept.
// "How do I ...?" becomes "how to ...". "" when s has no word.
func trimOpening(s string) string {
	all := text.Words(s)
	from := 0
	for again := true; again; {
		again = false
		longest := 0
		for _, o := range openingPhrases {
			if len(o) > longest && len(o) < len(all)-from && beginsWith(all[from:], o) {
				longest = len(o)
			}
		}
		if longest > 0 {
			from += longest
			again = true
		}
	}
	rest := all[from:]
	if len(rest) == 0 {
		return ""
	}
	if len(rest) > 3 && rest[0].Folded == "how" && (rest[1].Folded == "do" || rest[1].Folded == "can" ||
		rest[1].Folded == "should" || rest[1].Folded == "would") &&
		(rest[2].Folded == "i" || rest[2].Folded == "you" || rest[2].Folded == "we" || rest[2].Folded == "one") {
		return "how to " + trimEnd(s[rest[3].From:])
	}
	return trimEnd(s[rest[0].From:])
}

// beginsWith reports whether the words begin with phrase, whose words must be folded. phrase must not be longer than
// all.
func beginsWith(all []text.Word, phrase []string) bool {
	for i, w := range phrase {
		if all[i].Folded != w {
			return false
		}
	}
	return true
}

func trimEnd(s string) string { return strings.Trim(s, " .,:;!?？。！؟*#`_()[]-") }

// aboutName returns "about" and content words of the question, for a name that would work as an order when recalled.
// left, the kept text, is used when the question gives no harmless name; unnamed when neither does.
func aboutName(asked, left string) string {
	for _, source := range []string{asked, left} {
		var list []string
		for _, w := range text.Words(text.Cut(source, 2<<10)) {
			if len(list) == maxNameWords-1 {
				break
			}
			if !functionWords[w.Folded] && !orderVerbs[w.Folded] && !ambiguousVerbs[w.Folded] &&
				!orderLeads[w.Folded] && !politeWords[w.Folded] && !machineWords[w.Folded] {
				list = append(list, source[w.From:w.To])
			}
		}
		if name := "about " + strings.Join(list, " "); len(list) > 0 && IsHarmless(name) {
			return text.CutWords(name, maxName)
		}
	}
	return unnamed
}

// fillerWords begin sentences without content.
var fillerWords = text.WordSet(`sure certainly absolutely okay ok yes great thanks hello hi gerne klar naturlich`)

// plainDescription returns the first two sentences of the answer, or of the user's words when the user states something
// or the answer is blank. Fillers such as "Sure!" are skipped. It has at most 300 bytes; "" when both are blank.
func plainDescription(asked, said string) string {
	order := []string{said, asked}
	if i := plainIntent(asked); i == IntentTell || i == IntentPrefer { // "Noted." is not what was learned
		order = []string{asked, said}
	}
	for _, source := range order {
		list := text.SentenceTexts(stripMarkdown(text.Cut(source, 8<<10)), 12)
		for len(list) > 1 && isFiller(list[0]) {
			list = list[1:]
		}
		for i, t := range list {
			list[i] = strings.TrimLeft(t, "-*•· ")
		}
		if s := firstSentences(strings.Join(list, "\n"), 2, 300); !isBlank(s) {
			return s
		}
	}
	return shortLine(said, 300)
}

// isFiller reports whether a sentence is without content, such as "Sure!", "Great question!" or "Here is what I
// found:", or has no word.
func isFiller(s string) bool {
	all := text.Words(s)
	switch {
	case len(all) == 0:
		return true
	case strings.HasSuffix(s, ":") && (all[0].Folded == "here" || all[0].Folded == "here's" ||
		all[0].Folded == "below"):
		return true
	case len(all) > 4:
		return false
	}
	return fillerWords[all[0].Folded] || all[len(all)-1].Folded == "question" ||
		beginsWith(all, []string{"of", "course"}[:min(2, len(all))]) && len(all) > 1
}

// pieceName names a piece of a document by its title and the last of its headings, which are separated by > or /.
// Without either it is named by its text said. It has at most maxName bytes.
func pieceName(title, heading, said string) string {
	if i := strings.LastIndexAny(heading, ">/›"); i >= 0 {
		heading = strings.TrimSpace(heading[i:])
	}
	heading = strings.Trim(heading, " >/›#\uFFFD?")
	title = strings.Trim(title, " #")
	switch {
	case title == "" && heading == "":
		return plainName("", said)
	case heading == "" || strings.EqualFold(title, heading):
		return shortLine(title, maxName)
	case title == "":
		return shortLine(heading, maxName)
	}
	return shortLine(shortLine(title, maxName/2)+": "+heading, maxName)
}

// plainIntent returns the intent of the user's words: the first request in it, else a preference, else a statement;
// [IntentChat] when there is none or s is blank. It reads the first 20 sentences of at most 4 KB.
func plainIntent(s string) string {
	list := text.SentenceTexts(stripMarkdown(text.Cut(s, 4<<10)), 20)
	intent := IntentChat
	for _, t := range list {
		switch got := sentenceIntent(t); {
		case got == IntentHow || got == IntentAsk || got == IntentTask:
			return got // what is asked for counts more than what is told on the way
		case got == IntentPrefer || got == IntentTell && intent == IntentChat:
			intent = got
		}
	}
	return intent
}

var (
	greetingWords = text.WordSet(`hello hi hey thanks thank hallo danke bonjour merci hola gracias ciao grazie`)
	questionWords = text.WordSet(`what who whom whose where when which why is are was were do does did can could will would has have had should was wer wo wann
		welche warum qui quel quelle quand que quien donde cuando cual chi dove quando come`)
	howWords  = text.WordSet(`how wie comment como`)
	keepVerbs = text.WordSet(`remember note save keep memorize don't`)
	likeWords = text.WordSet(
		`like love prefer hate dislike enjoy favourite favorite liebe mag hasse j'aime prefere gusta prefiero`)
)

// intentRules give the intent of a sentence; the first that holds decides. A sentence that none fits is a statement.
var intentRules = []struct {
	intent string // "" = it depends on the statement, see statementIntent
	holds  func(f sentence, asked bool) bool
}{
	{IntentAsk, func(f sentence, asked bool) bool {
		return f.isHowQuestion(asked) && f.is(1, "many", "much", "old", "far", "long", "tall", "big", "often", "are",
			"is", "high")
	}},
	{IntentHow, sentence.isHowQuestion},
	{IntentTask, func(f sentence, asked bool) bool {
		return asked && f.is(0, "can", "could", "would", "will") && f.is(1, "you") &&
			f.findWithin(1, 3, anyOrderVerbs) >= 0 && !f.is(2, "tell", "explain", "say")
	}},
	{IntentAsk, func(f sentence, asked bool) bool {
		return asked || f.in(0, questionWords) && len(f.all) > 2 && !f.is(1, "i") && !f.is(0, "is", "was")
	}},
	{IntentAsk, func(f sentence, _ bool) bool { return f.is(0, "tell", "explain", "describe") }},
	{"", func(f sentence, _ bool) bool { return f.in(0, keepVerbs) }},
	{IntentTask, func(f sentence, _ bool) bool {
		return f.in(0, orderVerbs) || f.in(0, ambiguousVerbs) && f.in(1, objectMarkers)
	}},
	{IntentChat, func(f sentence, _ bool) bool { return f.in(0, greetingWords) && len(f.all) < 6 }},
}

// isHowQuestion: how do I ...; how to ...
func (f sentence) isHowQuestion(asked bool) bool {
	return f.in(0, howWords) && (asked || f.is(1, "to", "do", "can"))
}

// sentenceIntent returns the intent of one sentence of the user, by the first of intentRules that holds; [IntentChat]
// for one without words.
func sentenceIntent(s string) string {
	all := text.Words(s)
	for len(all) > 1 && (orderLeads[all[0].Folded] || politeWords[all[0].Folded]) {
		all = all[1:]
	}
	if len(all) == 0 {
		return IntentChat
	}
	f := sentence{all: all, s: s}
	asked := text.IsQuestion(s)
	for _, r := range intentRules {
		if !r.holds(f, asked) {
			continue
		}
		if r.intent == "" {
			break
		}
		return r.intent
	}
	return statementIntent(f)
}

// statementIntent returns [IntentPrefer] for a statement of likes and dislikes, [IntentChat] for one of less than three
// words or without letters, else [IntentTell].
func statementIntent(f sentence) string {
	for i := range f.all {
		if f.in(i, likeWords) && (f.is(i-1, "i", "my", "we", "person", "user", "really", "don't", "ich") ||
			f.in(i-2, userWords) || f.is(i, "j'aime")) || f.is(i, "likes", "prefers", "hates", "loves") {
			return IntentPrefer
		}
	}
	if len(f.all) < 3 || !strings.ContainsFunc(f.s, unicode.IsLetter) {
		return IntentChat
	}
	return IntentTell
}

var userWords = text.WordSet(`i my me person user`)

// Words that sound one way or the other.
var (
	positiveWords = text.WordSet(`good great nice love lovely happy glad excellent wonderful amazing awesome thanks thank perfect best beautiful enjoy fantastic
		pleased delighted fun excited grateful helpful gut toll schon danke prima super bien genial merci bueno gracias bello grazie отлично спасибо хорошо`)
	negativeWords = text.WordSet(`bad terrible awful hate sad angry annoyed annoying wrong broken worst horrible poor disappointed disappointing frustrated frustrating useless
		upset worried afraid tired sick fail failed fails problem stupid boring pain unhappy lost schlecht schlimm kaputt furchtbar mal mauvais triste malo
		terrible brutto плохо ужасно`)
	negations = text.WordSet(
		`not no never don't doesn't isn't wasn't didn't can't won't hardly without nicht kein keine pas не`)
)

// plainSentiment returns the sentiment of the first 4 KB by counting positive and negative words. A negation up to
// three words before one turns it. A draw, also of none, is [Neutral].
func plainSentiment(s string) string {
	score := 0
	all := text.Words(text.Cut(s, 4<<10))
	for i, w := range all {
		v := 0
		switch {
		case positiveWords[w.Folded]:
			v = 1
		case negativeWords[w.Folded]:
			v = -1
		default:
			continue
		}
		for back := 1; back <= 3 && i-back >= 0 && all[i-back+1].Gap&(text.GapEnd|text.GapComma) == 0; back++ {
			if negations[all[i-back].Folded] {
				v = -v
				break
			}
		}
		score += v
	}
	switch {
	case score > 0:
		return Positive
	case score < 0:
		return Negative
	}
	return Neutral
}

// numberSet is the set of numbers that a text holds.
type numberSet map[string]bool

// numbersOf returns the numbers of s: of each word its digits without the marks that group them, and each run of
// digits.
func numbersOf(s string) numberSet {
	out := numberSet{}
	for _, w := range text.Words(s) {
		if strings.ContainsFunc(w.Folded, unicode.IsDigit) {
			out[onlyDigits(w.Folded)] = true
			for _, p := range strings.FieldsFunc(w.Folded, func(r rune) bool { return !unicode.IsDigit(r) }) {
				out[p] = true
			}
		}
	}
	return out
}

// holdAll reports whether every number of s with more than two digits is in the set, as a whole or each of its runs of
// digits. A text without numbers is held.
func (d numberSet) holdAll(s string) bool {
	for _, w := range text.Words(s) {
		if n := onlyDigits(w.Folded); len(n) > 2 && !d[n] {
			for _, p := range strings.FieldsFunc(w.Folded, func(r rune) bool { return !unicode.IsDigit(r) }) {
				if !d[p] {
					return false
				}
			}
		}
	}
	return true
}

// onlyDigits returns the digits of s, "" when it has none.
func onlyDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return r
		}
		return -1
	}, s)
}
