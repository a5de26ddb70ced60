package reward

import (
	"iter"
	"strings"
)

// The words and phrases of [classifyWords], folded as [splitClauses] does: lower case, no accents, umlauts written out,
// no apostrophes. The longest matching phrase counts, so that a phrase hides its single words.

var praise = joinLists(
	// English
	`good, great, perfect, perfectly, excellent, awesome, amazing, nice, nicely, brilliant, fantastic, wonderful, superb, outstanding, impressive, correct, accurate, precise, exactly,
	helpful, helped, helps, useful, works, worked, solved, spot on, well done, good job, nailed it, is right, was right, are right, were right, got it right, right answer, is true, was true,
	makes sense, made sense, i like, i liked, liked it, love it, loved it, love this, love that, i love, much better, way better, cool, neat, thumbs up, bravo, clear, error free, well explained, well written`,
	// German
	`super, spitze, klasse, prima, genial, perfekt, fehlerfrei, stimmt, passt, genau, hilft, geholfen, half mir, funktioniert, geklappt, gefaellt, gefallen, top, hast recht, hatte recht, hattest recht, haben recht,
	viel besser, weiter so, einwandfrei, tadellos`,
	inflect(
		`gut, toll, richtig, korrekt, hilfreich, ausgezeichnet, hervorragend, wunderbar, grossartig, schoen, treffend, nuetzlich, brauchbar, verstaendlich, perfekt, super, genial, fantastisch`, `, e, er, es, en, em`),
	// French
	`bien, bon, bonne, bons, bonnes, super, genial, geniale, utile, utiles, formidable, magnifique, impeccable, exactement, c est juste, vrai, as raison, avez raison, ca marche, fonctionne, m a aide, aide bien,
	j aime, j adore, chouette, nickel, bien joue`,
	inflect(`parfait, excellent, correct, exact, precis`, `, e, s, es`),
	// Spanish
	`genial, excelente, util, utiles, estupendo, estupenda, fantastico, fantastica, funciona, sirve, sirvio, me ayudo, me ayudaste, me gusta, me gusto, me encanta, me encanto, tienes razon, buen trabajo, muy bueno, muy buena,
	es bueno, es buena, mucho mejor, es verdad, es cierto, acertado, acertada, increible`,
	inflect(`perfect, correct, exact`, `o, a, os, as`),
	`👍, 👏, 🙂, 😀, 😃, 😄, 😁, 😊, 😍, 🥰, 🎉, 💯, ❤, ✅, 👌, 🙌, +1`,
)

var blame = joinLists(
	// English
	`wrong, wrongly, bad, badly, incorrect, false, untrue, inaccurate, imprecise, terrible, awful, horrible, useless, unhelpful, nonsense, rubbish, garbage, crap, bullshit, poor, poorly, misleading, mistaken, mistake, mistakes,
	error, errors, fail, fails, failed, failure, broken, worse, worst, stupid, dumb, annoying, confusing, confused, disappointing, disappointed, misunderstood, misunderstand, incomplete, vague, hallucinated, hallucination,
	hallucinating, made up, made that up, made it up, off topic, missed the point, missing the point, beside the point, waste of time, thanks for nothing, thank you for nothing, yeah right, you lied, you are lying, is a lie,
	not work, not help, not like, dont like, dont work, not answer, not answered, not true, not what i, not my question, not make sense, not make any sense, no sense, not understand, not understood, dislike, i hate, hate it,
	too long, too short, too slow, too vague, too complicated, too much, could be better, could have been better, should be better, thumbs down, right answer is, right answer would, correct answer is, correct answer would,
	is that supposed, forgot, ignored my, ignored the, out of date, outdated`,
	// German
	`unsinn, quatsch, bloedsinn, mist, schrott, muell, fehler, fehlerhaft, unbrauchbar, nutzlos, daneben, inkorrekt, enttaeuscht, gelogen, erfunden, thema verfehlt, am thema vorbei, nicht verstanden, verfehlt, nicht wahr,
	zu lang, zu kurz, zu langsam, zu vage, zu kompliziert, besser sein koennen, koennte besser sein, richtig ist, richtig waere, richtig heisst, korrekt waere, so nicht, nicht das was, nicht was ich, nicht meine frage, vergessen, veraltet`,
	inflect(
		`falsch, schlecht, schlimm, furchtbar, schrecklich, verkehrt, unrichtig, ungenau, unvollstaendig, irrefuehrend, enttaeuschend, dumm, bloed, verwirrend, unverstaendlich`, `, e, er, es, en, em`),
	// French
	`faux, fausse, fausses, nul, nulle, nuls, nulles, pire, horrible, affreux, erreur, erreurs, inutile, inutiles, n importe quoi, a cote de la plaque, hors sujet, as tort, avez tort, te trompes, t es trompe, vous trompez,
	est mal, tres mal, pas compris, pas vrai, marche pas, aide pas, trop long, trop court, trop lent, pas ce que, betise, betises, decu, decue, idiot, idiote`,
	inflect(`mauvais, incorrect, inexact, errone, decevant, imprecis`, `, e, s, es`),
	// Spanish
	`esta mal, muy mal, mal hecho, fatal, falso, falsa, errores, equivocas, equivocaste, equivoque, te equivocas, inutil, inutiles, mentira, basura, peor, tonteria, tonterias, no es lo que, no entendiste, no has entendido, no ayuda,
	podria ser mejor, demasiado largo, demasiado larga, demasiado corto, demasiado lento, fuera de tema`,
	inflect(`mal, incorrect, equivocad, errone, pesim, desactualizad`, `o, a, os, as`),
	`👎, 🙁, 😞, 😠, 😡, 🤬, 😢, 😭, 🤦, 🤮, 💩, ❌, 😒, -1`,
)

