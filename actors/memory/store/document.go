package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Document is an ingested document, whose pieces are entries.
type Document struct {
	From, Title, Hash string
	Modified          time.Time // of the file; zero = unknown
	Pieces            int
	Imported          time.Time
}

// Piece is a piece of a document.
type Piece struct {
	ID   string
	Part int
}

// PutDocument records that a document was ingested. Its key is From: a former record with the same origin is replaced.
// It rejects an empty or too long From, negative Pieces and times outside the years 1 to 9999 with [ErrInvalid]. A zero
// Imported means now, a zero Modified unknown. It does not touch the pieces; the record is deleted when the last of
// them is forgotten.
func (s *Store) PutDocument(ctx context.Context, d Document) error {
	if d.From == "" {
		return invalidf("a document needs an origin")
	}
	if d.Pieces < 0 {
		return invalidf("a document cannot have %d pieces", d.Pieces)
	}
	if d.Imported.IsZero() {
		d.Imported = s.opts.Now()
	}
	for _, err := range []error{
		checkLength("origin", d.From, maxShort), checkTime("modification time", d.Modified),
		checkTime("import time", d.Imported),
	} {
		if err != nil {
			return err
		}
	}
	modified := optionalTime(d.Modified)
	from, title, hash, imported := sanitize(d.From), sanitize(d.Title), sanitize(d.Hash), truncateTime(d.Imported)
	return s.write(ctx, func(t *tx) error {
		n, err := t.exec("UPDATE documents SET title = ?, hash = ?, modified = ?, pieces = ?, imported = ? WHERE "+
			"origin = ?",
			title, hash, modified, d.Pieces, imported, from)
		if err == nil && n == 0 {
			t.insert("documents", from, title, hash, modified, int32(d.Pieces), imported)
		}
		return err
	})
}

// FindDocument returns the record of the document with this origin. found is false, without an error, if there is none.
func (s *Store) FindDocument(ctx context.Context, from string) (d Document, found bool, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		found = true
		var modified sql.NullTime
		err := r.Scan(&d.From, &d.Title, &d.Hash, &modified, &d.Pieces, &d.Imported)
		d.Modified, d.Imported = timeOrZero(modified), d.Imported.UTC()
		return err
	}, "SELECT origin, title, hash, modified, pieces, imported FROM documents WHERE origin = ?", sanitize(from))
	if err != nil {
		return Document{}, false, fmt.Errorf("finding a document: %w", err)
	}
	return d, found, nil
}

// Pieces returns the pieces of the document with this origin, in order of their part. An unknown origin has none.
func (s *Store) Pieces(ctx context.Context, from string) (all []Piece, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var p Piece
		err := r.Scan(&p.ID, &p.Part)
		all = append(all, p)
		return err
	}, "SELECT id, part FROM entries WHERE kind = 'document' AND origin = ? ORDER BY part, row", sanitize(from))
	if err != nil {
		return nil, fmt.Errorf("reading the pieces of a document: %w", err)
	}
	return all, nil
}
