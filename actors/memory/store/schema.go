package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Names in the table meta.
const (
	markSchema     = "schema" // how many migration steps were applied
	markHighestRow = "high"   // the highest row number when an entry was last forgotten: row numbers are never reused
	markForgot     = "forgot" // 1 = the file may hold bytes of forgotten or changed entries; see markForgotSQL
)

// createMeta creates the table meta, which migrate needs.
func createMeta(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `CREATE TABLE meta (name VARCHAR PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO meta VALUES ('schema', 0), ('high', 0), ('forgot', 0), ('writes', 0)`)
	return explainError(err)
}

// tables are all tables but meta, in the order in which they are copied.
var tables = []string{
	"entries", "answers", "models", "vectors", "tags", "links", "access", "grades", "graded", "documents", "entities",
	"relations", "changes",
}

// steps are the migration steps from an empty file to the current schema. A file records how many were applied. A
// released step is never changed: a change is a further step.
//
// There are no foreign keys: DuckDB turns an update of a referenced row into a delete and an insert. References are
// written in one transaction with their target, and [Store.Verify] checks them.
//
// Row numbers are BIGINT and not UBIGINT: a bound unsigned number is compared by way of another type, which makes a
// lookup ten times slower. Vectors are little-endian float32 as BLOB without compression, which would only cost time.
//
// The column hash of entries is not used any more.
var steps = []string{
	`CREATE TABLE entries (
  row BIGINT NOT NULL, id VARCHAR PRIMARY KEY,
  kind VARCHAR NOT NULL, state VARCHAR NOT NULL, trust VARCHAR NOT NULL, source VARCHAR NOT NULL,
  name VARCHAR NOT NULL, description VARCHAR NOT NULL, corpus VARCHAR NOT NULL,
  intent VARCHAR NOT NULL, entities VARCHAR NOT NULL, sentiment VARCHAR NOT NULL, respondent VARCHAR NOT NULL,
  agent VARCHAR NOT NULL, session VARCHAR NOT NULL, query VARCHAR NOT NULL, origin VARCHAR NOT NULL,
  part INTEGER NOT NULL,
  model VARCHAR NOT NULL, digest VARCHAR NOT NULL, flags VARCHAR NOT NULL, hash VARCHAR NOT NULL,
  superseded_by VARCHAR NOT NULL, pinned BOOLEAN NOT NULL, created TIMESTAMP NOT NULL, updated TIMESTAMP NOT NULL
);
-- Which answers were stored; id is NULL for one that was forgotten, so that a repeated event does not bring it back.
-- answer is query and respondent in one: DuckDB looks only single columns up in an index.
CREATE TABLE answers (answer VARCHAR PRIMARY KEY, query VARCHAR NOT NULL, respondent VARCHAR NOT NULL, id VARCHAR);
CREATE TABLE models (model VARCHAR NOT NULL, dims INTEGER NOT NULL);
CREATE TABLE vectors (
  row BIGINT NOT NULL, model VARCHAR NOT NULL, dims INTEGER NOT NULL,
  name BLOB NOT NULL USING COMPRESSION uncompressed, description BLOB NOT NULL USING COMPRESSION uncompressed,
  corpus BLOB USING COMPRESSION uncompressed
);
-- Without it DuckDB would read all vectors around the one that is looked for.
CREATE INDEX vectors_row ON vectors (row);
CREATE TABLE tags (row BIGINT NOT NULL, place INTEGER NOT NULL, tag VARCHAR NOT NULL);
-- Both ways: a link has two rows.
CREATE TABLE links (row BIGINT NOT NULL, other VARCHAR NOT NULL);
CREATE TABLE access (row BIGINT NOT NULL, times BIGINT NOT NULL, last TIMESTAMP NOT NULL);
-- respondent '' = all answers to the question.
CREATE TABLE grades (
  answer VARCHAR PRIMARY KEY, query VARCHAR NOT NULL, respondent VARCHAR NOT NULL, critic INTEGER,
  feedback VARCHAR, pairwise VARCHAR,
  reward DOUBLE NOT NULL, rewards INTEGER NOT NULL
);
CREATE TABLE graded (event VARCHAR PRIMARY KEY);
CREATE TABLE documents (
  origin VARCHAR PRIMARY KEY, title VARCHAR NOT NULL, hash VARCHAR NOT NULL, modified TIMESTAMP,
  pieces INTEGER NOT NULL, imported TIMESTAMP NOT NULL
);
CREATE TABLE entities (id BIGINT NOT NULL, name VARCHAR NOT NULL, folded VARCHAR NOT NULL, kind VARCHAR NOT NULL);
-- words is what is looked for in a line: subject, predicate and object, folded.
-- ended_by is the line that until is from.
CREATE TABLE relations (
  id VARCHAR NOT NULL, row BIGINT NOT NULL, subject BIGINT NOT NULL, predicate VARCHAR NOT NULL,
  folded VARCHAR NOT NULL, object BIGINT NOT NULL,
  words VARCHAR NOT NULL, kind VARCHAR NOT NULL, tense VARCHAR NOT NULL, since VARCHAR NOT NULL, until VARCHAR NOT NULL,
  trust VARCHAR NOT NULL, said TIMESTAMP NOT NULL, ended_by VARCHAR NOT NULL
)`,
	renameUser,
	addContext,
	addChanges,
}

