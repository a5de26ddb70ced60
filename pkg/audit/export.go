package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"unicode/utf8"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// An export is JSON lines: a header, a line per stored message, a footer. The encoding of each line is canonical, and a
// reader rejects every other.
const (
	exportFormat = "conclave audit export 1"
	maxLine      = 64 << 20
)

type exportLine struct {
	Header  *exportHeader  `json:"header,omitempty"`
	Message *exportMessage `json:"message,omitempty"`
	Footer  *Summary       `json:"footer,omitempty"`
}

type exportHeader struct {
	Format string `json:"format"`
	First  uint64 `json:"first"` // of the main stream
	Last   uint64 `json:"last"`
	// files of earlier builds have none: their messages are numbered through
	Others []StreamRange `json:"others,omitempty"`
}

type exportMessage struct {
	Stream  string                 `json:"stream,omitempty"` // as in [Stored]
	Seq     uint64                 `json:"seq"`
	Subject string                 `json:"subject"`
	Data    []byte                 `json:"data"`              // the message; only this is read back
	Records []subjects.AuditRecord `json:"records,omitempty"` // data decoded, for the reader of the file
	Error   string                 `json:"error,omitempty"`   // why data could not be decoded
}

// Summary describes an export: as its result, and as its footer.
type Summary struct {
	Messages int                  `json:"messages"`
	Records  int                  `json:"records"`
	Chains   int                  `json:"chains"`
	Heads    []subjects.AuditHead `json:"heads"`  // of the chains that no later chain links, the genesis included
	SHA256   string               `json:"sha256"` // of the whole file; in the footer, of everything before it
}

// Export writes every message of src to w, malformed ones too, so that [OpenExport] returns the same source. It does
// not verify, and rejects only a subject that is not UTF-8. After an error w holds a truncated export. The footer
// detects damage, not forgery: against forgery keep Summary.SHA256, the hash of all bytes written, elsewhere.
func Export(ctx context.Context, src Source, w io.Writer) (Summary, error) {
	var sum Summary
	body, all := sha256.New(), sha256.New()
	buffered := bufio.NewWriter(w)
	writeLine := func(to io.Writer, line exportLine) error {
		b, err := line.encode()
		if err == nil {
			_, err = to.Write(b)
		}
		return err
	}
	err := func() error {
		out := io.MultiWriter(buffered, body, all)
		if err := writeLine(out,
			exportLine{Header: &exportHeader{exportFormat, src.First, src.Last, src.Others}}); err != nil {
			return err
		}
		counter := newExportCounter()
		if src.Messages != nil {
			for st, err := range src.Messages {
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					return err
				}
				if !utf8.ValidString(st.Subject) {
					return fmt.Errorf("message %s: subject %q is not text", st.Name(), st.Subject)
				}
				m := newExportMessage(st, counter)
				if err := writeLine(out, exportLine{Message: m}); err != nil {
					return err
				}
			}
		}
		footer := counter.footer(body)
		if err := writeLine(io.MultiWriter(buffered, all), exportLine{Footer: footer}); err != nil {
			return err
		}
		sum = *footer
		return buffered.Flush()
	}()
	if err != nil {
		return Summary{}, fmt.Errorf("export audit: %w", err)
	}
	sum.SHA256 = hex.EncodeToString(all.Sum(nil))
	return sum, nil
}

// OpenExport reads the header of an export and returns the exported source; another format is an error that wraps
// [ErrExport]. Its Messages can be read once, while r is open; a truncated or altered file ends them with an error that
// wraps [ErrExport], at the latest at the footer. The messages before the error are not yet confirmed.
func OpenExport(r io.Reader) (Source, error) {
	e := &exportReader{r: bufio.NewReaderSize(r, 64<<10), body: sha256.New(), counter: newExportCounter()}
	line, err := e.readLine()
	if err != nil {
		return Source{}, fmt.Errorf("open audit export: %w", err)
	}
	h := line.Header
	if h == nil || h.Format != exportFormat {
		return Source{}, fmt.Errorf("open audit export: %w: the first line is not the header of %q", ErrExport,
			exportFormat)
	}
	return Source{StreamRange: StreamRange{First: h.First, Last: h.Last}, Others: h.Others, Messages: e.messages}, nil
}

// MergeHeads merges lists of heads, deduped, sorted by account and chain. The genesis after a rotation must hold both
// the heads in the sealed log and the anchored ones, because the next chains link the anchored ones.
func MergeHeads(lists ...[]subjects.AuditHead) []subjects.AuditHead {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b subjects.AuditHead) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Chain, b.Chain), cmp.Compare(a.Seq, b.Seq),
			cmp.Compare(a.Hash, b.Hash))
	})
	return slices.Compact(all)
}

func (l exportLine) encode() ([]byte, error) {
	b, err := json.Marshal(l)
	return append(b, '\n'), err
}

// newExportMessage returns the line of st and adds st to counter. Data that is no valid batch is kept, with the reason
// in Error and no records.
func newExportMessage(st Stored, counter *exportCounter) *exportMessage {
	m := &exportMessage{Stream: st.Stream, Seq: st.Seq, Subject: st.Subject, Data: st.Data}
	batch, err := DecodeBatch(st.Data)
	if err != nil {
		m.Error = err.Error()
	}
	for _, d := range batch {
		m.Records = append(m.Records, d.Record)
	}
	counter.addMessage(st.Subject, batch)
	return m
}

