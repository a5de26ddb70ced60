package critic

import (
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

// TestFalseClaimsAreFound: what an answer says was done is held against what ran, and nothing else is.
func TestFalseClaimsAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer string
		ran    []string // tools that ran
		needs  []string // nil = no claim
	}{
		// English: said and not done.
		{"searched the web", "I searched the web and found that it rains.", nil, webTools},
		{"have searched", "I have searched the internet for you.", nil, webTools},
		{"short form", "I've just searched the web: it is 12 degrees.", nil, webTools},
		{"another apostrophe", "I’ve checked online and the shop is open.", nil, webTools},
		{"looked it up online", "I looked it up online. Oslo is the capital.", nil, webTools},
		{"googled", "I googled the term.", nil, webTools},
		{"a web search", "I did a quick web search, and the match ended 2:1.", nil, webTools},
		{"according to my web search", "According to my web search, the price is 20 euros.", nil, webTools},
		{"according to my search", "According to my search, the price is 20 euros.", nil, searchTools},
		{"search results show", "My search results show three shops.", nil, searchTools},
		{"looked it up", "I looked it up, and the answer is 42.", nil, searchTools},
		{"searched for", "I searched for recent papers on this.", nil, searchTools},
		{"opened the page", "I opened the page and read the terms.", nil, pageTools},
		{"read the article", "I read the article; it names two causes.", nil, pageTools},
		{"visited the official website", "I visited the official website.", nil, pageTools},
		{"checked my memory", "I checked my memory and found nothing.", nil, recallTools},
		{"searched my memories", "I searched through my memories.", nil, recallTools},
		{"saved to memory", "I've saved your birthday to my memory.", nil, rememberTool},
		{"saved that", "Got it, I have saved that.", nil, keepTools},
		{"noted that down", "I've noted that down.", nil, keepTools},
		{"made a note of", "I made a note of your preference.", nil, keepTools},
		{"passive memory", "Your preference has been saved.", nil, keepTools},
		{"created the file", "I created the file with three lines.", nil, writeTools},
		{"wrote a new file", "I have written a new file for you.", nil, writeTools},
		{"named file in code", "I created `notes.txt` in your home.", nil, writeTools},
		{"saved it to a named file", "I saved the list to shopping.md.", nil, writeTools},
		{"passive file", "The file has been created successfully.", nil, writeTools},
		{"passive named file", "`report.csv` has been saved.", nil, writeTools},
		{"read the file", "I read the config file and saw the port.", nil, readTools},
		{"listed the folder", "I looked in the folder, it is empty.", nil, readTools},
		{"ran the code", "I ran the code and it prints 7.", nil, runTools},
		{"ran a command in code", "I ran `go test ./...` and all is well.", nil, runTools},
		{"tested the script", "I tested the script twice.", nil, runTools},
		{"passive run", "Your script has been executed.", nil, runTools},
		{"installed", "I installed numpy for you.", nil, installTools},
		{"passive install", "The package is now installed.", nil, installTools},
		{"checked the time", "I checked the current time: it is noon.", nil, clockTools},
		{"after a greeting", "Sure, I searched the web.", nil, webTools},
		{"after a denial of something else", "I could not open the page, but I searched the web.", nil, webTools},
		{"in a list", "What I did:\n- I searched the web\n- wrote this", nil, webTools},
		{"in bold", "**I searched the web** and found it.", nil, webTools},
		{"found nothing is done too", "I searched the web but could not find it.", nil, webTools},
		{"did search", "I did search the web.", nil, webTools},

		// Said and done: no claim. Failed calls are not among what ran.
		{"searched, and did", "I searched the web and found it.", []string{"web_search"}, nil},
		{"fetched counts as looking online", "I looked it up online.", []string{"web_fetch"}, nil},
		{"a search is no page", "I opened the page.", []string{"web_search"}, pageTools},
		{"reading is no writing", "I created the file.", []string{"fs_read"}, writeTools},
		{"a shell can write", "I created the file.", []string{"run_shell"}, nil},
		{"remembered, and did", "I have saved that.", []string{"save_memory"}, nil},
		{"the clock, and did", "I checked the time.", []string{"get_datetime"}, nil},
		{"another tool does not help", "I ran the code.", []string{"web_search", "fs_write"}, runTools},

		// Not claims.
		{"did not", "I did not search the web.", nil, nil},
		{"have not", "I haven't searched the web.", nil, nil},
		{"never", "I never searched the web.", nil, nil},
		{"could not open", "I could not open the page.", nil, nil},
		{"was unable", "I was unable to read the file.", nil, nil},
		{"can", "I can search the web for you.", nil, nil},
		{"will remember", "I'll remember that.", nil, nil},
		{"will save", "I will save that to my memory.", nil, nil},
		{"would have", "I would have searched the web.", nil, nil},
		{"could have", "I could have looked it up online.", nil, nil},
		{"if", "If I searched the web, I would find more.", nil, nil},
		{"if I had", "If I had read the file, I would know.", nil, nil},
		{"without", "Without having searched the web, I believe it is so.", nil, nil},
		{"a question", "Should I tell you what I searched the web for?", nil, nil},
		{"whether", "You asked whether I searched the web.", nil, nil},
		{"what you said", "You said I saved that.", nil, nil},
		{"another person", "She searched the web and saved the file.", nil, nil},
		{"with another person", "My sister and I searched the web.", nil, nil},
		{"in quotes", `The man said "I searched the web" and left.`, nil, nil},
		{"in curly quotes", "The man said “I've saved that to my memory” and left.", nil, nil},
		{"in single quotes", "He wrote 'I've searched the web' and left.", nil, nil},
		{"in code", "```\nI ran the code\n```", nil, nil},
		{"in code without an end", "```\nI searched the web", nil, nil},
		{"in inline code", "Print `I ran the code` at the end.", nil, nil},
		{"a quoted line", "> I searched the web\n\nThat is what it says.", nil, nil},
		{"earlier", "Earlier I searched the web for this.", nil, nil},
		{"last week", "I saved that last week.", nil, nil},
		{"already, what lasts", "I have already saved that.", nil, nil},
		{"already, what does not last", "I have already searched the web.", nil, webTools},
		{"a file that was given", "I read the file you attached.", nil, nil},
		{"some file of somebody", "When the file has been created, open it.", nil, nil},
		{"by somebody", "The file has been created by the installer.", nil, nil},
		{"what an error means", "This error means the file has been created twice.", nil, nil},
		{"long ago", "The painting has been stored in the museum since 1911.", nil, nil},
		{"a script in the answer", "I wrote a short script for you.", nil, nil},
		{"a function in the answer", "I created `parseDate`, which reads a date.", nil, nil},
		{"a table", "| step | I searched the web |", nil, nil},
		{"an idiom", "I read you loud and clear.", nil, nil},
		{"saved you time", "I saved you some time.", nil, nil},
		{"a general search", "Search engines rank pages.", nil, nil},
		{"advice", "Make sure your settings have been saved.", nil, nil},
		{"an offer", "Let me know if I should search the web.", nil, nil},
		{"nothing", "", nil, nil},

		// German.
		{"de web", "Ich habe im Internet nach dem Wetter gesucht.", nil, webTools},
		{"de search", "Laut meiner Suche kostet es 20 Euro.", nil, searchTools},
		{"de saved", "Ich habe mir das gemerkt.", nil, keepTools},
		{"de file", "Ich habe die Datei erstellt.", nil, writeTools},
		{"de passive", "Die Datei wurde gespeichert.", nil, writeTools},
		{"de run", "Ich habe den Code ausgeführt.", nil, runTools},
		{"de read", "Ich habe die Datei gelesen.", nil, readTools},
		{"de page", "Ich habe die Seite geöffnet.", nil, pageTools},
		{"de memory", "Ich habe in meinem Gedächtnis nachgesehen.", nil, recallTools},
		{"de not", "Ich habe nicht im Internet gesucht.", nil, nil},
		{"de could", "Ich könnte im Internet suchen.", nil, nil},
		{"de if", "Wenn ich die Datei gelesen habe, sage ich es.", nil, nil},
		{"de done", "Ich habe die Datei erstellt.", []string{"fs_write"}, nil},

		// French.
		{"fr web", "J'ai cherché la réponse sur internet.", nil, webTools},
		{"fr search", "D'après ma recherche, il pleut.", nil, searchTools},
		{"fr saved", "J'ai enregistré cela.", nil, keepTools},
		{"fr file", "J'ai créé le fichier.", nil, writeTools},
		{"fr passive", "Le fichier a été créé.", nil, writeTools},
		{"fr run", "J'ai exécuté le code.", nil, runTools},
		{"fr not", "Je n'ai pas cherché sur internet.", nil, nil},
		{"fr if", "Si j'ai créé le fichier, dites-le.", nil, nil},

		// Spanish.
		{"es web", "He buscado la respuesta en internet.", nil, webTools},
		{"es past", "Busqué en internet y encontré tres.", nil, webTools},
		{"es search", "Según mi búsqueda, cuesta 20 euros.", nil, searchTools},
		{"es saved", "Lo he guardado en mi memoria.", nil, keepTools},
		{"es file", "He creado el archivo.", nil, writeTools},
		{"es passive", "El archivo ha sido creado.", nil, writeTools},
		{"es run", "Ejecuté el código.", nil, runTools},
		{"es not", "No he buscado en internet.", nil, nil},
		{"es if", "Si he creado el archivo, avisa.", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := findFalseClaims("What is it?", c.answer, c.ran)
			switch {
			case c.needs == nil && len(got) > 0:
				t.Errorf("%q is taken for a claim: %+v", c.answer, got)
			case c.needs != nil && (len(got) == 0 || !slices.Equal(got[0].Needs, c.needs)):
				t.Errorf("%q: %+v, want one that needs %v", c.answer, got, c.needs)
			}
		})
	}
}

