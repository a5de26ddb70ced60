package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Values by which memories are filtered.
var (
	MemoryKinds  = []string{subjects.KindEngram, subjects.KindFact, subjects.KindDocument}
	MemoryStates = []string{subjects.MemoryActive, subjects.MemoryCandidate, subjects.MemorySuperseded}
	MemoryTrust  = []string{subjects.Trusted, subjects.Untrusted}
)

// MemoryPage is the default number of memories in one request.
const MemoryPage = 50

// Limits of one message to memory, well below what a message may have: memory embeds all of it before it replies.
const (
	batchEntries = 64
	batchBytes   = 256 << 10
	forgetBatch  = 500 // ids
	entryBytes   = 2 << 10
)

// AdminMemory sends one administrative request, such as list or forget, within a minute. What memory rejects is a
// [*subjects.Fault]. Entries in the reply are never nil.
func (c *Client) AdminMemory(ctx context.Context, q subjects.MemoryAdminRequest) (subjects.MemoryAdminReply, error) {
	r, err := request(ctx, c, memoryTimeout, subjects.MemoryAdminService, q)
	if r.Entries == nil {
		r.Entries = []subjects.MemoryEntry{}
	}
	return r, err
}

// ListMemories returns the memories that fit a filter, newest first, at most limit (0 = all), and the cursor of the
// next page, "" when there are no more. Op and Limit of the filter are set here; After is where to begin, "" for the
// newest.
func (c *Client) ListMemories(ctx context.Context, filter subjects.MemoryAdminRequest,
	limit int,
) (entries []subjects.MemoryEntry, next string, err error) {
	filter.Op = "list"
	return c.collectMemories(ctx, filter, limit)
}

// collectMemories collects the pages of a listing up to limit entries, 0 for all. next is the cursor of the following
// page, "" after the last. After an error there are no entries, also where earlier pages were read.
func (c *Client) collectMemories(ctx context.Context, q subjects.MemoryAdminRequest,
	limit int,
) (entries []subjects.MemoryEntry, next string, err error) {
	entries = []subjects.MemoryEntry{}
	for page, err := range c.MemoryPages(ctx, q, limit) {
		if err != nil {
			return nil, "", err
		}
		entries, next = append(entries, page.Entries...), page.Next
	}
	return entries, next, nil
}

// ErrCursor means that the cursor in a reply of memory does not advance: the list would not end.
var ErrCursor = errors.New("listing memories: the cursor does not advance")

// MemoryPages yields the pages of a list from q.After on until limit entries, 0 for all. A page that does not fit into
// one message is requested again at half the size. An error is yielded last; [ErrCursor] is one.
func (c *Client) MemoryPages(ctx context.Context, q subjects.MemoryAdminRequest,
	limit int,
) iter.Seq2[subjects.MemoryAdminReply, error] {
	return func(yield func(subjects.MemoryAdminReply, error) bool) {
		size := MemoryPage
		for n := 0; ; {
			q.Limit = size
			if limit > 0 {
				q.Limit = min(size, limit-n)
			}
			r, err := c.AdminMemory(ctx, q)
			var fault *subjects.Fault
			if errors.As(err, &fault) && fault.Code == subjects.CodeTooLarge && size > 1 {
				size /= 2
				continue
			}
			if err == nil && r.Next != "" && (r.Next == q.After || len(r.Entries) == 0) {
				err = ErrCursor
			}
			if !yield(r, err) || err != nil || r.Next == "" {
				return
			}
			if n += len(r.Entries); limit > 0 && n >= limit {
				return
			}
			q.After = r.Next
		}
	}
}

// ExportMemories writes every memory as a line of JSON, newest first, and returns how many were written. After an error
// the output is incomplete.
func (c *Client) ExportMemories(ctx context.Context, w io.Writer) (n int, err error) {
	for page, err := range c.MemoryPages(ctx, subjects.MemoryAdminRequest{Op: "list", Whole: true}, 0) {
		if err != nil {
			return n, err
		}
		if err := WriteExport(w, page.Entries); err != nil {
			return n, err
		}
		n += len(page.Entries)
	}
	return n, nil
}

