package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"conclave/subjects"
)

// An export is JSON lines: a header, a line per stored message, a footer. There is one way to write each line, and a
// reader accepts no other.
const (
	exportFormat = "conclave audit export 1"
	maxLine      = 64 << 20
)

type exportLine struct {
	Header  *exportHeader  `json:"header,omitempty"`
	Message *exportMessage `json:"message,omitempty"`
	Footer  *exportFooter  `json:"footer,omitempty"`
}

type exportHeader struct {
	Format string `json:"format"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
}

type exportMessage struct {
	Seq     uint64                 `json:"seq"`
	Subject string                 `json:"subject"`
	Data    []byte                 `json:"data"`              // what counts
	Records []subjects.AuditRecord `json:"records,omitempty"` // the same for a person
	Error   string                 `json:"error,omitempty"`   // why there are no records
}

type exportFooter struct {
	Messages int                  `json:"messages"`
	Records  int                  `json:"records"`
	Chains   int                  `json:"chains"`
	Heads    []subjects.AuditHead `json:"heads"`
	SHA256   string               `json:"sha256"` // of everything before this line
}

// Summary says what an export holds.
type Summary struct {
	First    uint64               `json:"first"`
	Last     uint64               `json:"last"`
	Messages int                  `json:"messages"`
	Records  int                  `json:"records"`
	Chains   int                  `json:"chains"`
	Heads    []subjects.AuditHead `json:"heads"`  // where each chain ended that no later chain links, the genesis included
	SHA256   string               `json:"sha256"` // of the whole file
}

// Export writes every message of src to w, whether it can be read or not, so that [OpenExport] gives the same source
// back. It does not judge: verify first. The footer finds damage, not forgery; keep Summary.SHA256 elsewhere for that.
func Export(ctx context.Context, src Source, w io.Writer) (Summary, error) {
	sum := Summary{First: src.First, Last: src.Last}
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
		if err := writeLine(out, exportLine{Header: &exportHeader{exportFormat, src.First, src.Last}}); err != nil {
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
					return fmt.Errorf("message %d: subject %q is not text", st.Seq, st.Subject)
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
		sum.Messages, sum.Records, sum.Chains, sum.Heads = footer.Messages, footer.Records, footer.Chains, footer.Heads
		return buffered.Flush()
	}()
	if err != nil {
		return Summary{}, fmt.Errorf("export audit: %w", err)
	}
	sum.SHA256 = hex.EncodeToString(all.Sum(nil))
	return sum, nil
}

// OpenExport reads the header of an export and returns the source that was exported. Messages can be walked once; a
// file that is cut short or altered ends the walk with an error that wraps [ErrExport], at the latest at its footer.
func OpenExport(r io.Reader) (Source, error) {
	e := &exportReader{r: bufio.NewReaderSize(r, 64<<10), body: sha256.New(), counter: newExportCounter()}
	line, err := e.readLine()
	if err != nil {
		return Source{}, fmt.Errorf("open audit export: %w", err)
	}
	h := line.Header
	if h == nil || h.Format != exportFormat {
		return Source{}, fmt.Errorf("open audit export: %w: the first line is not the header of a %s", ErrExport, exportFormat)
	}
	return Source{First: h.First, Last: h.Last, Messages: e.messages}, nil
}

// MergeHeads joins lists of heads, each head once, in order of account and chain. The genesis after a rotation must
// know both where the sealed chains ended and where they are anchored, for the next chains link the anchors.
func MergeHeads(lists ...[]subjects.AuditHead) []subjects.AuditHead {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b subjects.AuditHead) int {
		if c := strings.Compare(a.Account, b.Account); c != 0 {
			return c
		}
		if c := strings.Compare(a.Chain, b.Chain); c != 0 {
			return c
		}
		switch {
		case a.Seq < b.Seq:
			return -1
		case a.Seq > b.Seq:
			return 1
		}
		return strings.Compare(a.Hash, b.Hash)
	})
	return slices.Compact(all)
}

func (l exportLine) encode() ([]byte, error) {
	b, err := json.Marshal(l)
	return append(b, '\n'), err
}

// newExportMessage makes the line for st and counts it.
func newExportMessage(st Stored, counter *exportCounter) *exportMessage {
	m := &exportMessage{Seq: st.Seq, Subject: st.Subject, Data: st.Data}
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

type exportReader struct {
	r        *bufio.Reader
	body     hash.Hash
	counter  *exportCounter
	consumed bool
}

func (e *exportReader) messages(yield func(Stored, error) bool) {
	if e.consumed {
		yield(Stored{}, errors.New("read audit export: it can be read only once"))
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
		if !yield(Stored{Seq: line.Message.Seq, Subject: line.Message.Subject, Data: line.Message.Data}, nil) {
			return
		}
	}
}

// readLine reads one line and accepts it only as [Export] would have written it.
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
			return exportLine{}, fmt.Errorf("%w: it is cut short, its footer is missing", ErrExport)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return exportLine{}, fmt.Errorf("%w: a line has more than %d bytes", ErrExport, maxLine)
		}
		return exportLine{}, err
	}
	var line exportLine
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&line); err != nil {
		return line, fmt.Errorf("%w: a line cannot be read: %w", ErrExport, err)
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
		same.Message = newExportMessage(Stored{Seq: m.Seq, Subject: m.Subject, Data: m.Data}, e.counter)
	}
	b, err := same.encode()
	if err != nil || kinds != 1 || !bytes.Equal(b, raw) {
		return line, fmt.Errorf("%w: a line was altered: what it shows is not what it holds", ErrExport)
	}
	if line.Footer == nil {
		e.body.Write(raw)
	}
	return line, nil
}

// checkFooter compares the footer with what was read and makes sure that nothing follows.
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
		return fmt.Errorf("%w: it was altered, its footer does not fit", ErrExport)
	}
	if _, err := e.r.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows its footer", ErrExport)
	}
	return nil
}

// exportCounter counts messages and keeps the ends of the chains that nobody links.
type exportCounter struct {
	messages, records int
	heads             map[string]subjects.AuditHead // by subject
	linked            map[string]bool
}

func newExportCounter() *exportCounter {
	return &exportCounter{heads: map[string]subjects.AuditHead{}, linked: map[string]bool{}}
}

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

func (t *exportCounter) footer(body hash.Hash) *exportFooter {
	f := &exportFooter{
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
