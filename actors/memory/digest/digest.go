// Package digest turns a text into a memory entry: name, description, corpus, intent, entities and relations.
//
// A small model, when there is one, makes all of them. Its reply is decoded strictly and checked against the text field
// by field. Plain code makes name, description and the names that the text holds when there is no model, or when its
// fields fail; intent, sentiment and relations only a model makes. The text itself is stored as it came, without
// secrets: the caller labels untrusted content, and the code that shows it frames it.
//
// Plain code knows forms and no language: the time in brackets, "NAME: ..." and 'NAME said, "..."' of chats, capitals,
// sentences. The words that it knows are function words, the verbs of speech of these forms, and the names that mean
// the user or a program, which is a security rule. What words said beyond that (negations, attributes, kinship,
// openings) was removed, because no data that was held back showed that it earned its lines.
//
// The package knows no bus and no database, and keeps nothing between calls.
package digest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// ErrNothing means that the text holds nothing that could be remembered.
var ErrNothing = errors.New("nothing is left to remember: the text is empty")

// Ask asks a small model one question and returns its words. schema, when not nil, is the JSON schema that the answer
// must have.
type Ask func(ctx context.Context, system, user string, schema json.RawMessage) (string, error)

// Options configure a Digester. The zero value works without a model.
type Options struct {
	Ask   Ask           // nil = plain code only
	Nonce func() string // 16 hexadecimal characters that no text can know of itself; nil = random
}

// Digester makes digests. It is safe for concurrent use.
type Digester struct {
	ask   Ask
	nonce func() string
}

// New returns a digester.
func New(o Options) *Digester {
	d := &Digester{ask: o.Ask, nonce: o.Nonce}
	if d.nonce == nil {
		d.nonce = randomNonce
	}
	return d
}

// UserEntity is the name of the user in relations. Texts that call the user "the person", as earlier versions did, mean
// the same entity; see isUser.
const UserEntity = "the user"

// Relation is one edge of the knowledge graph.
type Relation struct {
	Subject, Predicate, Object string
	Kind                       string // of the object: person, place, thing, other
	Tense                      string // is, was
	From, Until                string // as far as it was said: a year, a month, a day
	Single                     bool   // there can be only one object at a time, so a newer one takes its place
}

// Digest is the structured form of a text that memory stores.
type Digest struct {
	Name        string
	Description string
	Corpus      string
	Intent      string // of the user's words; "" without a model, and for a piece of a document
	Sentiment   string
	Entities    []string // people, places, organizations and things that the text names
	Relations   []Relation
	By          string   // how name and description were made: [subjects.DigestModel] or [subjects.DigestPlain]
	Flags       []string // signs of injection in the text as it came, by firewall.Scan
}

// Answer digests a question and its answer; one of them may be empty. external marks an answer that holds untrusted
// content. When the model fails, also by a timeout, plain code fills in. The error is [ErrNothing], or that ctx was
// canceled. The corpus is cut at maxCorpus bytes.
func (d *Digester) Answer(ctx context.Context, query, answer string, external bool) (Digest, error) {
	var out Digest
	question := out.admitText(query, maxQuestion)
	said := out.admitText(answer, maxCorpus)
	if isBlank(question) && isBlank(said) {
		return Digest{}, ErrNothing
	}
	by, label := byAssistant, answerLabel
	if external {
		by, label = byUnknown, sourcesLabel
	}
	if external && isBlank(question) {
		out.setCorpus(label + said)
	} else {
		out.setCorpus(questionLabel + question + "\n" + label + said)
	}
	return d.complete(ctx, out, answerPrompt, material{{"question", question, byUser}, {"answer", said, by}})
}

// Note digests one text that the caller wants to keep. speaker is who said it; when it is "", an attribution at the
// beginning of the text counts (see [ParseAttribution]), and a text without either that is not external is the user's
// own words. external, the limit and the error are as for Answer.
func (d *Digester) Note(ctx context.Context, speaker, note string, external bool) (Digest, error) {
	var out Digest
	said := out.admitText(note, maxCorpus)
	if isBlank(said) {
		return Digest{}, ErrNothing
	}
	who, _, body, _ := ParseAttribution(said)
	if speaker != "" && speaker != who { // somebody tells what somebody else said
		body = said
	}
	speaker = cmp.Or(speaker, who)
	by := byUser
	if external {
		by = byUnknown
		said = sourcesLabel + said
	}
	out.setCorpus(said)
	return d.complete(ctx, out, notePrompt, material{{"note", body, namedSpeaker(speaker, by)}})
}

// setCorpus sets the corpus to s, cut to maxCorpus bytes with a mark at its end when it is longer.
func (out *Digest) setCorpus(s string) {
	if len(s) > maxCorpus {
		s = text.Cut(s, maxCorpus-len(truncationMark)) + truncationMark
	}
	out.Corpus = s
}