// WriteExport writes entries in the form of an export, a line of JSON each.
func WriteExport(w io.Writer, entries []subjects.MemoryEntry) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// ShowMemory returns the memory with this id or prefix, with its whole text. An id of none or of several is an error: a
// [*subjects.Fault] of memory, [ErrNotFound] or an [*AmbiguousError].
func (c *Client) ShowMemory(ctx context.Context, id string) (subjects.MemoryEntry, error) {
	r, err := c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: "show", IDs: []string{id}, Whole: true})
	switch {
	case err != nil:
		return subjects.MemoryEntry{}, err
	case len(r.Entries) == 0:
		return subjects.MemoryEntry{}, fmt.Errorf("memory %s: %w", id, ErrNotFound)
	case len(r.Entries) > 1:
		return subjects.MemoryEntry{}, &AmbiguousError{id, len(r.Entries)}
	}
	return r.Entries[0], nil
}

// RelatedMemories returns the memories that e correlates with, without a request when e lists none. The result is never
// nil.
func (c *Client) RelatedMemories(ctx context.Context, e subjects.MemoryEntry) ([]subjects.MemoryEntry, error) {
	related := []subjects.MemoryEntry{}
	if len(e.Correlating) == 0 {
		return related, nil
	}
	r, err := request(ctx, c, memoryTimeout, subjects.MemoryCorrelated, subjects.MemoryIDs{IDs: []string{e.ID}})
	for _, h := range r.Hits {
		related = append(related, h.Entry)
	}
	return related, err
}

// ErrIncomplete means that the reply to a search ended before its last stage.
var ErrIncomplete = errors.New("the search ended before its last stage")

// SearchMemory recalls as the assistant does, waits for the last stage and returns it. Hits are never nil without an
// error. [ErrIncomplete] means that the reply ended early; the last stage that came is returned with it. ctx must have
// a deadline.
func (c *Client) SearchMemory(ctx context.Context, q subjects.MemoryQuery) (subjects.MemoryReply, error) {
	var last subjects.MemoryReply
	for r, err := range actor.AskStream(ctx, c.out, subjects.MemoryQueryService, q) {
		if err != nil {
			return last, err
		}
		last = r
	}
	if !last.Done {
		return last, ErrIncomplete
	}
	if last.Hits == nil {
		last.Hits = []subjects.MemoryHit{}
	}
	return last, nil
}

// MemoryStatus returns counts, sizes and models of memory. A reply without a status is an error.
func (c *Client) MemoryStatus(ctx context.Context) (subjects.MemoryStatus, error) {
	r, err := c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: "status"})
	if err == nil && r.Status == nil {
		err = errors.New("memory reports no status")
	}
	if err != nil {
		return subjects.MemoryStatus{}, err
	}
	return *r.Status, nil
}

// MemoryGraph returns relations of the knowledge graph: those that match about, or the newest for "". limit is the most
// that are returned, 0 for memory's default. The result is never nil.
func (c *Client) MemoryGraph(ctx context.Context, about string, limit int) ([]subjects.Relation, error) {
	r, err := c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: "graph", Query: about, Limit: limit})
	return append([]subjects.Relation{}, r.Relations...), err
}

// ErrNoResult means that memory replied to the write of one fact without its result.
var ErrNoResult = errors.New("memory reports no result for the fact")

