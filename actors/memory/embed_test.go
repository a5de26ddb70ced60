package memory

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"conclave/subjects"
)

// near reports whether what is recalled for some words was found by its vectors, and with which notes.
func (w *fixture) near(query string) (ids []string, byVector bool, notes []string) {
	w.t.Helper()
	r, err := one(w.recallStages(subjects.MemoryQuery{Query: query, Fresh: true}))
	if err != nil {
		w.t.Fatal(err)
	}
	byVector = len(r.Hits) > 0
	for _, h := range r.Hits {
		ids = append(ids, h.Entry.ID)
		byVector = byVector && slices.ContainsFunc(h.Reasons, func(r subjects.MemoryReason) bool {
			return r.What == "corpus" || r.What == "description" || r.What == "name"
		})
	}
	for _, n := range r.Notes {
		notes = append(notes, n.Code)
	}
	return ids, byVector, notes
}

func (w *fixture) unembedded() int {
	w.t.Helper()
	got, err := w.admin(subjects.MemoryAdminRequest{Op: "status"})
	if err != nil {
		w.t.Fatal(err)
	}
	return got.Status.Unembedded
}

// TestEmbeddingModelUnavailable: without the embedding model entries are stored and found by words, and embedded when
// it is back. Time is virtual.
func TestEmbeddingModelUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		if err := w.m.Start(t.Context(), w.rec.Out()); err != nil {
			t.Fatal(err)
		}
		w.setEmbedder(nil)
		fact := w.storeFact("The bicycle stands in the cellar.")
		engram := w.storeAnswer("q1", "What colour has the bicycle?", "The bicycle is red.")
		piece := w.importPieces("/notes.md", "The bicycle shop opens at nine.")[0]
		if got, byVector, notes := w.near("bicycle"); len(got) != 3 || byVector ||
			!slices.Equal(notes, []string{noteNoVectors}) || w.unembedded() != 3 {
			t.Errorf("without the model: %v, by vector %t, notes %v, %d wait", got, byVector, notes, w.unembedded())
		}
		if res := w.searched(`{"query":"bicycle"}`); !strings.Contains(res.Result, "Only words were compared") ||
			len(res.Recalls) != 3 {
			t.Errorf("a model is shown %q", res.Result)
		}
		if r, err := one(w.recallStages(subjects.MemoryQuery{Query: "bicycle"})); err != nil || r.Cached {
			t.Errorf("what was found by words alone is kept for later: %+v, %v", r, err)
		}
		noted := len(w.rec.Logged())
		if noted == 0 {
			t.Error("nothing is in the log")
		}

		back := make(chan struct{})
		made := wordEmbedder("words-1", 256)
		calls := 0
		w.setEmbedder(func(texts []string) (subjects.EmbedReply, error) {
			if calls++; calls == 1 {
				close(back)
			}
			return made(texts)
		})
		<-back // nobody does anything: this is the next try
		synctest.Wait()
		for _, id := range []string{fact, engram, piece} {
			got, byVector, notes := w.near(w.entry(id).Corpus)
			if !slices.Contains(got, id) || !byVector || len(notes) > 0 {
				t.Errorf("with the model: %v, by vector %t, notes %v", got, byVector, notes)
			}
		}
		if n := w.unembedded(); n != 0 {
			t.Errorf("%d still wait", n)
		}
	})
}