// stored returns the message of the line.
func (m *exportMessage) stored() Stored {
	return Stored{Stream: m.Stream, Seq: m.Seq, Subject: m.Subject, Data: m.Data}
}

// exportReader reads the lines of an export after each other. body hashes all lines before the footer.
type exportReader struct {
	r        *bufio.Reader
	body     hash.Hash
	counter  *exportCounter
	consumed bool
}

// messages implements Source.Messages. It ends without an error only after a footer that matches; a second iteration, a
// second header and a missing footer are errors.
func (e *exportReader) messages(yield func(Stored, error) bool) {
	if e.consumed {
		yield(Stored{}, errors.New("read audit export: already read"))
		return
	}
	e.consumed = true
	for {
		line, err := e.readLine()
		if err == nil && line.Header != nil {
			err = fmt.Errorf("%w: a second header", ErrExport)
		}
		if err == nil && line.Footer != nil {
			err = e.checkFooter(line)
			if err == nil {
				return
			}
		}
		if err != nil {
			yield(Stored{}, fmt.Errorf("read audit export: %w", err))
			return
		}
		if !yield(line.Message.stored(), nil) {
			return
		}
	}
}

// readLine reads one line and adds it, unless it is the footer, to the hash and the counts that the footer must match.
// It rejects a line unless [Export] would have written the same bytes, one of more than about maxLine bytes, and the
// end of the file.
func (e *exportReader) readLine() (exportLine, error) {
	var raw []byte
	for {
		part, err := e.r.ReadSlice('\n')
		raw = append(raw, part...)
		if err == nil {
			break
		}
		if errors.Is(err, bufio.ErrBufferFull) && len(raw) <= maxLine {
			continue
		}
		if errors.Is(err, io.EOF) {
			return exportLine{}, fmt.Errorf("%w: truncated, the footer is missing", ErrExport)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return exportLine{}, fmt.Errorf("%w: a line exceeds %d bytes", ErrExport, maxLine)
		}
		return exportLine{}, err
	}
	var line exportLine
	if err := strict.DecodeJSON(raw, &line); err != nil {
		return line, fmt.Errorf("%w: malformed line: %w", ErrExport, err)
	}
	same := exportLine{Header: line.Header, Footer: line.Footer}
	kinds := 0
	if line.Header != nil {
		kinds++
	}
	if line.Footer != nil {
		kinds++
	}
	if m := line.Message; m != nil {
		kinds++
		same.Message = newExportMessage(m.stored(), e.counter)
	}
	b, err := same.encode()
	if err != nil || kinds != 1 || !bytes.Equal(b, raw) {
		return line, fmt.Errorf("%w: altered line: its records do not match its data", ErrExport)
	}
	if line.Footer == nil {
		e.body.Write(raw)
	}
	return line, nil
}

// checkFooter compares the counts, heads and hash of the footer with the lines before it, and rejects a difference and
// any byte after it.
func (e *exportReader) checkFooter(line exportLine) error {
	got, err := line.encode()
	if err != nil {
		return err
	}
	expect, err := exportLine{Footer: e.counter.footer(e.body)}.encode()
	if err != nil {
		return err
	}
	if !bytes.Equal(got, expect) {
		return fmt.Errorf("%w: altered, the footer does not match", ErrExport)
	}
	if _, err := e.r.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the footer", ErrExport)
	}
	return nil
}

// exportCounter counts messages and records, and collects the last record of each chain.
type exportCounter struct {
	messages, records int
	heads             map[string]subjects.AuditHead // by subject
	linked            map[string]bool               // subjects of chains that a later chain links
}

func newExportCounter() *exportCounter {
	return &exportCounter{heads: map[string]subjects.AuditHead{}, linked: map[string]bool{}}
}

// addMessage counts a message and its records, and notes its last record as the head of its chain and the chains that
// it links. batch is empty for a malformed message, which like an invalid subject is counted and has no head.
func (t *exportCounter) addMessage(subject string, batch []Decoded) {
	t.messages++
	t.records += len(batch)
	account, chain, err := splitSubject(subject)
	if err != nil || len(batch) == 0 {
		return
	}
	for _, d := range batch {
		for _, l := range d.Record.Links {
			t.linked["audit."+l.Account+"."+l.Chain] = true
		}
	}
	last := batch[len(batch)-1]
	t.heads[subject] = subjects.AuditHead{
		Account: account, Chain: chain, Seq: last.Record.Seq, Hash: hexHash(last.Hash),
	}
}

// footer returns the footer of an export whose lines so far hash to body. Its heads are those of the chains that no
// other chain in the export links.
func (t *exportCounter) footer(body hash.Hash) *Summary {
	f := &Summary{
		Messages: t.messages, Records: t.records, Chains: len(t.heads),
		Heads: []subjects.AuditHead{}, SHA256: hex.EncodeToString(body.Sum(nil)),
	}
	for subject, h := range t.heads {
		if !t.linked[subject] {
			f.Heads = append(f.Heads, h)
		}
	}
	f.Heads = MergeHeads(f.Heads)
	return f
}