// otherWords are ordered: an entry of a later list overrides an earlier one.
var otherWords = []struct {
	feel sentiment
	list string
}{
	{
		kind,
		`thanks, thank you, thx, ty, cheers, yes, yep, yeah, yup, fine, danke, dankeschoen, vielen dank, ja, jawohl, merci, oui, gracias, bueno`,
	},
	{
		unkind,
		`nein, non, nope, nah, nee, should be, should have been, muesste, muss heissen, deberia ser, debe ser, devrait etre`,
	},
	{not, `not, never, cannot, dont, doesnt, didnt, isnt, wasnt, arent, wont, cant, without, hardly, barely, nothing, none, neither, anything but, far from,
		nicht, nie, niemals, kein, keine, keinen, keiner, keinem, keines, nichts, ohne, kaum, alles andere als, weit entfernt, weder,
		pas, jamais, rien, sans, aucun, aucune, guere, tout sauf, loin d etre, nada, nunca, jamas, sin, ningun, ninguna, tampoco, lejos de`},
	{nope, `no`},
	{half, `half, partly, partially, almost, nearly, somewhat, not entirely, not quite, not completely, not fully, halb, teilweise, teils, beinahe, nicht ganz, nur halb,
		partiellement, en partie, presque, a moitie, pas tout a fait, parcialmente, en parte, casi, a medias, no del todo`},
	{
		but,
		`but, however, although, though, aber, jedoch, allerdings, sondern, obwohl, mais, cependant, pourtant, pero, sino, aunque`,
	},
	// Idioms: they say the opposite of their words, or what their words alone do not say.
	{good, `not bad, not bad at all, not too bad, not wrong, cannot complain, no mistakes, no errors, could not be better, nothing wrong, no complaints,
		nicht schlecht, nicht falsch, besser geht nicht, besser geht es nicht, pas mal, pas mal du tout, pas faux, sans faute, nada mal, no esta mal, no esta nada mal`},
	{bad, `not good enough, no help, no use, doesnt work, didnt work, pas terrible, no sirve de nada`},
	// Words that are no opinion, although they look like one.
	{plain, `no thanks, no thank you, no problem, no hay problema, kein problem, kein ding, pas de probleme, not only, nicht nur, pas seulement, no solo, why not, warum nicht, pourquoi pas,
		eh bien, bien sur, bien que, ou bien, o bien, mas bien, si bien, ah bon, pour de bon, nulle part, por cierto, buenos dias, buenas tardes, buenas noches, good morning, good evening, good night,
		guten morgen, guten tag, guten abend, gute nacht, good question, gute frage, bonne question, a vrai dire, ja bitte, yes please`},
}

// trailingNegations are negations that may follow what they invert.
var trailingNegations = map[string]bool{"nicht": true, "pas": true}

// sentenceStarts are words that begin a sentence after a no.
var sentenceStarts = newSet(
	`that, this, it, its, thats, you, your, youre, the, i, he, she, we, they, there, these, those`)

// lexicon has every word and phrase; longestPhrase has the number of words of the longest phrase by its first word.
var lexicon, longestPhrase = compileLexicon()

// compileLexicon merges the lists; later entries override earlier ones. phrases is the number of words of the longest
// entry by its first word.
func compileLexicon() (all map[string]sentiment, phrases map[string]int) {
	all, phrases = map[string]sentiment{}, map[string]int{}
	put := func(f sentiment, list string) {
		for w := range splitList(list) {
			all[w] = f
			first, _, _ := strings.Cut(w, " ")
			phrases[first] = max(phrases[first], strings.Count(w, " ")+1)
		}
	}
	put(good, praise)
	put(bad, blame)
	for _, o := range otherWords {
		put(o.feel, o.list)
	}
	return all, phrases
}

// splitList iterates over the entries of a comma-separated list, with single blanks between words. It skips empty
// entries.
func splitList(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for w := range strings.SplitSeq(list, ",") {
			if w = strings.Join(strings.Fields(w), " "); w != "" && !yield(w) {
				return
			}
		}
	}
}

func joinLists(all ...string) string { return strings.Join(all, ",") }

// inflect returns every stem with every ending, as a comma-separated list. Both are comma-separated; an empty ending
// keeps the stem alone.
func inflect(stems, endings string) string {
	var out []string
	for s := range splitList(stems) {
		for e := range strings.SplitSeq(endings, ",") {
			out = append(out, s+strings.TrimSpace(e))
		}
	}
	return strings.Join(out, ",")
}

func newSet(list string) map[string]bool {
	out := map[string]bool{}
	for w := range splitList(list) {
		out[w] = true
	}
	return out
}
