package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"conclave/pkg/file"
)

// countSuffix is that of the file with the number of acknowledged transactions. The table meta has it too, as 'writes':
// a database with a lower number than that file has lost writes.
const countSuffix = ".count"

// readCount reads the number of transactions that were acknowledged, 0 without a file.
func readCount(path string) (n int64, err error) {
	b, err := os.ReadFile(path + countSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the count of the memory: %w", err)
	}
	if _, err := fmt.Sscanf(string(b), "%d", &n); err != nil || string(b) != formatCount(n) {
		return 0, fmt.Errorf("%s%s cannot be read: whether writes are missing is not known", path, countSuffix)
	}
	return n, nil
}

// formatCount returns a number and its checksum in a fixed number of bytes.
func formatCount(n int64) string {
	return fmt.Sprintf("%-20d %08x\n", n, crc32.ChecksumIEEE(fmt.Appendf(nil, "%d", n)))
}

// openCount finds out whether the database has every transaction that was acknowledged, see [Store.Lost], and opens the
// file of their number.
func (s *Store) openCount(ctx context.Context) (writes int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'writes'").Scan(&writes)
	if errors.Is(err, sql.ErrNoRows) { // a file of an older build
		_, err = s.db.ExecContext(ctx, "INSERT INTO meta VALUES ('writes', 0)")
	}
	if err != nil {
		return 0, explainError(err)
	}
	switch counted, err := readCount(s.path); {
	case err != nil:
		s.lost = err.Error()
	case counted > writes:
		s.lost = fmt.Sprintf("%s has lost the last %d of its %d writes", s.path, counted-writes, counted)
		writes = counted // so that the next start does not report it again
		if _, err := s.db.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = 'writes'", counted); err != nil {
			return 0, explainError(err)
		}
	}
	err = file.Replace(s.path+countSuffix, []byte(formatCount(writes))) // a power failure must not leave an empty one
	if err == nil {
		s.count, err = os.OpenFile(s.path+countSuffix, os.O_WRONLY, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("opening the count of the memory: %w", err)
	}
	return writes, nil
}

// writeCount writes the number of acknowledged transactions. It is not synced: a power failure leaves an older number,
// never one of a transaction that is not on disk.
func (s *Store) writeCount(n int64) error {
	_, err := s.count.WriteAt([]byte(formatCount(n)), 0)
	return err
}

// Lost describes writes that were acknowledged and that the database did not have when it was opened, "" = none.
func (s *Store) Lost() string { return s.lost }

// readAll reads every value of the tables but meta, so that damage of the file is found now: DuckDB compares the
// checksum of a block when it reads it. For the error see explainOpenError.
func (s *Store) readAll(ctx context.Context) error {
	for _, table := range tables {
		var sum any
		row := s.db.QueryRowContext(ctx, "SELECT max(hash(t)) FROM "+table+" t")
		if err := row.Scan(&sum); err != nil && ctx.Err() == nil {
			return explainOpenError(s.path, err)
		} else if err != nil {
			return ctx.Err()
		}
	}
	return nil
}
