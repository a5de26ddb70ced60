package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"conclave/subjects"
)

// Filter says which entries are listed. What is empty does not count.
type Filter struct {
	Kind, State, Trust, Tag string
	From                    string // the file or address it is from
	Session                 string
	Text                    string // letters in name, description or corpus; neither case nor accents count
	Limit                   int    // at most; 0 = 50, never more than 1000
	After                   string // where the last page ended
	Corpus                  bool   // read the corpus too
}

// Sizes of a page.
const (
	defaultPageSize = 50
	maxPageSize     = 1000
)

// CursorAfter is where a page ends whose last entry is e.
func CursorAfter(e subjects.MemoryEntry) string {
	return strconv.FormatInt(truncateTime(e.Created).UnixMicro(), 36) + "." + e.ID
}

// parseCursor reads what Cursor wrote. It comes back from a person.
func parseCursor(s string) (created time.Time, id string, err error) {
	number, id, ok := strings.Cut(s, ".")
	micros, err := strconv.ParseInt(number, 36, 64)
	if !ok || err != nil || checkID("the id", id) != nil {
		return time.Time{}, "", ErrCursor
	}
	created = time.UnixMicro(micros).UTC()
	if checkTime("the time", created) != nil {
		return time.Time{}, "", ErrCursor
	}
	return created, id, nil
}

// List reads entries, the newest first. next is where to go on, "" at the end.
func (s *Store) List(ctx context.Context, f Filter) (entries []subjects.MemoryEntry, next string, err error) {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultPageSize
	}
	limit = min(limit, maxPageSize)
	where, args, err := f.condition()
	if err != nil {
		return nil, "", err
	}
	corpus := "''"
	if f.Corpus {
		corpus = "corpus"
	}
	q := fmt.Sprintf("SELECT %s%s FROM entries WHERE %s ORDER BY created DESC, id DESC LIMIT %d", entryColumns, corpus, where, limit+1)
	var all []storedEntry
	err = s.readSnapshot(ctx, func(m snapshot) error {
		err := m.queryOnce(ctx, func(r *sql.Rows) error {
			e, err := scanEntry(r)
			all = append(all, e)
			return err
		}, q, args...)
		if err != nil {
			return err
		}
		if len(all) > limit {
			all = all[:limit]
			next = CursorAfter(all[limit-1].MemoryEntry)
		}
		return s.fillRelated(ctx, m, all)
	})
	if err != nil {
		return nil, "", fmt.Errorf("listing: %w", err)
	}
	return entriesOf(all), next, nil
}

// condition is the filter as a condition.
func (f Filter) condition() (string, []any, error) {
	parts, args := []string{"true"}, []any{}
	also := func(condition string, values ...any) {
		parts, args = append(parts, condition), append(args, values...)
	}
	for _, c := range []struct{ column, value string }{
		{"kind", f.Kind}, {"state", f.State}, {"trust", f.Trust}, {"origin", f.From}, {"session", f.Session},
	} {
		if c.value != "" {
			also(c.column+" = ?", sanitize(c.value))
		}
	}
	if f.Tag != "" {
		also("row IN (SELECT row FROM tags WHERE tag = ?)", sanitize(f.Tag))
	}
	if f.Text != "" {
		t := sanitize(f.Text)
		has := func(column string) string {
			return "contains(strip_accents(lower(" + column + ")), strip_accents(lower(?)))"
		}
		also("("+has("name")+" OR "+has("description")+" OR "+has("corpus")+")", t, t, t)
	}
	if f.After != "" {
		created, id, err := parseCursor(f.After)
		if err != nil {
			return "", nil, err
		}
		also("(created < ? OR created = ? AND id < ?)", created, created, id)
	}
	return strings.Join(parts, " AND "), args, nil
}