// addChanges adds the states of entries before and after the changes that can be undone; NULL = there was no entry.
const addChanges = `CREATE TABLE changes (
  change VARCHAR NOT NULL, made TIMESTAMP NOT NULL, about VARCHAR NOT NULL, entry VARCHAR NOT NULL,
  before VARCHAR, after VARCHAR, size BIGINT NOT NULL
)`

// addContext adds the conversation, position, speaker and time of entries, unknown for those that exist, and requires
// the vector of the corpus; those of name and description become optional (NULL = that of the corpus). Vectors without
// one of the corpus are deleted: the entries are embedded again. DuckDB cannot add a column that is NOT NULL, nor alter
// a table with an index.
const addContext = `ALTER TABLE entries ADD COLUMN conversation VARCHAR DEFAULT '';
ALTER TABLE entries ADD COLUMN position INTEGER DEFAULT 0;
ALTER TABLE entries ADD COLUMN speaker VARCHAR DEFAULT '';
ALTER TABLE entries ADD COLUMN happened TIMESTAMP;
CREATE TABLE new_vectors (
  row BIGINT NOT NULL, model VARCHAR NOT NULL, dims INTEGER NOT NULL,
  corpus BLOB NOT NULL USING COMPRESSION uncompressed, name BLOB USING COMPRESSION uncompressed,
  description BLOB USING COMPRESSION uncompressed
);
INSERT INTO new_vectors SELECT row, model, dims, corpus, name, description FROM vectors WHERE corpus IS NOT NULL;
DROP TABLE vectors;
ALTER TABLE new_vectors RENAME TO vectors;
CREATE INDEX vectors_row ON vectors (row)`

// renameUser replaces the former terms for the user: the source 'person', and the graph entities "the person" and
// "the person's ..." (folded: 'the person s ...'). Other entities that begin with "the person" are unchanged. An entity
// whose new name another entity has already is merged into that one.
const renameUser = `UPDATE entries SET source = 'user' WHERE source = 'person';
CREATE TEMP TABLE renamed AS SELECT id, 'the user' || substr(folded, 11) AS folded FROM entities
  WHERE folded = 'the person' OR starts_with(folded, 'the person s ');
CREATE TEMP TABLE merged AS SELECT n.id, e.id AS target FROM renamed n JOIN entities e ON e.folded = n.folded;
UPDATE relations SET subject = m.target FROM merged m WHERE m.id = relations.subject;
UPDATE relations SET object = m.target FROM merged m WHERE m.id = relations.object;
DELETE FROM entities WHERE id IN (SELECT id FROM merged);
UPDATE entities SET folded = n.folded, name = regexp_replace(name, '(?i)^.*?person', 'the user')
  FROM renamed n WHERE n.id = entities.id;
UPDATE relations SET words = ' ' || s.folded || ' ' || relations.folded || ' ' || o.folded || ' '
  FROM entities s, entities o WHERE s.id = relations.subject AND o.id = relations.object;
DROP TABLE merged;
DROP TABLE renamed`

// migrate applies the steps that the file at path, attached to e, does not have yet, each in a transaction of its own:
// an error leaves those before it applied. A file with more steps than known is [ErrNewer], a database without meta is
// [ErrDamaged]; both are left unchanged. When ctx ends it returns ctx's error.
func migrate(ctx context.Context, e *engine, path string, steps []string) error {
	var taken int
	err := e.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", markSchema).Scan(&taken)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return errors.Join(damagedError(path, fmt.Errorf("it is a database but not a conclave memory: %w",
			&duckError{err})), e.skipCheckpoint(ctx))
	}
	if taken > len(steps) {
		return errors.Join(
			fmt.Errorf("%w: %s has schema %d, this version supports %d; the file is unchanged, use the version that "+
				"wrote it", ErrNewer, path, taken, len(steps)),
			e.skipCheckpoint(ctx))
	}
	for ; taken < len(steps); taken++ {
		if err := applyStep(ctx, e.db, steps[taken], taken+1); err != nil {
			return fmt.Errorf("migrating %s to schema %d: %w", path, taken+1, explainError(err))
		}
	}
	return nil
}

// applyStep runs the SQL of one migration step and records number as the schema, in one transaction. On an error
// nothing is changed.
func applyStep(ctx context.Context, db *sql.DB, change string, number int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, change)
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = ?", number, markSchema)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// readMark reads a value of the table meta. It does not check whether the store is closed; a missing name is an error.
func (s *Store) readMark(ctx context.Context, name string) (value int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", name).Scan(&value)
	if err != nil {
		return 0, fmt.Errorf("reading %s of the memory: %w", name, explainError(err))
	}
	return value, nil
}
