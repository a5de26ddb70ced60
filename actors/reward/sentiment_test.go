package reward

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestClassifyWords: what words alone say. Half of the rows are tricks: negations, politeness, questions, idioms, two
// opinions.
func TestClassifyWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, words string
		want        int
	}{
		{"wrong", "That was wrong.", -1},
		{"wrong, one word", "wrong", -1},
		{"loud", "WRONG!!!", -1},
		{"right", "Yes, that's right!", 1},
		{"perfect", "thanks, perfect", 1},
		{"great answer", "Great answer, exactly what I needed", 1},
		{"it works", "It works now", 1},
		{"it helped", "that helped a lot", 1},
		{"spot on", "Spot on.", 1},
		{"you are right", "you're right", 1},
		{"made up", "You made that up", -1},
		{"missed the point", "you missed the point", -1},
		{"not what was asked", "That's not what I asked for", -1},
		{"too long", "far too long", -1},
		{"thanks alone", "Thank you", 1},
		{"a thumb", "👍", 1},
		{"a thumb of another colour", "👎🏽", -1},
		{"a heart", "❤️", 1},
		{"a face", ":-(", -1},
		{"plus one", "+1", 1},
		{"minus one", "-1", -1},
		{"not bad", "not bad", 1},
		{"not bad at all", "Not bad at all!", 1},
		{"trick: not good", "this is not good", -1},
		{"trick: isn't good", "this isn't good", -1},
		{"trick: isn’t, with a curved apostrophe", "this isn’t very helpful", -1},
		{"trick: isnt, without one", "isnt correct", -1},
		{"trick: far away negation", "I don't think that is right", -1},
		{"trick: a negation too far away for the word", "I did not ask you to write a poem about the sea at night " +
			"and yet it is good", 1},
		{"trick: didn't like", "I didn't like it", -1},
		{"trick: doesn't work", "it doesn't work", -1},
		{"trick: no that is wrong", "No that is wrong", -1},
		{"trick: no, with a comma", "No, that's wrong.", -1},
		{"trick: no mistakes", "no mistakes, well done", 1},
		{"trick: nothing wrong", "nothing wrong with that", 1},
		{"trick: without errors", "It ran without errors", 1},
		{"trick: thanks, but", "Thanks, but that is wrong", -1},
		{"trick: thanks for nothing", "Thanks for nothing", -1},
		{"trick: no thanks", "no thanks", 0},
		{"trick: anything but good", "anything but good", -1},
		{"trick: could be better", "could be better", -1},
		{"trick: the right answer is", "The right answer is 42", -1},
		{"trick: should be", "It should be 42", -1},
		{"trick: half right", "half right", 0},
		{"trick: not quite right", "not quite correct", 0},
		{"trick: two opinions", "Good, but too long", 0},
		{"trick: two sentences that disagree", "The first part is perfect. The second is wrong.", 0},
		{"trick: a question", "Is that correct?", 0},
		{"trick: a question about blame", "What is wrong here?", 0},
		{"trick: an opinion and a question", "Perfect! Can you do the second one?", 1},
		{"trick: yeah right", "Yeah right", -1},
		{"trick: a good evening", "good evening", 0},
		{"trick: a good question", "good question", 0},
		{"trick: part of a word", "The badger is in the goodwill shop", 0},
		{"unclear", "I will try it tomorrow", 0},
		{"a topic", "the capital of France", 0},
		{"ok", "ok", 0},
		{"nothing", "", 0},
		{"signs", "... --- ???", 0},

		{"German: falsch", "Das ist falsch", -1},
		{"German: inflected", "eine schlechte Antwort", -1},
		{"German: danke", "Danke, super!", 1},
		{"German: stimmt", "Stimmt genau.", 1},
		{"German: Umlaut", "Sehr schön", 1},
		{"German: Umlaut with a dot that comes after", "Sehr scho\u0308n", 1},
		{"German: Umlaut written out", "sehr schoen", 1},
		{"German: Unsinn", "Das ist Unsinn", -1},
		{"German: Thema verfehlt", "Thema verfehlt", -1},
		{"German: nicht schlecht", "Nicht schlecht!", 1},
		{"trick: German: schon is not schön", "Das hatten wir schon", 0},
		{"trick: German: stimmt nicht", "Das stimmt nicht", -1},
		{"trick: German: hilft mir nicht", "Das hilft mir nicht weiter", -1},
		{"trick: German: nicht richtig", "Das ist leider ganz und gar nicht richtig", -1},
		{"trick: German: nicht ganz richtig", "nicht ganz richtig", 0},
		{"trick: German: keine Fehler", "keine Fehler gefunden", 1},
		{"trick: German: danke, aber", "Danke, aber das ist falsch", -1},
		{"trick: German: richtig wäre", "Richtig wäre 42", -1},
		{"trick: German: alles andere als gut", "alles andere als gut", -1},
		{"trick: German: schau mal", "schau mal", 0},
		{"trick: German: nicht nur gut", "nicht nur gut, sondern perfekt", 1},
		{"trick: German: nicht wahr, as a question", "Du kannst das, nicht wahr?", 0},
		{"German: nein", "Nein.", -1},

		{"French: faux", "C'est faux", -1},
		{"French: parfait", "Merci, c'est parfait", 1},
		{"French: très bien", "Très bien", 1},
		{"French: raison", "Tu as raison", 1},
		{"French: n'importe quoi", "C’est n’importe quoi", -1},
		{"French: pas mal", "Pas mal", 1},
		{"trick: French: pas bon", "Ce n'est pas bon", -1},
		{"trick: French: ne fonctionne pas", "Ça ne fonctionne pas", -1},
		{"trick: French: pas faux", "ce n'est pas faux", 1},
		{"trick: French: merci, mais", "Merci mais c'est faux", -1},
		{"trick: French: bien sûr", "bien sûr", 0},
		{"trick: French: tout sauf", "tout sauf correct", -1},

		{"Spanish: incorrecto", "Es incorrecto", -1},
		{"Spanish: está mal", "Eso está mal", -1},
		{"Spanish: perfecto", "¡Perfecto, gracias!", 1},
		{"Spanish: razón", "Tienes razón", 1},
		{"Spanish: nada mal", "nada mal", 1},
		{"trick: Spanish: no es correcto", "No es correcto", -1},
		{"trick: Spanish: no me gusta", "No me gusta", -1},
		{"trick: Spanish: no funciona", "no funciona", -1},
		{"trick: Spanish: no está mal", "no está mal", 1},
		{"trick: Spanish: gracias, pero", "Gracias, pero te equivocas", -1},
		{"trick: Spanish: a question", "¿Está bien?", 0},
		{"trick: Spanish: por cierto", "por cierto", 0},
		{"trick: Spanish: buenos días", "Buenos días", 0},

		{"another language", "Это неправильно", 0},
		{"trick: spaces that are none", "that\u00a0was\u2003wrong", -1},
		{"trick: upper case with accents", "TRÈS BIEN", 1},
	} {
		if got := classifyWords(tt.words); got != tt.want {
			t.Errorf("%s: %q is %d, want %d", tt.name, tt.words, got, tt.want)
		}
	}
}

