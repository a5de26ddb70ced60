package document

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"conclave/pkg/text"
)

// pdfTime is the default timeout of pdftotext.
const pdfTime = time.Minute

// fromPDF sets the text with pdftotext. No shell is involved, the path is absolute so that it is never taken for an
// option, and the program gets none of the environment but PATH. It fails with [ErrNoPDFReader] when the program is
// missing, [ErrTooLarge] for more than o.MaxBytes of text, and [ErrPDF] after o.PDFTime (0 = pdfTime) or when
// the program fails.
func (d *Doc) fromPDF(ctx context.Context, path string, o Options) error {
	program, err := exec.LookPath(cmp.Or(o.PDFToText, "pdftotext"))
	if err != nil {
		return ErrNoPDFReader
	}
	if path, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("resolving the path: %w", err)
	}
	most := cmp.Or(o.PDFTime, pdfTime)
	timed, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	out := &bounded{most: int(o.MaxBytes), full: cancel}
	talk := &bounded{most: 4 << 10, full: func() {}}
	cmd := exec.CommandContext(timed, program, "-enc", "UTF-8", "-eol", "unix", path, "-")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	cmd.Dir = string(filepath.Separator)
	cmd.Stdout, cmd.Stderr = out, talk
	cmd.WaitDelay = time.Second // whoever holds its output open is not waited for
	err = cmd.Run()
	switch {
	case out.over:
		return fmt.Errorf("%w: more than %d bytes of text; split it", ErrTooLarge, o.MaxBytes)
	case ctx.Err() != nil:
		return ctx.Err()
	case timed.Err() != nil:
		return fmt.Errorf("%w: pdftotext timeout after %s", ErrPDF, most)
	case err != nil:
		return pdfError(err, talk.String())
	}
	// It writes UTF-8, and damaged files make it write other things too.
	d.Text = normalizeLines(strings.ToValidUTF8(out.String(), "\uFFFD"))
	return nil
}

// pdfError explains why pdftotext failed: err is that of the process, said its error output. The result is [ErrPDF].
func pdfError(err error, said string) error {
	said = text.OneLine(said, 160)
	var exit *exec.ExitError
	switch {
	case strings.Contains(strings.ToLower(said), "password"):
		return fmt.Errorf("%w: it needs a password; save it without one", ErrPDF)
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		return fmt.Errorf("%w: it does not permit text extraction", ErrPDF)
	case said != "":
		return fmt.Errorf("%w: pdftotext: %s", ErrPDF, said)
	}
	return fmt.Errorf("%w: pdftotext failed: %w", ErrPDF, err)
}

// bounded is a buffer with a limit. It calls full once and drops the rest.
type bounded struct {
	buf  bytes.Buffer // not embedded: its ReadFrom would know no bound
	most int
	over bool
	full func()
}

func (b *bounded) String() string { return b.buf.String() }

// Write implements [io.Writer]. It keeps the first most bytes, drops the rest without an error, and calls full once
// when there is a rest.
func (b *bounded) Write(p []byte) (int, error) {
	if room := b.most - b.buf.Len(); !b.over && len(p) > room {
		b.over = true
		b.full()
		b.buf.Write(p[:room])
	}
	if !b.over {
		b.buf.Write(p)
	}
	return len(p), nil
}
