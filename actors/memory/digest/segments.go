package digest

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of segments, in bytes.
const (
	wholeText       = 400  // a text that is not longer is taken whole
	bestWindow      = 800  // of a longer one, unless the sentence that matches best is longer
	windowSentences = 3    // in that
	lineSentences   = 8    // in that, of a text of several lines, such as a transcript: its sentences are short
	maxSegment      = 1200 // whatever the model quotes
	forModel        = 2500 // of one text that the model is shown
	modelSentences  = 40   // in that
	maxAsked        = 12   // texts that the model is shown
)

// none is what a model replies when nothing of a text matters.
const none = "none"

// Segments returns the part of each text that matters for the query, verbatim and in order, and [subjects.DigestModel]
// when the model chose at least one of them, else [subjects.DigestPlain]. It always contains the sentence that shares
// most with the query, also when the model chose others, and all of a short text. "" means a blank text, or that
// nothing matters, which only a model can tell. Gaps are marked by dots. Only the first maxAsked texts are shown to the
// model. The only error is that ctx was canceled.
func (d *Digester) Segments(ctx context.Context, query string, texts []string) ([]string, string, error) {
	if len(texts) == 0 {
		return nil, subjects.DigestPlain, nil
	}
	query = cleanText(text.Cut(query, maxQuestion))
	all := make([]string, len(texts))
	for i, t := range texts {
		all[i] = cleanText(text.Cut(t, maxCorpus))
	}
	r := weighKeys(query, all)
	plain := r.plainSegments(all)
	quotes, err := d.askQuotes(ctx, query, all, r)
	if isCanceled(ctx) {
		return nil, "", context.Cause(ctx)
	}
	by := subjects.DigestPlain
	if err != nil {
		return plain, by, nil
	}
	for i, q := range quotes {
		if i >= len(all) {
			break
		}
		if got, ok := r.findQuoted(q, all[i]); ok {
			plain[i], by = got, subjects.DigestModel
		}
	}
	return plain, by, nil
}

// askQuotes asks the model for quotes, by the index of the text; a text that is missing got none. Quotes are not
// checked against the texts. Contradicting quotes of one text are dropped. Without a model it returns errNoModel.
func (d *Digester) askQuotes(ctx context.Context, query string, all []string, r keyWeights) (map[int]string, error) {
	if d.ask == nil {
		return nil, errNoModel
	}
	asked := []fence{{"question", query}}
	for i, t := range all[:min(len(all), maxAsked)] {
		if !isBlank(t) {
			asked = append(asked, fence{strconv.Itoa(i + 1), r.bestWindowOf(t, modelSentences, forModel)})
		}
	}
	got, err := d.askObject(ctx, segmentsPrompt, segmentsSchema, asked)
	if err != nil {
		return nil, err
	}
	list, _ := listOf[struct {
		N     int
		Quote *string
	}](got, "segments")
	quotes := map[int]string{}
	twice := map[int]bool{}
	for _, e := range list {
		if e.Quote == nil || e.N < 1 || e.N > min(len(all), maxAsked) || twice[e.N] {
			continue
		}
		if old, ok := quotes[e.N-1]; ok && old != *e.Quote { // it says two things about one text: none counts
			delete(quotes, e.N-1)
			twice[e.N] = true
			continue
		}
		quotes[e.N-1] = *e.Quote
	}
	return quotes, nil
}

// gapMarks are what a model puts where it left something out.
var gapMarks = strings.NewReplacer("...", "\n\n", "…", "\n\n")

