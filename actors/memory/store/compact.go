package store

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// rewriteFile copies the live rows of a closed memory into a new file, which then replaces the old one: no byte of a
// forgotten or changed entry is left. It rejects a memory with a log. The caller must hold the claim on path. It takes
// some seconds for 100,000 entries with vectors. When ctx ends before the copy is complete, the file is unchanged and
// the error is returned. The old file stays attached, and thereby locked, until it is replaced.
func rewriteFile(ctx context.Context, path string, o Options) error {
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
	err = e.copyInto(ctx, path, fresh)
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

// copyInto creates fresh, copies all of path into it and detaches it. The mark that the file may hold deleted bytes is
// not copied. Nothing may be attached before.
func (e *engine) copyInto(ctx context.Context, path, fresh string) error {
	if _, err := e.db.ExecContext(ctx, "ATTACH "+quoteSQL(path)+" AS old (READ_ONLY)"); err != nil {
		return explainOpenError(path, err)
	}
	if err := e.attach(ctx, fresh); err != nil {
		return explainError(err)
	}
	for _, q := range []string{
		"COPY FROM DATABASE old TO " + catalog,
		"UPDATE meta SET value = 0 WHERE name = 'forgot'",
		"CHECKPOINT " + catalog,
	} {
		if _, err := e.db.ExecContext(ctx, q); err != nil {
			return explainError(err)
		}
	}
	return e.detach(ctx)
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
