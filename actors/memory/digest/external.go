package digest

import (
	"context"
	"strings"

	"conclave/pkg/firewall"
	"conclave/subjects"
)

// What stands where nothing could be kept.
const (
	nothingKept = "Nothing of the answer could be kept."
	unnamed     = "an answer from outside"
)

const (
	maxClaims = 16 // the form says 12, and a few more do no harm
	maxClaim  = 400
)

// digestExternal digests untrusted content, said by the speaker by; question may be "". The model retells it as claims;
// plain code drops from the claims, or without a model from the text itself, every sentence that could work as an order
// when it is recalled. All other fields are made from what is left. The error is [ErrNothing] when nothing is left of
// question and text, or that ctx was canceled.
func (d *Digester) digestExternal(ctx context.Context, out Digest, question, said string, by speaker) (Digest, error) {
	asked, lost := cleanQuestion(question)
	if lost > 0 {
		out.addNote("%s of the question left out: signs of injection",
			countNoun(lost, "sentence was", "sentences were"))
	}
	m := material{{"question", question, byUser}, {"text", said, by}}
	if isBlank(question) {
		m = m[1:]
	}
	r, err := d.askObject(ctx, externalPrompt, externalSchema, m.fences(maxMaterial))
	if err != nil {
		if isCanceled(ctx) {
			return Digest{}, context.Cause(ctx)
		}
		out.noteFailure(err)
	}
	kept, retold := out.keepClaims(r, said)
	if out.Retold = retold; !retold {
		var dropped int
		kept, dropped = stripOrders(said)
		out.noteDropped(dropped, "the text")
		if r != nil {
			out.noteMissing([]string{"claims"})
		}
	}
	left := strings.Join(kept, " ")
	if isBlank(asked) && isBlank(left) {
		return Digest{}, ErrNothing
	}
	m = material{{"question", asked, byUser}, {"text", left, by}}
	out.fillPlain(m)
	if !retold { // a model that retells nothing of use is not asked for a name either
		r = nil
	}
	if r != nil {
		out.noteMissing(out.applyReply(r, m))
	}
	out.setTitle(r, asked, left)
	out.dropHarmfulGraph()
	out.composeCorpus(asked, left)
	return out, nil
}

// keepClaims returns the model's claims without sentences that must not be kept and without claims whose numbers the
// text does not hold, at most maxClaims. It notes how many were dropped. It is not ok when nothing is left; then
// nothing is noted. r may be nil.
func (out *Digest) keepClaims(r reply, said string) (kept []string, ok bool) {
	list, _ := listOf[string](r, "claims")
	var all strings.Builder
	numbers, invented := numbersOf(said), 0
	for i, c := range list {
		if i == maxClaims {
			break
		}
		c = shortLine(c, maxClaim)
		switch {
		case c == "":
		case !numbers.holdAll(c):
			invented++
		default:
			all.WriteString(c)
			if !strings.ContainsAny(c[len(c)-1:], ".!?\"") {
				all.WriteByte('.')
			}
			all.WriteByte('\n')
		}
	}
	kept, dropped := stripOrders(all.String())
	if len(kept) == 0 {
		return nil, false
	}
	out.noteDropped(dropped, "the model's words")
	if invented > 0 {
		out.addNote("%s left out: the text does not hold the numbers", countNoun(invented, "claim was", "claims were"))
	}
	return kept, true
}

func (out *Digest) noteDropped(n int, of string) {
	if n > 0 {
		out.addNote("%s of %s left out: orders, links or signs of injection", countNoun(n, "sentence", "sentences"), of)
	}
}

// setTitle sets name and description: the model's when they are harmless, then those of plain code, then fixed words.
// It sets By, and notes fields of the model that could not be used. r nil means that there is no usable reply.
func (out *Digest) setTitle(r reply, asked, left string) {
	out.By = subjects.DigestPlain
	var missing []string
	name := modelName(r.text("name"))
	if r != nil && (name == "" || !IsHarmless(name)) {
		missing = append(missing, "name")
		name = ""
	}
	if name != "" {
		out.Name, out.By = name, subjects.DigestModel
	} else if !IsHarmless(out.Name) {
		out.Name = aboutName(asked, left)
	}
	words := ""
	if r != nil {
		kept, _ := stripOrders(modelDescription(r.text("description"), asked+"\n"+left))
		if words = strings.Join(kept, " "); words == "" {
			missing = append(missing, "description")
		}
	}
	if words != "" {
		out.Description, out.By = words, subjects.DigestModel
	} else if out.Description = plainDescription("", left); out.Description == "" || !IsHarmless(out.Description) {
		out.Description = nothingKept
	}
	out.noteMissing(missing)
}

// dropHarmfulGraph drops entities and relations whose words could work as an order when they are recalled.
func (out *Digest) dropHarmfulGraph() {
	var entities []Entity
	for _, e := range out.Entities {
		if IsHarmless(e.Name) {
			entities = append(entities, e)
		}
	}
	var relations []Relation
	for _, r := range out.Relations {
		// Relations of the user come from the user's own words; only untrusted content may not state them.
		subject := strings.Replace(r.Subject, UserEntity, "somebody", 1)
		if IsHarmless(subject+" "+r.Predicate+" "+r.Object) && IsHarmless(r.Predicate) && IsHarmless(r.Object) {
			relations = append(relations, r)
		}
	}
	out.Entities, out.Relations = entities, relations
}

// composeCorpus writes the corpus from the question (may be "") and the kept text. When name, description and corpus
// are flagged together, it replaces description and name by fixed words and drops question and text, one after the
// other, until they are not.
func (out *Digest) composeCorpus(asked, left string) {
	write := func() {
		body := left
		if body == "" {
			body = nothingKept
		}
		out.Corpus = sourcesLabel + body
		if asked != "" {
			out.Corpus = questionLabel + asked + "\n" + out.Corpus
		}
	}
	flagged := func() bool {
		return firewall.Scan(out.Corpus).Flagged || firewall.Scan(out.Name+"\n"+out.Description+"\n"+out.Corpus).Flagged
	}
	for _, less := range []func(){
		func() {},
		func() { out.Description = nothingKept },
		func() { out.Name = unnamed },
		func() { asked = "" },
		func() { left = "" },
	} {
		less()
		if write(); !flagged() {
			return
		}
	}
}