// AddMemory stores a fact that the user states: its corpus without surrounding blanks, tags, and what is known of its
// conversation, position, speaker and time. An external one was not typed by the user and becomes untrusted. The result
// says whether it was stored, merged, supersedes another or was refused; a refusal is no error. [ErrNoResult] is.
func (c *Client) AddMemory(ctx context.Context, fact subjects.MemoryEntry, external bool) (subjects.MemoryWriteResult,
	[]subjects.Note, error,
) {
	entry := fact
	entry.Kind, entry.Corpus = subjects.KindFact, strings.TrimSpace(fact.Corpus)
	r, err := c.WriteMemory(ctx, subjects.MemoryWriteRequest{
		Entries:  []subjects.MemoryEntry{entry},
		External: external,
	})
	if err == nil && len(r.Results) != 1 {
		err = ErrNoResult
	}
	if err != nil {
		return subjects.MemoryWriteResult{}, nil, err
	}
	return r.Results[0], r.Notes, nil
}

// addBatch is how many facts one message has: memory embeds each before it replies.
const addBatch = 16

// AddMemories stores facts as [Client.AddMemory] does, in batches, and returns the added-up replies. progress is called
// after each batch with the number of facts that were sent. After an error, those of earlier batches are stored and
// counted in the reply.
func (c *Client) AddMemories(ctx context.Context, facts []subjects.MemoryEntry, external bool,
	progress func(done int),
) (subjects.MemoryWriteReply, error) {
	return c.writeBatches(ctx, EachEntry(facts), addBatch, subjects.MemoryWriteRequest{External: external}, progress)
}

// EachEntry yields entries without errors.
func EachEntry(entries []subjects.MemoryEntry) iter.Seq2[subjects.MemoryEntry, error] {
	return func(yield func(subjects.MemoryEntry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// WriteMemory sends entries or a document to memory in one message; the caller keeps it below the message limit. A busy
// memory has read nothing, so that is retried with backoff, with about six seconds of pauses in all. Other errors are
// not retried: the write may have been done.
func (c *Client) WriteMemory(ctx context.Context, w subjects.MemoryWriteRequest) (subjects.MemoryWriteReply, error) {
	for backoff := 100 * time.Millisecond; ; backoff *= 2 {
		r, err := request(ctx, c, writeTimeout, subjects.MemoryWriteService, w)
		var f *subjects.Fault
		if !errors.As(err, &f) || f.Code != subjects.CodeBusy || backoff > 5*time.Second {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(backoff):
		}
	}
}

// EditMemory changes name, description, text or tags of the memory with this id or prefix, and returns it as it is
// then. nil fields of edit stay. Memory rejects an empty edit, texts beyond its limits and credentials, and an id of
// none or of several.
func (c *Client) EditMemory(ctx context.Context, id string, edit subjects.MemoryEdit) (subjects.MemoryEntry, error) {
	r, err := c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: "edit", IDs: []string{id}, Edit: &edit})
	switch {
	case err != nil:
		return subjects.MemoryEntry{}, err
	case len(r.Missing) > 0 || len(r.Entries) == 0:
		return subjects.MemoryEntry{}, fmt.Errorf("memory %s: %w", id, ErrNotFound)
	}
	return r.Entries[0], nil
}

// MarkMemories pins, unpins, accepts or rejects memories by id or prefix: op is one of these verbs. It returns how many
// changed, and the ids that do not exist, never nil. It is an error when none exists, a prefix fits several, or one to
// accept or reject is no candidate; then nothing changes.
func (c *Client) MarkMemories(ctx context.Context, op string, ids []string) (changed int, missing []string, err error) {
	r, err := c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: op, IDs: ids})
	return r.Changed, append([]string{}, r.Missing...), err
}

// FindMemoriesToForget returns the memories that these words select for deletion, with those they superseded, and
// deletes none. Their ids are for [Client.ForgetMemories]. words must not be empty.
func (c *Client) FindMemoriesToForget(ctx context.Context, words string) ([]subjects.MemoryEntry, error) {
	entries, _, err := c.collectMemories(ctx, subjects.MemoryAdminRequest{Op: "forget", Query: words, Dry: true}, 0)
	return entries, err
}