// TestFalseClaimLowersScore: each once, in its own words, bounded, without credentials; and not where somebody else
// says "I".
func TestFalseClaimLowersScore(t *testing.T) {
	t.Parallel()
	got := findFalseClaims("q", "I searched the web. I searched the web. Then I ran the code.", nil)
	if len(got) != 2 || got[0].Said != "I searched the web." || got[1].Said != "Then I ran the code." {
		t.Errorf("%+v", got)
	}
	if got = findFalseClaims("q", strings.Repeat("I searched the web. ", 50), nil); len(got) != 1 {
		t.Errorf("%d claims", len(got))
	}
	var many strings.Builder
	for i := range 20 {
		many.WriteString("I searched the web for " + strings.Repeat("x", i+1) + ".\n")
	}
	if got = findFalseClaims("q", many.String(), nil); len(got) != maxClaims {
		t.Errorf("%d claims, want %d", len(got), maxClaims)
	}
	got = findFalseClaims("q", "I ran the code with sk-abcdefghijklmnopqrstuvwxyz and "+strings.Repeat("more ", 60),
		nil)
	if len(got) != 1 || strings.Contains(got[0].Said, "sk-abc") || len(got[0].Said) > maxSaid+3 {
		t.Errorf("%+v", got)
	}
	for _, q := range []string{"Write an email to my boss", "Translate this into English", "Schreib mir einen kurzen " +
		"Brief", "Erzähl eine Geschichte", "Escribe una carta", "Let's do a roleplay"} {
		if got = findFalseClaims(q, "I searched the web.", nil); len(got) > 0 {
			t.Errorf("%s: %+v", q, got)
		}
	}
	for _, q := range []string{
		"Write the list to notes.txt", "Give me a brief summary", "What is in the letter?",
		"Tell me the time",
	} {
		if got = findFalseClaims(q, "I searched the web.", nil); len(got) != 1 {
			t.Errorf("%s: %+v", q, got)
		}
	}
}