// TestLexicon: an entry that clauses would never write is never found.
func TestLexicon(t *testing.T) {
	t.Parallel()
	for w, f := range lexicon {
		if f == but || strings.ContainsAny(w, "🙂🙁") {
			continue
		}
		var got []string
		for _, c := range splitClauses(w) {
			got = append(got, c.words...)
		}
		if s := strings.Join(got, " "); s != w {
			t.Errorf("%q is read as %q", w, s)
		}
	}
	if len(lexicon) < 600 {
		t.Errorf("only %d words", len(lexicon))
	}
}

func FuzzWords(f *testing.F) {
	for _, s := range []string{
		"not bad", "Das stimmt nicht", "c'est faux", "n't", "'s", "isn't", "no", "nicht", "¿?¿",
		"+1 -1 -", "half half good not", strings.Repeat("not ", 50) + "good", "a\u0308 \u0308", "\xff'\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := classifyWords(s)
		if got < -1 || got > 1 {
			t.Fatalf("%q is %d", s, got)
		}
		for _, same := range []string{" " + s + "\n", s + " ", "\t" + s} {
			if again := classifyWords(same); again != got {
				t.Errorf("%q is %d, and %q is %d", s, got, same, again)
			}
		}
		kept := cleanWords(s)
		if !utf8.ValidString(kept) || len(kept) > maxWords+len("...") || strings.ContainsRune(kept, 0) {
			t.Errorf("%q is kept as %q", s, kept)
		}
	})
}