// ForgetMemories deletes the memories with these ids or prefixes, and those that they superseded. It returns the
// deleted ones and the ids that do not exist, neither nil, also with an error: batches of [forgetBatch] before it are
// deleted then. An id that an earlier batch deleted is not missing. A batch of which no id exists is an error.
func (c *Client) ForgetMemories(ctx context.Context, ids []string) (forgotten []subjects.MemoryEntry, missing []string,
	err error,
) {
	forgotten, missing = []subjects.MemoryEntry{}, []string{}
	for batch := range slices.Chunk(ids, forgetBatch) {
		// deleted with an entry that superseded it
		batch = slices.DeleteFunc(slices.Clone(batch), func(id string) bool {
			return slices.ContainsFunc(forgotten, func(e subjects.MemoryEntry) bool {
				return strings.HasPrefix(e.ID, id)
			})
		})
		if len(batch) == 0 {
			continue
		}
		r, err := c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: "forget", IDs: batch})
		if err != nil {
			return forgotten, missing, err
		}
		forgotten, missing = append(forgotten, r.Entries...), append(missing, r.Missing...)
	}
	return forgotten, missing, nil
}

// DocumentsBelow returns the origins of the documents in memory below a folder, sorted. folder must be an absolute
// path.
func (c *Client) DocumentsBelow(ctx context.Context, folder string) (origins []string, err error) {
	below := strings.TrimSuffix(folder, "/") + "/"
	for page, err := range c.MemoryPages(ctx, subjects.MemoryAdminRequest{
		Op: "list", Kind: subjects.KindDocument,
		From: below,
	}, 0) {
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			if from := e.Provenance.From; strings.HasPrefix(from, below) {
				origins = append(origins, from)
			}
		}
	}
	slices.Sort(origins)
	return slices.Compact(origins), nil
}

// removedHash stands for the text of a document that no longer exists: no text has this hash.
const removedHash = "removed"

// RemoveDocument removes the pieces of a document that no longer exists. Importing it again stores it again.
func (c *Client) RemoveDocument(ctx context.Context, origin string) (subjects.MemoryWriteReply, error) {
	doc := subjects.MemoryDocument{
		From: origin, Hash: removedHash, First: 1, Pieces: []subjects.DocumentPiece{},
		Last: true,
	}
	return c.WriteMemory(ctx, subjects.MemoryWriteRequest{Document: &doc})
}

// ImportDocument sends a document with all its pieces, in as many messages as it takes, and returns the added-up
// replies. A document that memory knows in this form is reported as Unchanged after the first message. One without
// pieces sends nothing. After an error, the pieces of earlier messages are stored and counted in the reply.
func (c *Client) ImportDocument(ctx context.Context, doc subjects.MemoryDocument) (subjects.MemoryWriteReply, error) {
	var total subjects.MemoryWriteReply
	rest := doc.Pieces
	doc.First = 1
	for len(rest) > 0 {
		n := countPieces(rest)
		doc.Pieces, rest = rest[:n], rest[n:]
		doc.Last = len(rest) == 0
		w, err := c.WriteMemory(ctx, subjects.MemoryWriteRequest{Document: &doc})
		if err != nil {
			return total, err
		}
		addWritten(&total, w)
		if w.Unchanged {
			total.Unchanged = true
			break
		}
		doc.First += n
	}
	return total, nil
}

// RestoreMemories writes the entries of an export back, with their ids, times and grades, in batches. They are
// untrusted unless trusted is set: then each keeps the trust it states. An error of entries ends it before the batch in
// progress is written; earlier batches stay written and are counted in the reply.
func (c *Client) RestoreMemories(ctx context.Context, entries iter.Seq2[subjects.MemoryEntry, error],
	trusted bool,
) (subjects.MemoryWriteReply, error) {
	w := subjects.MemoryWriteRequest{Restore: true, Trusted: trusted}
	return c.writeBatches(ctx, entries, batchEntries, w, func(int) {})
}