// BenchmarkClaims looks at the longest answer that is looked at, with a hint in every clause.
func BenchmarkClaims(b *testing.B) {
	long := strings.Repeat("I think, and I have been told, that the search was now done successfully. ", maxLooked/70)
	b.SetBytes(int64(min(len(long), maxLooked)))
	for b.Loop() {
		findFalseClaims("q", long, nil)
	}
}

// TestClaimsNeedCompleteCalls: nobody is held to calls that his record does not show.
func TestClaimsNeedCompleteCalls(t *testing.T) {
	t.Parallel()
	cut := []subjects.Note{{Code: subjects.NoteRecordCut}}
	for _, c := range []struct {
		name string
		h    answer
		want bool
	}{
		{"the answerer", answer{from: subjects.Generator}, true},
		{"respondent B", answer{from: subjects.RespondentB}, true},
		{"one who lets others work", answer{from: "orchestrator"}, false},
		{"one who asks personas", answer{from: "committee"}, false},
		{
			"a record that lost its calls",
			answer{from: subjects.Generator, Response: subjects.Response{Notes: cut}},
			false,
		},
		{
			"a record that kept them",
			answer{
				from:     subjects.Generator,
				Response: subjects.Response{Notes: cut, ToolCalls: []subjects.ToolCall{{Tool: "x"}}},
			},
			true,
		},
	} {
		if got := hasAllCalls(c.h); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
	failed := subjects.Response{
		ToolCalls: []subjects.ToolCall{{Tool: "web_search", Error: subjects.Faultf(subjects.CodeDenied, "no")}},
	}
	if got := findFalseClaims("q", "I searched the web.", usedTools(failed)); len(got) != 1 {
		t.Errorf("a refused call counts as done: %+v", got)
	}
	if got := findFalseClaims("q", "I checked my memory.", usedTools(subjects.Response{Recalls: []string{"m1"}})); len(
		got) != 0 {
		t.Errorf("memories were used, and yet: %+v", got)
	}
}

func FuzzClaims(f *testing.F) {
	for _, s := range []string{
		"I searched the web.", "Ich habe die Datei erstellt", "```\nI ran\n", "'I've", "“x",
		"He dicho, y he buscado en internet", "a\xffb? I 've", "My and I searched",
	} {
		f.Add("What?", s)
	}
	f.Fuzz(func(t *testing.T, question, answer string) {
		all := findFalseClaims(question, answer, nil)
		if len(all) > maxClaims {
			t.Fatalf("%d claims", len(all))
		}
		for _, c := range all {
			if c.Said == "" || len(c.Said) > maxSaid+3 || len(c.Needs) == 0 || strings.ContainsAny(c.Said, "\n\r") {
				t.Fatalf("%+v", c)
			}
			if got := findFalseClaims(question, answer, c.Needs[:1]); slices.ContainsFunc(got,
				func(o subjects.Claim) bool { return o.Said == c.Said && slices.Equal(o.Needs, c.Needs) }) {
				t.Fatalf("%q stays a claim although %s ran", c.Said, c.Needs[0])
			}
		}
	})
}
