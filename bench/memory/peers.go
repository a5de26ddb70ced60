package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"strconv"
	"time"

	"github.com/coder/hnsw"
	"github.com/philippgille/chromem-go"
)

// chrome is chromem-go: collections of documents in maps, every one of them looked at for each query.
type chrome struct {
	names        *chromem.Collection
	descriptions *chromem.Collection // in stages: with the corpus as content
}

func openChrome(_ job, stages bool) (*chrome, error) {
	db := chromem.NewDB()
	none := func(context.Context, string) ([]float32, error) {
		return nil, errors.New("every vector is given")
	}
	c := &chrome{}
	var err error
	if c.names, err = db.CreateCollection("names", nil, none); err == nil && stages {
		c.descriptions, err = db.CreateCollection("descriptions", nil, none)
	}
	return c, err
}

func (c *chrome) load(w *world) (time.Duration, error) {
	var spent watch
	err := addDocuments(&spent, c.names, w, w.name, func(int) string { return "" })
	if err == nil && c.descriptions != nil {
		err = addDocuments(&spent, c.descriptions, w, w.description, w.corpusText)
	}
	return time.Duration(spent), err
}

func addDocuments(spent *watch, into *chromem.Collection, w *world, what func(int, []float32), text func(int) string) error {
	return w.stream(what, func(first int, vectors []float32) error {
		docs := make([]chromem.Document, len(vectors)/dims)
		for i := range docs {
			// Each vector is an allocation of its own, as it is when an embedding model made it.
			docs[i] = chromem.Document{ID: strconv.Itoa(first + i), Embedding: append([]float32(nil), vectors[i*dims:(i+1)*dims]...), Content: text(first + i)}
		}
		return spent.run(func() error { return into.AddDocuments(context.Background(), docs, runtime.GOMAXPROCS(0)) })
	})
}

func (c *chrome) ask(_ int, q []float32) ([]int, error) {
	ctx := context.Background()
	found, err := c.names.QueryEmbedding(ctx, q, min(names, c.names.Count()), nil, nil)
	if err != nil {
		return nil, err
	}
	first := make([]scored, len(found))
	for i, r := range found {
		row, err := strconv.Atoi(r.ID)
		if err != nil {
			return nil, err
		}
		first[i] = scored{row, float64(r.Similarity)}
	}
	if c.descriptions == nil {
		return rows(first), nil
	}
	all := best{k: top}
	corpus := map[int]string{}
	for _, s := range first {
		doc, err := c.descriptions.GetByID(ctx, strconv.Itoa(s.row))
		if err != nil {
			return nil, err
		}
		var cosine float32 // vectors have the length one
		for k, x := range doc.Embedding {
			cosine += x * q[k]
		}
		all.show(scored{s.row, mixName*s.score + mixDescription*float64(cosine)})
		corpus[s.row] = doc.Content
	}
	for _, s := range all.rows {
		if corpus[s.row] == "" {
			return nil, fmt.Errorf("no corpus of row %d", s.row)
		}
	}
	return rows(all.rows), nil
}

func (c *chrome) about() string { return "" }
func (c *chrome) close() error  { return nil }

// graph is coder/hnsw: approximate, a graph of neighbours with the settings that it comes with.
type graph struct{ g *hnsw.Graph[int] }

func openGraph(j job) (*graph, error) {
	g := hnsw.NewGraph[int]()
	g.Rng = rand.New(rand.NewSource(int64(j.Seed)))
	return &graph{g}, nil
}

func (g *graph) load(w *world) (time.Duration, error) {
	var spent watch
	err := w.stream(w.name, func(first int, vectors []float32) error {
		nodes := make([]hnsw.Node[int], len(vectors)/dims)
		for i := range nodes {
			nodes[i] = hnsw.MakeNode(first+i, append([]float32(nil), vectors[i*dims:(i+1)*dims]...))
		}
		return spent.run(func() error {
			g.g.Add(nodes...)
			return nil
		})
	})
	return time.Duration(spent), err
}

func (g *graph) ask(_ int, q []float32) ([]int, error) {
	found := g.g.Search(q, names)
	out := make([]int, len(found))
	for i, n := range found {
		out[i] = n.Key
	}
	return out, nil
}

func (g *graph) about() string { return "" }
func (g *graph) close() error  { return nil }

// stream is the yardstick: one thread reads the bytes of all vectors once and does nothing with them.
type stream struct {
	vectors []float32
	sum     uint64
}

func (s *stream) load(w *world) (time.Duration, error) {
	s.vectors = make([]float32, w.n*dims)
	began := time.Now()
	w.fill(w.name, 0, s.vectors)
	return time.Since(began), nil
}

func (s *stream) ask(int, []float32) ([]int, error) {
	s.sum += readOnce(s.vectors)
	return nil, nil
}

func (s *stream) about() string { return "" }

func (s *stream) close() error {
	if s.sum == 0 { // also keeps the reading from being left out
		return errors.New("nothing was read")
	}
	return nil
}