// writeBatches writes entries with requests like w, each of at most most entries and about [batchBytes], and calls
// progress after each with the number of entries so far. An error ends it.
func (c *Client) writeBatches(ctx context.Context, entries iter.Seq2[subjects.MemoryEntry, error], most int,
	w subjects.MemoryWriteRequest, progress func(done int),
) (total subjects.MemoryWriteReply, err error) {
	done, size := 0, 0
	write := func() error {
		if len(w.Entries) == 0 {
			return nil
		}
		r, err := c.WriteMemory(ctx, w)
		addWritten(&total, r)
		if done += len(w.Entries); err == nil {
			progress(done)
		}
		w.Entries, size = nil, 0
		return err
	}
	for e, err := range entries {
		n := len(e.Corpus) + len(e.Description) + len(e.Name) + entryBytes
		if err == nil && (len(w.Entries) == most || size+n > batchBytes) {
			err = write()
		}
		if err != nil {
			return total, err
		}
		w.Entries, size = append(w.Entries, e), size+n
	}
	return total, write()
}

// countPieces returns how many of the leading pieces fit into one message: at most [batchEntries] and [batchBytes], but
// at least one, however large. It is 0 for no pieces.
func countPieces(pieces []subjects.DocumentPiece) int {
	n := 0
	for i, p := range pieces {
		if n += len(p.Heading) + len(p.Text); i > 0 && (i == batchEntries || n > batchBytes) {
			return i
		}
	}
	return len(pieces)
}

// addWritten adds the reply for one message to the total of an import.
func addWritten(total *subjects.MemoryWriteReply, w subjects.MemoryWriteReply) {
	total.Results = append(total.Results, w.Results...)
	total.Removed += w.Removed
	total.Notes = append(total.Notes, w.Notes...)
}

// MaxExportLine is the longest line of an export in bytes: a longer one does not fit into a message.
const MaxExportLine = subjects.MaxBody - 8<<10

// LineError is what is wrong with a line of an export.
type LineError struct {
	Line    int
	TooLong bool // longer than [MaxExportLine]
	Err     error
}

func (e *LineError) Error() string {
	if e.TooLong {
		return fmt.Sprintf("line %d is longer than %d KB", e.Line, MaxExportLine>>10)
	}
	return fmt.Sprintf("line %d is not a memory: %v", e.Line, e.Err)
}

func (e *LineError) Unwrap() error { return e.Err }

// ReadExport reads an export, a JSON object per line, and yields each entry. Blank lines are skipped. An unknown field,
// an entry that no export contains, or a line longer than [MaxExportLine] is a [*LineError] and ends it.
func ReadExport(r io.Reader) iter.Seq2[subjects.MemoryEntry, error] {
	return func(yield func(subjects.MemoryEntry, error) bool) {
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, MaxExportLine)
		n := 0
		for sc.Scan() {
			n++
			line := bytes.TrimSpace(sc.Bytes())
			if len(line) == 0 {
				continue
			}
			var e subjects.MemoryEntry
			err := strict.DecodeJSON(line, &e)
			if err == nil {
				err = checkExported(e)
			}
			if err != nil {
				yield(e, &LineError{Line: n, Err: err})
				return
			}
			if !yield(e, nil) {
				return
			}
		}
		if err := sc.Err(); errors.Is(err, bufio.ErrTooLong) {
			yield(subjects.MemoryEntry{}, &LineError{Line: n + 1, TooLong: true, Err: err})
		} else if err != nil {
			yield(subjects.MemoryEntry{}, err)
		}
	}
}

// checkExported rejects an entry that no export contains: one without a valid id, or with an unknown kind, state or
// trust.
func checkExported(e subjects.MemoryEntry) error {
	if subjects.CheckToken(e.ID) != nil {
		return errors.New("id is missing or invalid")
	}
	for _, field := range []struct {
		name, value string
		allowed     []string
	}{{"kind", e.Kind, MemoryKinds}, {"state", e.State, MemoryStates}, {"trust", e.Provenance.Trust, MemoryTrust}} {
		if !slices.Contains(field.allowed, field.value) {
			return fmt.Errorf("%s must be %s", field.name, strings.Join(field.allowed, ", "))
		}
	}
	return nil
}
