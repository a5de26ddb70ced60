package digest

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/text"
)

// Bounds of segments, in bytes.
const (
	wholeText       = 300  // a text that is not longer is taken whole
	bestWindow      = 600  // of a longer one
	windowSentences = 3    // in that
	maxSegment      = 1200 // whatever the model quotes
	forModel        = 2500 // of one text that the model is shown
	modelSentences  = 40   // in that
	maxAsked        = 12   // texts that the model is shown
)

// none is what a model replies when nothing of a text matters.
const none = "none"

// Segments returns the part of each text that matters for the query, verbatim and in order, and ByModel when the model chose at
// least one of them, else ByPlain. "" means a blank text, or that nothing matters, which only a model can tell. Gaps are marked
// by dots. Only the first maxAsked texts are shown to the model. The only error is that ctx was canceled.
func (d *Digester) Segments(ctx context.Context, query string, texts []string) ([]string, string, error) {
	if len(texts) == 0 {
		return nil, ByPlain, nil
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
	by := ByPlain
	if err != nil {
		return plain, by, nil
	}
	for i, q := range quotes {
		if i >= len(all) {
			break
		}
		if got, ok := findQuoted(q, all[i]); ok {
			plain[i], by = got, ByModel
		}
	}
	return plain, by, nil
}

// askQuotes asks the model for quotes, by the index of the text; a text that is missing got none. Quotes are not checked against
// the texts. Contradicting quotes of one text are dropped. Without a model it returns errNoModel.
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

// findQuoted returns the whole sentences of body that a model quoted, or all of a short body. It is not ok when the quote holds
// anything that body does not hold. "" and ok means that the model found nothing that matters.
func findQuoted(quote, body string) (string, bool) {
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
	return joinSentences(body, spans, picked), true
}

// wordIndex finds sequences of words in a text whatever stands between them.
type wordIndex struct {
	all   []text.Word
	line  string // the words with a blank before each
	start []int  // where in line each begins
}

// newWordIndex returns the index of the folded words of body.
func newWordIndex(body string) wordIndex {
	l := wordIndex{all: text.Words(body)}
	var b strings.Builder
	for _, w := range l.all {
		l.start = append(l.start, b.Len())
		b.WriteString(" " + w.Folded)
	}
	b.WriteByte(' ')
	l.line = b.String()
	return l
}

// find returns where in the text, in bytes, the words of s stand one after the other. It is not ok when they do not, or s has no
// word. One word alone is no quotation, unless the text has no more.
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

// joinSentences joins the picked sentences in order, with dots where some between are left out, up to maxSegment bytes; a first
// sentence that is longer is cut.
func joinSentences(body string, spans []text.Span, picked map[int]bool) string {
	var b strings.Builder
	last := -1
	for i, s := range spans {
		if !picked[i] {
			continue
		}
		piece := body[s.From:s.To]
		switch {
		case last < 0:
		case i == last+1:
			piece = body[spans[last].To:s.From] + piece
		default:
			piece = " ... " + piece
		}
		if b.Len()+len(piece) > maxSegment {
			if last < 0 {
				return text.CutWords(piece, maxSegment)
			}
			break
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
			out[i] = r.bestWindowOf(t, windowSentences, bestWindow)
		}
	}
	return out
}

// keyWeights weighs the words of a query: rarer ones among the texts weigh more.
type keyWeights map[string]float64

// weighKeys returns the content words of the query with their weight, which is greater the fewer of the texts hold them.
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

// bestWindowOf returns the run of at most most sentences and bytes bytes of t that shares most with the query, filled up with the
// sentences around it. It returns the first sentence when none shares a word, a part of a sentence that is too long, and "" when
// there is none. With most above windowSentences a t that fits is returned whole.
func (r keyWeights) bestWindowOf(t string, most, bytes int) string {
	if len(t) <= bytes && most > windowSentences {
		return t
	}
	spans := text.Sentences(t, len(t))
	if len(spans) == 0 {
		return ""
	}
	hits := make([][]string, len(spans)) // the words of the query in each sentence
	for i, s := range spans {
		for _, k := range contentKeys(t[s.From:s.To]) {
			if _, ok := r[k]; ok && !slices.Contains(hits[i], k) {
				hits[i] = append(hits[i], k)
			}
		}
	}
	from, to, top := 0, 0, 0.0
	fits := func(a, b int) bool {
		return a >= 0 && b < len(spans) && b-a < most && (a == b || spans[b].To-spans[a].From <= bytes)
	}
	for i := range spans {
		if len(hits[i]) == 0 {
			continue
		}
		seen := map[string]bool{}
		score := 0.0
		for j := i; fits(i, j); j++ {
			for _, k := range hits[j] {
				if seen[k] {
					score += r[k] / 10
				} else {
					score += r[k]
				}
				seen[k] = true
			}
			if score > top { // of two that say as much, the shorter
				from, to, top = i, j, score
			}
		}
	}
	if top == 0 {
		return text.CutWords(t[spans[0].From:spans[0].To], wholeText)
	}
	if spans[to].To-spans[from].From > bytes { // one long sentence: what lies around the first word that counts
		return r.partAround(t[spans[from].From:spans[to].To], bytes)
	}
	for fits(from, to+1) { // what comes next often holds the answer
		to++
	}
	for fits(from-1, to) {
		from--
	}
	return t[spans[from].From:spans[to].To]
}

// partAround returns at most bytes bytes of a long sentence around its first word of the query, or its beginning when it has
// none.
func (r keyWeights) partAround(s string, bytes int) string {
	for _, w := range text.Words(s) {
		if _, ok := r[text.Stem(w.Folded)]; ok {
			from := max(0, min(w.From-bytes/3, len(s)-bytes))
			for from < w.From && s[from] != ' ' && from > 0 {
				from++
			}
			return text.CutWords(strings.TrimSpace(s[from:]), bytes)
		}
	}
	return text.CutWords(s, bytes)
}