// findQuoted returns the whole sentences of body that a model quoted and the one that matches the query best, or all of
// a short body. It is not ok when the quote holds anything that body does not hold. "" and ok means that the model
// found nothing that matters.
func (r keyWeights) findQuoted(quote, body string) (string, bool) {
	quote = strings.TrimSpace(quote)
	if quote == "" || text.Fold(strings.Trim(quote, " .\"'")) == none {
		return "", true
	}
	quote = gapMarks.Replace(cleanText(quote))
	spans := text.Sentences(body, len(body))
	all := newWordIndex(body)
	picked := map[int]bool{}
	for _, part := range text.Sentences(quote, 64) {
		from, to, ok := all.find(quote[part.From:part.To])
		if !ok {
			return "", false
		}
		for i, s := range spans { // whole sentences: half of one can say the opposite
			if s.From < to && s.To > from {
				picked[i] = true
			}
		}
	}
	switch {
	case len(picked) == 0:
		return "", false
	case len(body) <= wholeText:
		return body, true
	}
	best, _ := r.bestSentence(body, spans)
	if best >= 0 {
		if line := lineAround(body, spans[best]); line.To-line.From <= wholeText { // such as one turn of a transcript
			for i, s := range spans {
				picked[i] = picked[i] || s.From >= line.From && s.To <= line.To
			}
		}
	}
	return joinSentences(body, spans, picked, best), true
}

// wordIndex finds sequences of words in a text whatever stands between them.
type wordIndex struct {
	all   []text.Word
	line  string // the words with a blank before each
	start []int  // where in line each begins
}

// newWordIndex returns the index of the folded words of body, without a possessive 's.
func newWordIndex(body string) wordIndex {
	l := wordIndex{all: text.Words(body)}
	var b strings.Builder
	for _, w := range l.all {
		l.start = append(l.start, b.Len())
		b.WriteString(" " + strings.TrimSuffix(w.Folded, "'s"))
	}
	b.WriteByte(' ')
	l.line = b.String()
	return l
}

// holds reports whether the words of s stand there one after the other; false when s has none.
func (l wordIndex) holds(s string) bool {
	want := newWordIndex(s)
	return len(want.all) > 0 && strings.Contains(l.line, want.line)
}

// find returns where in the text, in bytes, the words of s stand one after the other. It is not ok when they do not, or
// s has no word. One word alone is no quotation, unless the text has no more.
func (l wordIndex) find(s string) (from, to int, ok bool) {
	want := newWordIndex(s)
	if len(want.all) == 0 || len(want.all) == 1 && len(l.all) > 1 {
		return 0, 0, false
	}
	at := strings.Index(l.line, want.line)
	if at < 0 {
		return 0, 0, false
	}
	i, exact := slices.BinarySearch(l.start, at)
	if !exact {
		return 0, 0, false
	}
	return l.all[i].From, l.all[i+len(want.all)-1].To, true
}

// joinSentences joins the picked sentences and the sentence must (-1 = none) in order, with dots where some between are
// left out, up to maxSegment bytes. Of those that do not fit together the first and must are kept.
func joinSentences(body string, spans []text.Span, picked map[int]bool, must int) string {
	const gap = " ... "
	room := maxSegment
	if must >= 0 {
		room -= spans[must].To - spans[must].From + len(gap)
	}
	var b strings.Builder
	last := -1
	for i, s := range spans {
		if !picked[i] && i != must {
			continue
		}
		piece := body[s.From:s.To]
		switch {
		case last < 0:
		case i == last+1:
			piece = body[spans[last].To:s.From] + piece
		default:
			piece = gap + piece
		}
		switch {
		case i == must:
			room = maxSegment
		case b.Len()+len(piece) > room:
			continue
		}
		b.WriteString(piece)
		last = i
	}
	return b.String()
}

// plainSegments returns the part of each text that shares most with the query: all of a short text, "" for a blank one.
func (r keyWeights) plainSegments(all []string) []string {
	out := make([]string, len(all))
	for i, t := range all {
		switch {
		case isBlank(t):
		case len(t) <= wholeText:
			out[i] = t
		default:
			most := windowSentences
			if strings.Contains(t, "\n") {
				most = lineSentences
			}
			out[i] = r.bestWindowOf(t, most, bestWindow)
		}
	}
	return out
}

// keyWeights weighs the words of a query: rarer ones among the texts weigh more.
type keyWeights map[string]float64

