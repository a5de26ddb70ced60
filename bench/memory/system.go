package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"conclave/actors/memory/store"
	"conclave/bench/internal/instance"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

const (
	systemDims = 384 // of the vectors, as all-minilm makes them
	singles    = 200 // searches one after the other
	writers    = 16  // clients that store at once
)

// systemModel is the embedding model of the system. A scripted server computes its vectors of the letters and words of
// a text.
var systemModel = scriptserver.Model{Name: "all-minilm", Window: 8192, Embedding: true, Dimensions: systemDims}

// load are the times of searches, from when they were due.
type load struct {
	Searches int     `json:"searches"`
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	P99      float64 `json:"p99_ms"`
}

// systemFigures are those of a whole conclave up with Rows entries; of the writes only where Stored is not 0.
type systemFigures struct {
	Rows     int     `json:"rows"`
	Ready    float64 `json:"ready_seconds"`            // from the start of the process until every actor is ready
	Empty    int64   `json:"empty_resident_bytes"`     // of the same system without entries
	Resident int64   `json:"resident_bytes"`           // after searches one after the other
	Single   load    `json:"single"`                   // those searches
	Stored   int     `json:"stored,omitempty"`         // entries
	Rate     float64 `json:"stored_per_sec,omitempty"` // with the searches beside
	Searches int     `json:"searches_per_sec"`         // that were due meanwhile
	During   load    `json:"during"`                   // those searches
	After    int64   `json:"after_resident_bytes"`     // after the writes
	Errors   int     `json:"errors"`
	First    string  `json:"first_error,omitempty"`
}

// measureSystem starts conclave with a memory of d's entries, searches it, and, unless count is 0, stores count more
// over HTTP while searches run at a fixed rate.
func measureSystem(ctx context.Context, program string, d *dataset, count, searches int) (*systemFigures, error) {
	server := scriptserver.Start(scriptserver.Script{}, scriptserver.WithModels(systemModel))
	defer server.Close()
	in, err := instance.Create(program, map[string]string{
		"models.yaml": fmt.Sprintf("demo_model: never\nroles: {assistant: none, embeddings: %s}\nmodels: {%s: "+
			"{small: true}}\nollama: {url: %q}\n", systemModel.Name, systemModel.Name, server.URL),
		"memory.yaml": "model: false\n",
		"system.yaml": "event_max: 20GB\n", // a measurement in a minute exceeds the quota of events of a day
	})
	if err != nil {
		return nil, err
	}
	defer in.Remove()
	f := &systemFigures{Rows: d.n, Stored: count, Searches: searches}
	if f.Empty, err = measureEmpty(ctx, in); err != nil {
		return nil, err
	}
	logProgress("%s entries: filling the memory of conclave up", short(d.n))
	if _, err := fillStore(ctx, filepath.Join(in.DataDir(), "memory", storeFile), d, func(_ int, it *store.Item) {
		it.Vectors = &store.Vectors{Model: systemModel.Name, Corpus: systemModel.Embed(it.Entry.SearchText())}
	}); err != nil {
		return nil, err
	}
	began := time.Now()
	s, err := in.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	f.Ready = time.Since(began).Seconds()
	logProgress("%s entries: conclave up is ready after %.1f s", short(d.n), f.Ready)
	return f, f.measure(ctx, s, d)
}

// measureEmpty returns the resident memory of the system without entries, after some searches.
func measureEmpty(ctx context.Context, in *instance.Instance) (int64, error) {
	s, err := in.Start(ctx)
	if err != nil {
		return 0, err
	}
	for range 20 {
		if err = searchMemory(ctx, s, "nothing is stored"); err != nil {
			break
		}
	}
	resident, measured := residentMemory(s.PID)
	s.Stop()
	return resident, errors.Join(err, measured, os.RemoveAll(filepath.Join(in.DataDir(), "memory")))
}

// measure searches while nothing is stored, then while entries are stored, and checks that every entry is there.
func (f *systemFigures) measure(ctx context.Context, s *instance.System, d *dataset) error {
	var failed failures
	search := func(j int) error { return searchMemory(ctx, s, d.queryText(j)) }
	var took []time.Duration
	for j := range singles {
		began := time.Now()
		failed.add(search(1<<20 + j))
		took = append(took, time.Since(began))
	}
	f.Single = loadOf(took)
	var err error
	if f.Resident, err = residentMemory(s.PID); err != nil {
		return err
	}
	if f.Stored > 0 {
		f.storeBeside(search, func(i int) error { return storeEntry(ctx, s, d, d.n+i) }, &failed)
		if f.After, err = residentMemory(s.PID); err != nil {
			return err
		}
	}
	var status subjects.MemoryStatus
	if err := s.Request(ctx, http.MethodGet, "/memory/status", nil, &status); err != nil {
		return err
	}
	if n := status.Entries[subjects.KindFact]; n != d.n+f.Stored || status.Unembedded > 0 {
		failed.add(fmt.Errorf("%d entries are stored, %d of them without a vector, and %d are expected", n,
			status.Unembedded, d.n+f.Stored))
	}
	f.Errors, f.First = failed.count, failed.first
	return nil
}

// storeBeside stores the entries while searches run at the rate.
func (f *systemFigures) storeBeside(search, store func(i int) error, failed *failures) {
	logProgress("storing %d entries while %d searches per second run", f.Stored, f.Searches)
	var storing atomic.Bool
	storing.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() { f.During = searchAtRate(f.Searches, 1<<22, search, failed, storing.Load) })
	began := time.Now()
	storeAll(f.Stored, failed, store)
	f.Rate = float64(f.Stored) / time.Since(began).Seconds()
	storing.Store(false)
	wg.Wait()
}

func loadOf(took []time.Duration) load {
	return load{len(took), percentile(took, 0.50), percentile(took, 0.95), percentile(took, 0.99)}
}

// failures counts errors.
type failures struct {
	mu    sync.Mutex
	count int
	first string
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count++; f.count == 1 {
		f.first = err.Error()
	}
}

// searchAtRate starts searches at a fixed rate while more is true, whether or not former ones have ended, and waits for
// all. Times count from when a search was due, so that a system that cannot follow does not look fast.
func searchAtRate(rate, first int, search func(j int) error, failed *failures, more func() bool) load {
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	began := time.Now()
	for n := 0; more(); n++ {
		due := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		wg.Go(func() {
			err := search(first + n)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
			failed.add(err)
		})
	}
	wg.Wait()
	return loadOf(took)
}

// storeAll stores count entries by several clients, each of which waits for its reply.
func storeAll(count int, failed *failures, store func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				failed.add(store(i))
			}
		})
	}
	wg.Wait()
}

// searchMemory searches over HTTP. Its reply is decoded and not used.
func searchMemory(ctx context.Context, s *instance.System, text string) error {
	var reply subjects.MemoryReply
	return s.Request(ctx, http.MethodGet, "/memory/search?q="+url.QueryEscape(text), nil, &reply)
}

// storeEntry stores entry i of d over HTTP.
func storeEntry(ctx context.Context, s *instance.System, d *dataset, i int) error {
	conversation, position := d.conversation(i)
	var reply struct{ Action string }
	err := s.Request(ctx, http.MethodPost, "/memory", map[string]any{
		"text": d.corpus(i), "conversation": conversation, "position": position, "speaker": d.speaker(i),
		"happened": d.happened(i).Format(time.RFC3339),
	}, &reply)
	if err == nil && reply.Action != "stored" {
		err = fmt.Errorf("entry %d was %s", i, reply.Action)
	}
	return err
}
