package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Document is a document whose pieces are entries.
type Document struct {
	From, Title, Hash string
	Modified          time.Time // of the file; zero = not known
	Pieces            int
	Imported          time.Time
}

// Piece is a piece of a document.
type Piece struct {
	ID   string
	Part int
	Hash string // see PieceHash
}

// PutDocument notes that a document was imported, in place of what was noted of it before. The note goes when the last
// piece is forgotten.
func (s *Store) PutDocument(ctx context.Context, d Document) error {
	if d.From == "" || d.Pieces < 0 {
		return invalidf("a document needs where it is from")
	}
	if d.Imported.IsZero() {
		d.Imported = s.opts.Now()
	}
	for _, err := range []error{checkLength("where it is from", d.From, maxShort), checkTime("the time", d.Modified), checkTime("the time", d.Imported)} {
		if err != nil {
			return err
		}
	}
	var modified any // NULL
	if !d.Modified.IsZero() {
		modified = truncateTime(d.Modified)
	}
	from, title, hash, imported := sanitize(d.From), sanitize(d.Title), sanitize(d.Hash), truncateTime(d.Imported)
	return s.write(ctx, func(t *tx) error {
		n, err := t.exec("UPDATE documents SET title = ?, hash = ?, modified = ?, pieces = ?, imported = ? WHERE origin = ?",
			title, hash, modified, d.Pieces, imported, from)
		if err == nil && n == 0 {
			t.insert("documents", from, title, hash, modified, int32(d.Pieces), imported)
		}
		return err
	})
}

const selectDocuments = "SELECT origin, title, hash, modified, pieces, imported FROM documents"

func scanDocument(r *sql.Rows) (d Document, err error) {
	var modified sql.NullTime
	err = r.Scan(&d.From, &d.Title, &d.Hash, &modified, &d.Pieces, &d.Imported)
	if modified.Valid {
		d.Modified = modified.Time.UTC()
	}
	d.Imported = d.Imported.UTC()
	return d, err
}

// FindDocument finds a document by where it is from.
func (s *Store) FindDocument(ctx context.Context, from string) (d Document, there bool, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		there = true
		d, err = scanDocument(r)
		return err
	}, selectDocuments+" WHERE origin = ?", sanitize(from))
	if err != nil {
		return Document{}, false, fmt.Errorf("looking for a document: %w", err)
	}
	return d, there, nil
}

// Documents are all that were imported, by name.
func (s *Store) Documents(ctx context.Context) (all []Document, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		d, err := scanDocument(r)
		all = append(all, d)
		return err
	}, selectDocuments+" ORDER BY origin")
	if err != nil {
		return nil, fmt.Errorf("listing documents: %w", err)
	}
	return all, nil
}

// Pieces are the pieces of a document, in order.
func (s *Store) Pieces(ctx context.Context, from string) (all []Piece, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var p Piece
		err := r.Scan(&p.ID, &p.Part, &p.Hash)
		all = append(all, p)
		return err
	}, "SELECT id, part, hash FROM entries WHERE kind = 'document' AND origin = ? ORDER BY part, row", sanitize(from))
	if err != nil {
		return nil, fmt.Errorf("reading the pieces of a document: %w", err)
	}
	return all, nil
}
