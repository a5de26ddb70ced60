package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/philippgille/chromem-go"
)

// chromemEngine is chromem-go: documents in a map, all of which it compares with each query.
type chromemEngine struct{ all *chromem.Collection }

func openChromem(job) (engine, error) {
	all, err := chromem.NewDB().CreateCollection("entries", nil, func(context.Context, string) ([]float32, error) {
		return nil, errors.New("every vector is given")
	})
	return &chromemEngine{all}, err
}

func documentID(row, sort int) string { return fmt.Sprintf("%d %d", row, sort) }

func (c *chromemEngine) load(d *dataset) (time.Duration, error) {
	var spent stopwatch
	err := d.eachChunk(func(sort int, rows []int, vectors []float32) error {
		docs := make([]chromem.Document, len(rows))
		for i, row := range rows {
			// Each vector is an allocation of its own, as it is when an embedding model made it.
			docs[i] = chromem.Document{
				ID:        documentID(row, sort),
				Embedding: append([]float32(nil), vectors[i*dims:(i+1)*dims]...),
			}
			if sort == ofCorpus {
				docs[i].Content = d.corpus(row)
			}
		}
		return spent.run(func() error { return c.all.AddDocuments(context.Background(), docs, runtime.GOMAXPROCS(0)) })
	})
	return time.Duration(spent), err
}

func (c *chromemEngine) search(_ int, v []float32) ([]int, error) {
	ctx := context.Background()
	found, err := c.all.QueryEmbedding(ctx, v, nearest, nil, nil)
	if err != nil {
		return nil, err
	}
	rows := make([]int, len(found))
	for i, r := range found {
		var sort int
		if _, err := fmt.Sscan(r.ID, &rows[i], &sort); err != nil {
			return nil, err
		}
	}
	rows = distinct(rows)
	for _, row := range rows {
		if doc, err := c.all.GetByID(ctx, documentID(row, ofCorpus)); err != nil || doc.Content == "" {
			return nil, errors.Join(fmt.Errorf("no text of entry %d", row), err)
		}
	}
	return rows, nil
}

func (c *chromemEngine) describe() string { return "" }
func (c *chromemEngine) close() error     { return nil }
