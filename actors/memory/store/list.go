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

// Filter selects the entries of a list. Empty fields match everything.
type Filter struct {
	Kind, State, Trust, Tag string
	From                    string // file or address of origin
	Pinned                  bool   // pinned ones only
	Text                    string // substring of name, description or corpus; case and accents are ignored
	Limit                   int    // page size; 0 = 50, capped at 1000
	After                   string // cursor of the previous page
}

// Page sizes.
const (
	defaultPageSize = 50
	maxPageSize     = 1000
)

// pageLimit returns the size of a page for a limit that was asked for; 0 or less means the default.
func pageLimit(asked int) int {
	if asked <= 0 {
		return defaultPageSize
	}
	return min(asked, maxPageSize)
}

// CursorAfter returns the cursor of the page that follows e.
func CursorAfter(e subjects.MemoryEntry) string {
	return strconv.FormatInt(truncateTime(e.Created).UnixMicro(), 36) + "." + e.ID
}

// parseCursor parses a cursor of [CursorAfter]. Cursors come from clients: anything else, also "", is [ErrCursor]. The
// entry need not exist any more.
func parseCursor(s string) (created time.Time, id string, err error) {
	number, id, ok := strings.Cut(s, ".")
	micros, err := strconv.ParseInt(number, 36, 64)
	if !ok || err != nil || checkID("id", id) != nil {
		return time.Time{}, "", ErrCursor
	}
	created = time.UnixMicro(micros).UTC()
	if checkTime("created", created) != nil {
		return time.Time{}, "", ErrCursor
	}
	return created, id, nil
}

// List reads a page of the entries that match f, newest first. next is the cursor of the next page, "" at the end. A
// malformed f.After is [ErrCursor].
func (s *Store) List(ctx context.Context, f Filter) (entries []subjects.MemoryEntry, next string, err error) {
	limit := pageLimit(f.Limit)
	where, args, err := f.condition()
	if err != nil {
		return nil, "", err
	}
	q := fmt.Sprintf("SELECT %s FROM entries WHERE %s ORDER BY created DESC, id DESC LIMIT %d", entryColumns, where,
		limit+1)
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
		return nil, "", fmt.Errorf("listing entries: %w", err)
	}
	return entriesOf(all), next, nil
}

// condition returns the filter as an SQL condition with its arguments, or [ErrCursor] for a malformed After. Limit
// is not part of it; an empty filter gives "true".
func (f Filter) condition() (string, []any, error) {
	parts, args := []string{"true"}, []any{}
	also := func(condition string, values ...any) {
		parts, args = append(parts, condition), append(args, values...)
	}
	for _, c := range []struct{ column, value string }{
		{"kind", f.Kind}, {"state", f.State}, {"trust", f.Trust},
	} {
		if c.value != "" {
			also(c.column+" = ?", sanitize(c.value))
		}
	}
	switch {
	case strings.HasSuffix(f.From, "/"):
		also("starts_with(origin, ?)", sanitize(f.From))
	case f.From != "":
		also("origin = ?", sanitize(f.From))
	}
	if f.Pinned {
		also("pinned")
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
