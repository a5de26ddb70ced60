package logfile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Record is one line of a log.
type Record struct {
	Time  time.Time
	Level slog.Level
	Text  string
	Actor string
	Query string
	Line  []byte // the whole JSON object
}

// maxLine bounds a line; a longer one is skipped.
const maxLine = 1 << 20

// parse reads a line, and reports false for what is no record, such as a line that a crash cut.
func parse(line []byte) (Record, bool) {
	var in struct {
		Time  time.Time  `json:"time"`
		Level slog.Level `json:"level"`
		Msg   string     `json:"msg"`
		Actor string     `json:"actor"`
		Query string     `json:"query"`
	}
	if json.Unmarshal(line, &in) != nil || in.Time.IsZero() {
		return Record{}, false
	}
	return Record{in.Time, in.Level, in.Msg, in.Actor, in.Query, bytes.Clone(line)}, true
}

// Read returns the records of all log files of dir, by time. A missing folder has none.
func Read(dir string) ([]Record, error) {
	t := tail{dir: dir}
	defer t.close()
	return t.start()
}

// Follow calls show with the records of all log files of dir, by time, then with new ones as they are written, until
// ctx ends or show fails. The first batch has all records so far and may be empty. It reads every interval.
func Follow(ctx context.Context, dir string, interval time.Duration, show func(batch []Record) error) error {
	t := tail{dir: dir}
	defer t.close()
	batch, err := t.start()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err != nil {
			return err
		}
		if err := show(batch); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		batch, err = t.poll()
	}
}

// tail reads the current log files of a folder as they grow, and through rotations.
type tail struct {
	dir  string
	open map[string]*follower // by path
}

// follower is a current log file.
type follower struct {
	file *os.File
	rest []byte // a line whose end is not written yet
}

// start reads all files: predecessors and current ones.
func (t *tail) start() ([]Record, error) {
	t.open = map[string]*follower{}
	current, err := t.poll() // opens the current files first: a rotation after it repeats nothing, see below
	if err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(t.dir, "*"+oldSuffix))
	if err != nil {
		return nil, err
	}
	var all []Record
	for _, path := range old {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !t.follows(f) { // it was rotated meanwhile
			var fl follower
			fl.file = f
			var records []Record
			if records, err = fl.read(); err == nil {
				all = append(all, records...)
			}
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	all = append(all, current...)
	sortRecords(all)
	return all, nil
}

// follows reports whether f is one of the open files.
func (t *tail) follows(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	for _, o := range t.open {
		if other, err := o.file.Stat(); err == nil && os.SameFile(info, other) {
			return true
		}
	}
	return false
}

// poll reads what was written since the last call.
func (t *tail) poll() (all []Record, err error) {
	paths, err := filepath.Glob(filepath.Join(t.dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	for path := range t.open { // it may just be rotated
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		if strings.HasSuffix(path, oldSuffix) {
			continue
		}
		records, err := t.pollFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	sortRecords(all)
	return all, nil
}

// pollFile reads the new lines of one file: to the end of the open one, then the one that replaced it.
func (t *tail) pollFile(path string) (all []Record, err error) {
	for {
		f := t.open[path]
		if f == nil {
			file, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				return all, nil
			}
			if err != nil {
				return nil, err
			}
			f = &follower{file: file}
			t.open[path] = f
		}
		now, statErr := os.Stat(path) // before it is read: lines after a replacement are in the new file
		records, err := f.read()
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
		own, err := f.file.Stat()
		if err != nil {
			return nil, err
		}
		if statErr != nil || os.SameFile(now, own) {
			return all, nil
		}
		f.file.Close()
		delete(t.open, path)
	}
}

func (t *tail) close() {
	for _, f := range t.open {
		f.file.Close()
	}
}

// read returns the complete lines that were not read yet.
func (f *follower) read() (all []Record, err error) {
	r := bufio.NewReaderSize(f.file, 64<<10)
	for {
		part, err := r.ReadSlice('\n')
		if len(f.rest) <= maxLine {
			f.rest = append(f.rest, part...)
		}
		switch {
		case err == nil:
			if rec, ok := parse(bytes.TrimSpace(f.rest)); ok {
				all = append(all, rec)
			}
			f.rest = f.rest[:0]
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return all, nil
		default:
			return all, err
		}
	}
}

func sortRecords(all []Record) {
	slices.SortStableFunc(all, func(a, b Record) int { return a.Time.Compare(b.Time) })
}