// TestEmbeddingModelChanges: vectors of another model are not comparable. The index is switched, entries are found by
// words meanwhile and embedded again.
func TestEmbeddingModelChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		if err := w.m.Start(t.Context(), w.rec.Out()); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, s := range []string{
			"The bicycle stands in the cellar.", "The bell of the bicycle is broken.",
			"The bicycle was bought in May.",
		} {
			ids = append(ids, w.storeFact(s))
		}
		slices.Sort(ids)
		synctest.Wait()
		// The first question after the change: the vectors of the others are not made before it is answered.
		hold := make(chan struct{})
		made := wordEmbedder("words-2", 96)
		w.setEmbedder(func(texts []string) (subjects.EmbedReply, error) {
			if texts[0] != "bicycle" { // not the question
				<-hold
			}
			return made(texts)
		})
		got, byVector, _ := w.near("bicycle")
		if slices.Sort(got); !slices.Equal(got, ids) || byVector {
			t.Errorf("at once: %v, by vector %t, want %v", got, byVector, ids)
		}
		close(hold)
		synctest.Wait()
		got, byVector, _ = w.near("bicycle")
		if slices.Sort(got); !slices.Equal(got, ids) || !byVector || w.unembedded() != 0 {
			t.Errorf("later: %v, by vector %t, %d wait", got, byVector, w.unembedded())
		}
		if s, err := w.admin(subjects.MemoryAdminRequest{Op: "status"}); err != nil || s.Status.Model != "words-2" {
			t.Errorf("the model is %+v, %v", s.Status, err)
		}
		w.restart()
		if got, byVector, _ := w.near("bicycle"); len(got) != 3 || !byVector {
			t.Errorf("after a restart: %v, by vector %t", got, byVector)
		}
	})
}

// TestInvalidEmbeddingsAreRejected: an invalid reply of the model is discarded; the entry and its former vectors are
// kept.
func TestInvalidEmbeddingsAreRejected(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	first := w.storeFact("The bicycle stands in the cellar.")
	good := wordEmbedder("words-1", 256)
	for i, tt := range []struct {
		name  string
		spoil func(r *subjects.EmbedReply) error
	}{
		{"too few", func(r *subjects.EmbedReply) error { r.Vectors = r.Vectors[1:]; return nil }},
		{"too many", func(r *subjects.EmbedReply) error { r.Vectors = append(r.Vectors, r.Vectors[0]); return nil }},
		{"none", func(r *subjects.EmbedReply) error { r.Vectors = nil; return nil }},
		{"one that is empty", func(r *subjects.EmbedReply) error { r.Vectors[len(r.Vectors)-1] = nil; return nil }},
		{"of two sizes", func(r *subjects.EmbedReply) error {
			r.Vectors[len(r.Vectors)-1] = make([]float32, 255)
			r.Vectors[len(r.Vectors)-1][0] = 1
			if len(r.Vectors) == 1 {
				r.Vectors[0] = nil
			}
			return nil
		}},
		{"zero vector", func(r *subjects.EmbedReply) error { r.Vectors[0] = make([]float32, 256); return nil }},
		{"of nobody", func(r *subjects.EmbedReply) error { r.Model = ""; return nil }},
		{"trick: of another size by the same model", func(r *subjects.EmbedReply) error {
			for i := range r.Vectors {
				r.Vectors[i] = r.Vectors[i][:128]
			}
			return nil
		}},
		{"the model is missing", func(*subjects.EmbedReply) error {
			return subjects.Faultf(subjects.CodeModelMissing, "pull it first")
		}},
		{"trick: internal error", func(*subjects.EmbedReply) error { return errors.New("details of this machine") }},
	} {
		spoiled := func(texts []string) (subjects.EmbedReply, error) {
			r, err := good(texts)
			if err == nil {
				err = tt.spoil(&r)
			}
			return r, err
		}
		w.setEmbedder(spoiled)
		what := []string{"axe", "boat", "cup", "door", "egg", "fork", "glove", "hat", "iron", "jar"}[i]
		id := w.storeFact("The " + what + " is broken.")
		if got, byVector, notes := w.near("Where is the " + what); !slices.Contains(got, id) || byVector ||
			!slices.Equal(notes, []string{noteNoVectors}) {
			t.Errorf("%s: %v, by vector %t, notes %v", tt.name, got, byVector, notes)
		}
		w.setEmbedder(good)
		if got, byVector, notes := w.near("cellar bicycle stands"); len(got) != 1 || got[0] != first || !byVector ||
			len(notes) > 0 {
			t.Errorf("%s: the one before it: %v, by vector %t, notes %v", tt.name, got, byVector, notes)
		}
	}
	for n, err := w.m.backfillBatch(t.Context(), w.rec.Out()); n > 0; n,
		err = w.m.backfillBatch(t.Context(), w.rec.Out()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if w.unembedded() != 0 {
		t.Errorf("%d still wait", w.unembedded())
	}
}

// TestEmbeddingsNameTheirTask: the model actor is told whether a text is a query or an entry, since the prefixes belong
// to the model's settings.
func TestEmbeddingsNameTheirTask(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.storeFact("search_query: The bicycle stands in the cellar.")
	w.recallIDs("where is it")
	asked := w.rec.Requested()
	if len(asked) != 2 || !strings.Contains(asked[0].Body, `"task":"document"`) ||
		asked[1].Body != `{"task":"query","texts":["where is it"]}` {
		t.Errorf("asked %+v", asked)
	}
}

// TestEntryChangedDuringBackfill: vectors of a text that changed meanwhile are discarded.
func TestEntryChangedDuringBackfill(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setEmbedder(nil)
	id := w.storeFact("The bicycle stands in the cellar.")
	good := wordEmbedder("words-1", 256)
	var texts []string
	w.setEmbedder(func(all []string) (subjects.EmbedReply, error) {
		if texts = append(texts, all...); len(texts) == 1 {
			if _,
				err := w.db.Update(t.Context(), id,
				subjects.MemoryEdit{Name: new("sledge"), Description: new("The sledge hangs under the roof.")},
				noon); err != nil {
				t.Error(err)
			}
		}
		return good(all)
	})
	for range 2 {
		if _, err := w.m.backfillBatch(t.Context(), w.rec.Out()); err != nil {
			t.Fatal(err)
		}
	}
	if len(texts) != 4 || texts[2] != "sledge" || w.unembedded() != 0 {
		t.Errorf("embedded %q, %d wait", texts, w.unembedded())
	}
	if got, byVector, _ := w.near("sledge roof"); !slices.Equal(got, []string{id}) || !byVector {
		t.Errorf("found %v, by vector %t", got, byVector)
	}
}

// TestDamagedVectorsAreEmbeddedAgain: unusable vectors in the file are replaced.
func TestDamagedVectorsAreEmbeddedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		id := w.storeFact("The bicycle stands in the cellar.")
		cfg := w.m.cfg
		w.close()
		db, err := sql.Open("duckdb", w.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), "UPDATE vectors SET corpus = ?", make([]byte, 4*256)); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		w.open(cfg)
		if err := w.m.Start(t.Context(), w.rec.Out()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, byVector, _ := w.near("bicycle"); !slices.Equal(got, []string{id}) || !byVector {
			t.Errorf("found %v, by vector %t", got, byVector)
		}
	})
}