// Refine digests the corpus of an entry again with the model, in one call. speaker and external are those of the entry;
// answer means that the corpus is a question of the user and its answer, which no label in a text can claim. The error
// is that of the model, or [ErrNothing]: then the entry stays as it is.
func (d *Digester) Refine(ctx context.Context, speaker, corpus string, external, answer bool) (Digest, error) {
	if d.ask == nil {
		return Digest{}, errNoModel
	}
	var failed error
	once := *d
	once.ask = func(ctx context.Context, system, user string, schema json.RawMessage) (said string, err error) {
		said, failed = d.ask(ctx, system, user, schema)
		return said, failed
	}
	question, said := "", strings.TrimPrefix(corpus, sourcesLabel)
	if answer {
		question, said = SplitExchange(corpus)
	}
	var out Digest
	var err error
	if question != "" {
		out, err = once.Answer(ctx, question, said, external)
	} else {
		out, err = once.Note(ctx, speaker, said, external)
	}
	return out, cmp.Or(failed, err)
}

// SplitExchange returns the question of a corpus, "" when it has none, and its text, without the labels. A question
// that has a line with the label of an answer ends before it.
func SplitExchange(corpus string) (question, said string) {
	rest, ok := strings.CutPrefix(corpus, questionLabel)
	if !ok {
		return "", strings.TrimPrefix(corpus, sourcesLabel)
	}
	for _, label := range []string{answerLabel, sourcesLabel} {
		if question, said, ok = strings.Cut(rest, "\n"+label); ok {
			return question, said
		}
	}
	return rest, ""
}

// Piece digests a piece of a document; title and heading may be "". It asks no model, and sets neither intent nor
// sentiment nor relations. An empty body is not rejected.
func (d *Digester) Piece(title, heading, body string) Digest {
	out := Digest{By: subjects.DigestPlain}
	out.Corpus = out.admitText(body, maxCorpus)
	out.Name = pieceName(shortLine(title, maxName), shortLine(heading, 2*maxName), out.Corpus)
	out.Description = cmp.Or(plainDescription("", out.Corpus), out.Name)
	out.Entities = plainEntities(out.Corpus)
	return out
}

// complete digests the texts and completes out, whose Corpus is set already. Name and description come from the model
// where they pass isFaithful, else from plain code. The only error is that ctx was canceled.
func (d *Digester) complete(ctx context.Context, out Digest, prompt string, m material) (Digest, error) {
	out.fillPlain(m)
	r, err := d.askObject(ctx, prompt, digestSchema, m.fences(maxMaterial))
	if err != nil {
		if isCanceled(ctx) {
			return Digest{}, context.Cause(ctx)
		}
		return out, nil
	}
	whole := m.allText()
	if name := modelName(r.text("name")); name != "" && isFaithful(name, whole) {
		out.Name, out.By = name, subjects.DigestModel
	}
	if words := modelDescription(r.text("description"), whole); words != "" && isFaithful(words, whole) {
		out.Description, out.By = words, subjects.DigestModel
	}
	out.applyReply(r, m)
	return out, nil
}

// isFaithful reports whether a model's summary may stand for the text whole. False when it holds a mail or web address
// that whole does not hold: the user may have pasted a text that addresses the model.
func isFaithful(words, whole string) bool {
	whole = strings.ToLower(whole)
	for _, w := range strings.Fields(strings.ToLower(words)) {
		if w = strings.Trim(w, ".,;:!?()[]<>\"'"); (strings.Contains(w, "@") || strings.Contains(w, "://") ||
			strings.HasPrefix(w, "www.")) && !strings.Contains(whole, w) {
			return false
		}
	}
	return true
}

// applyReply sets intent, sentiment, entities and relations from a model's reply; those that cannot be used keep their
// values.
func (out *Digest) applyReply(r reply, m material) {
	if s := r.text("intent"); slices.Contains(intents, s) {
		out.Intent = s
	}
	if s := r.text("sentiment"); slices.Contains(sentiments, s) {
		out.Sentiment = s
	}
	if list, ok := r.entities(m); ok {
		out.Entities = list
	}
	if list, ok := r.relations(m); ok {
		out.Relations = list
	}
}

// fillPlain sets name, description and entities by plain code. m must not be empty.
func (out *Digest) fillPlain(m material) {
	asked, said := m.question(), m.content()
	out.By = subjects.DigestPlain
	out.Name = plainName(asked, said)
	out.Description = cmp.Or(plainDescription(asked, said), out.Name)
	out.Entities = plainEntities(asked, said)
}

// admitText returns a text from outside cleaned, without secrets of a known shape and cut to most bytes, with a mark at
// its end when it was longer. It records firewall flags of the text; it rejects nothing.
func (out *Digest) admitText(raw string, most int) string {
	short := text.Cut(raw, most)
	for _, name := range firewall.Scan(short).Techniques() {
		if !slices.Contains(out.Flags, name) {
			out.Flags = append(out.Flags, name)
		}
	}
	s, _ := firewall.Redact(cleanText(short))
	s = text.Cut(s, most)
	if len(short) < len(raw) {
		s = text.Cut(s, most-len(truncationMark)) + truncationMark
	}
	return s
}

// isCanceled reports whether the caller canceled. A passed deadline does not count: plain code can still answer.
func isCanceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