// weighKeys returns the content words of the query with their weight, which is greater the fewer of the texts hold
// them.
func weighKeys(query string, all []string) keyWeights {
	r := keyWeights{}
	for _, k := range contentKeys(query) {
		r[k] = 0
	}
	in := map[string]int{}
	for _, t := range all {
		seen := map[string]bool{}
		for _, k := range contentKeys(t) {
			if _, ok := r[k]; ok && !seen[k] {
				seen[k] = true
				in[k]++
			}
		}
	}
	for k := range r {
		r[k] = math.Log(1 + float64(len(all)+1)/float64(in[k]+1))
	}
	return r
}

// bestSentence returns the sentence of t that shares most with the query, the first of several, and the words of the
// query in each sentence; -1 when none shares a word.
func (r keyWeights) bestSentence(t string, spans []text.Span) (best int, hits [][]string) {
	best, hits = -1, make([][]string, len(spans))
	top := 0.0
	for i, s := range spans {
		score := 0.0
		for _, k := range contentKeys(t[s.From:s.To]) {
			if _, ok := r[k]; ok && !slices.Contains(hits[i], k) {
				hits[i] = append(hits[i], k)
				score += r[k]
			}
		}
		if score > top {
			best, top = i, score
		}
	}
	return best, hits
}

// bestWindowOf returns the run of at most most sentences and bytes bytes of t around the sentence that shares most with
// the query which together share most with it, filled up with the sentences around it and with the line of that
// sentence as far as it fits. That sentence is never cut. Without a word in common the window begins with the first
// sentence; "" when there is none. With most above lineSentences a t that fits is returned whole.
func (r keyWeights) bestWindowOf(t string, most, bytes int) string {
	if len(t) <= bytes && most > lineSentences {
		return t
	}
	spans := text.Sentences(t, len(t))
	if len(spans) == 0 {
		return ""
	}
	best, hits := r.bestSentence(t, spans)
	fits := func(a, b int) bool {
		return a >= 0 && b < len(spans) && b-a < most && (a == b || spans[b].To-spans[a].From <= bytes)
	}
	from, to := max(0, best), max(0, best)
	top := 0.0
	for i := best; best >= 0 && fits(i, best); i-- {
		for j := best; fits(i, j); j++ {
			if score := r.shared(hits[i : j+1]); score > top { // of two that say as much, the shorter
				from, to, top = i, j, score
			}
		}
	}
	for fits(from, to+1) { // what comes next often holds the answer
		to++
	}
	for fits(from-1, to) {
		from--
	}
	window := text.Span{From: spans[from].From, To: spans[to].To}
	return addLine(t, window, spans[max(0, best)], bytes)
}

// shared returns how much the sentences with the words hits share with the query. A word counts less when it is
// repeated.
func (r keyWeights) shared(hits [][]string) (score float64) {
	seen := map[string]bool{}
	for _, words := range hits {
		for _, k := range words {
			if seen[k] {
				score += r[k] / 10
			} else {
				score += r[k]
			}
			seen[k] = true
		}
	}
	return score
}

// lineAround returns the line of t that the sentence s stands in.
func lineAround(t string, s text.Span) text.Span {
	line := text.Span{From: strings.LastIndexByte(t[:s.From], '\n') + 1, To: len(t)}
	if n := strings.IndexByte(t[s.To:], '\n'); n >= 0 {
		line.To = s.To + n
	}
	return line
}

// addLine returns the window of t with the line of the sentence best in it, such as one turn of a transcript; the line
// alone when both have more than bytes bytes. It returns the window alone when the line has, and in a text of one line.
func addLine(t string, window, best text.Span, bytes int) string {
	line := lineAround(t, best)
	both := text.Span{From: min(window.From, line.From), To: max(window.To, line.To)}
	switch {
	case line.To-line.From == len(t):
	case both.To-both.From <= bytes:
		window = both
	case line.To-line.From <= bytes:
		window = line
	}
	return strings.TrimSpace(t[window.From:window.To])
}