// rejectTexts is an embedder like the model actor: texts that contain poison have no vector, the others have one.
func rejectTexts(poison string) func([]string) (subjects.EmbedReply, error) {
	made := wordEmbedder("words-1", 256)
	return func(texts []string) (subjects.EmbedReply, error) {
		r, err := made(texts)
		for i, t := range texts {
			if strings.Contains(t, poison) {
				r.Vectors[i], r.Failed = []float32{}, append(r.Failed,
					subjects.EmbedFailure{Index: i, Reason: "unsupported value: NaN"})
			}
		}
		return r, err
	}
}

// TestRejectedCorpusDoesNotLoseTheOtherVectors: an entry whose corpus is rejected is found by the vectors of its
// description and name.
func TestRejectedCorpusDoesNotLoseTheOtherVectors(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setEmbedder(rejectTexts("poison"))
	e := subjects.MemoryEntry{Name: "bicycle", Description: "where the bicycle stands", Corpus: "poison in the cellar"}
	made, failed, err := w.m.embedEntries(t.Context(), w.rec.Out(), e)
	if err != nil || len(failed) != 0 || made[0] == nil || made[0].Name == nil || made[0].Description == nil ||
		!slices.Equal(made[0].Corpus, made[0].Description) {
		t.Fatalf("made %+v, failed %v, %v", made, failed, err)
	}
	e.Description = "poison too"
	if made, _, err = w.m.embedEntries(t.Context(), w.rec.Out(), e); err != nil || made[0].Description != nil ||
		!slices.Equal(made[0].Corpus, made[0].Name) {
		t.Errorf("a rejected corpus and description have not the vector of the name: %v", err)
	}
}

