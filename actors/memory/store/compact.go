package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
)

// rewriteFile copies the live rows of a closed memory into a new file, which then replaces the old one: no byte of a
// forgotten or changed entry is left. It rejects a memory with a log, with a schema other than len(steps) or with
// unknown tables. The caller must hold the claim on path. It takes some seconds for 100,000 entries with vectors. When
// ctx ends before the copy is complete, the file is unchanged and the error is returned. The old file stays attached,
// and thereby locked, until it is replaced.
func rewriteFile(ctx context.Context, path string, o Options, steps []string) error {
	for _, log := range []string{path + walSuffix, path + walSuffix + ".checkpoint", path + walSuffix + ".recovery"} {
		// A log belongs to the file it was written for: it must not be replayed on another.
		if _, err := os.Stat(log); err == nil {
			return fmt.Errorf("rewriting the memory: its log %s exists; open and close the memory first", log)
		}
	}
	fresh := path + newSuffix
	if err := removeLeftovers(path); err != nil {
		return err
	}
	e, err := newEngine(path, o)
	if err != nil {
		return err
	}
	err = e.copyInto(ctx, path, fresh, steps)
	if err == nil {
		err = replaceFile(fresh, path)
	}
	if err != nil {
		err = fmt.Errorf("rewriting the memory: %w", err)
	}
	if cerr := e.close(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return errors.Join(err, removeLeftovers(path))
	}
	return nil
}

// copyInto creates fresh with the current schema, copies all tables of path into it and detaches it. It rejects a file
// of another schema or with unknown tables, and fails if a table has another number of rows afterwards. The mark that
// the file may hold deleted bytes is not copied. Nothing may be attached before.
func (e *engine) copyInto(ctx context.Context, path, fresh string, steps []string) error {
	if _, err := e.db.ExecContext(ctx, "ATTACH "+quoteSQL(path)+" AS old (READ_ONLY)"); err != nil {
		return explainOpenError(path, err)
	}
	var schema int
	if err := e.db.QueryRowContext(ctx, "SELECT value FROM old.meta WHERE name = 'schema'").Scan(&schema); err != nil {
		return explainError(err)
	}
	if schema != len(steps) {
		return fmt.Errorf("it has schema %d, not %d; open and close it first", schema, len(steps))
	}
	if err := e.rejectUnknownTables(ctx); err != nil {
		return err
	}
	if err := e.attach(ctx, fresh); err != nil {
		return explainError(err)
	}
	if err := createMeta(ctx, e.db); err != nil {
		return err
	}
	if err := migrate(ctx, e, fresh, steps); err != nil {
		return err
	}
	for _, table := range tables {
		if _, err := e.db.ExecContext(ctx, "INSERT INTO "+table+" SELECT * FROM old."+table); err != nil {
			return explainError(err)
		}
		var had, has int64
		if err := e.db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM old."+table+"), (SELECT count(*) FROM "+table+
			")").Scan(&had, &has); err != nil {
			return explainError(err)
		}
		if had != has {
			return fmt.Errorf("copied %d of %d rows of %s", has, had, table)
		}
	}
	for _, q := range []string{
		"UPDATE meta SET value = o.value FROM old.meta o WHERE o.name = meta.name AND meta.name <> 'forgot'",
		"INSERT INTO meta SELECT * FROM old.meta WHERE name NOT IN (SELECT name FROM meta)",
		"CHECKPOINT " + catalog,
	} {
		if _, err := e.db.ExecContext(ctx, q); err != nil {
			return explainError(err)
		}
	}
	return e.detach(ctx)
}

// rejectUnknownTables rejects a file, attached as old, with a table that would not be copied.
func (e *engine) rejectUnknownTables(ctx context.Context) error {
	rows, err := e.db.QueryContext(ctx, "SELECT table_name FROM duckdb_tables() WHERE database_name = 'old'")
	return scanRows(rows, err, func(r *sql.Rows) error {
		var name string
		if err := r.Scan(&name); err != nil {
			return err
		}
		if name != "meta" && !slices.Contains(tables, name) {
			return fmt.Errorf("it has an unknown table %s", name)
		}
		return nil
	})
}

// detach closes the attached file, which is complete then. Idle connections that use it are closed first; none may be
// in use.
func (e *engine) detach(ctx context.Context) error {
	e.attached.Store(false)
	e.db.SetMaxIdleConns(0)
	defer e.db.SetMaxIdleConns(maxConns)
	if _, err := e.db.ExecContext(ctx, "DETACH "+catalog); err != nil {
		return explainError(err)
	}
	return nil
}