// TestOneRejectedEntryDoesNotBlockTheBackfill: the others get their vectors from the same request, and the status names
// the cause.
func TestOneRejectedEntryDoesNotBlockTheBackfill(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setEmbedder(nil)
	for _, s := range []string{"poison", "The bicycle stands in the cellar.", "The sledge hangs under the roof."} {
		w.storeFact(s)
	}
	requests := 0
	embed := rejectTexts("poison")
	w.setEmbedder(func(texts []string) (subjects.EmbedReply, error) { requests++; return embed(texts) })
	for range 3 {
		if _, err := w.m.backfillBatch(t.Context(), w.rec.Out()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.admin(subjects.MemoryAdminRequest{Op: "status"})
	if err != nil || s.Status.Unembedded != 1 || !strings.Contains(s.Status.Problem, "unsupported value: NaN") {
		t.Errorf("status %+v, %v", s.Status, err)
	}
	if requests > 2 { // one of them may be for the new index
		t.Errorf("%d requests: the rejected entry is tried again and again", requests)
	}
}

// TestStatusNamesTheCauseOfMissingVectors: an unavailable embedding model is the cause, in the words of the model
// actor.
func TestStatusNamesTheCauseOfMissingVectors(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setEmbedder(func([]string) (subjects.EmbedReply, error) {
		return subjects.EmbedReply{}, subjects.Faultf(subjects.CodeModelMissing, "model not found: words-1; fetch it "+
			"with: conclave model pull words-1")
	})
	w.storeFact("The bicycle stands in the cellar.")
	s, err := w.admin(subjects.MemoryAdminRequest{Op: "status"})
	if err != nil || s.Status.Unembedded != 1 || !strings.Contains(s.Status.Problem, "conclave model pull words-1") {
		t.Errorf("status %+v, %v", s.Status, err)
	}
}

// TestOnlyTextsThatSayMoreAreEmbedded: a name or description that the corpus contains has no vector of its own, and the
// corpus is embedded with its speaker and day.
func TestOnlyTextsThatSayMoreAreEmbedded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	good := wordEmbedder("words-1", 256)
	var texts []string
	w.setEmbedder(func(all []string) (subjects.EmbedReply, error) { texts = append(texts, all...); return good(all) })
	for _, tt := range []struct {
		name  string
		entry subjects.MemoryEntry
		want  []string
	}{
		{"both contained", subjects.MemoryEntry{
			Name: "The red bicycle", Description: "the RED bicycle, has no bell!",
			Corpus: "The red bicycle has no bell.",
		}, []string{"The red bicycle has no bell."}},
		{
			"both empty",
			subjects.MemoryEntry{Name: "...", Corpus: "The red bicycle has no bell."},
			[]string{"The red bicycle has no bell."},
		},
		{"another name", subjects.MemoryEntry{
			Name: "bike", Description: "has no bell",
			Corpus: "The red bicycle has no bell.",
		}, []string{"The red bicycle has no bell.", "bike"}},
		{
			"part of a word",
			subjects.MemoryEntry{Name: "cycle", Corpus: "The red bicycle has no bell."},
			[]string{"The red bicycle has no bell.", "cycle"},
		},
		{"other words", subjects.MemoryEntry{
			Name: "bell", Description: "it was stolen",
			Corpus: "The red bicycle has no bell.",
		}, []string{"The red bicycle has no bell.", "it was stolen"}},
		{"speaker and day", subjects.MemoryEntry{
			Name: "Ana", Corpus: "It has no bell.", Speaker: "Ana",
			Happened: noon,
		}, []string{"(4 May 2026) Ana said: It has no bell."}},
	} {
		texts = nil
		made, failed, err := w.m.embedEntries(t.Context(), w.rec.Out(), tt.entry)
		if err != nil || len(failed) > 0 || !slices.Equal(texts, tt.want) {
			t.Errorf("%s: embedded %q, failed %v, %v; want %q", tt.name, texts, failed, err, tt.want)
			continue
		}
		if v := made[0]; v.Corpus == nil || (v.Name != nil) != saysMore(tt.entry.Name, tt.entry) ||
			(v.Description != nil) != saysMore(tt.entry.Description, tt.entry) {
			t.Errorf("%s: vectors are %+v", tt.name, v)
		}
	}
}
