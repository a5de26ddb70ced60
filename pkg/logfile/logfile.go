// Package logfile keeps the log of a process in a bounded file of JSON lines, and reads the logs of all processes that
// share a folder, while they write.
package logfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// File is the log file of one process. It is safe for concurrent use.
type File struct {
	dir, name string
	max       int64
	failed    func(error)

	mu     sync.Mutex
	closed bool
	lock   *os.File // nil before the first line
	path   string   // of the current file
	file   *os.File
	size   int64
}

// suffix ends the name of a log file, oldSuffix that of its predecessor.
const (
	suffix    = ".jsonl"
	oldSuffix = ".1" + suffix
)

// maxProcesses bounds the processes that log under one name.
const maxProcesses = 16

// New returns the log file name of dir, which is made with its first line: mode 0600, or appended to. Another process
// with the same name has a file of its own, with a number. A file that would grow beyond max bytes replaces its
// predecessor, and a new one begins. failed is called with the first error of a write; nil = nobody is told.
func New(dir, name string, max int64, failed func(error)) *File {
	return &File{dir: dir, name: name, max: max, failed: failed}
}

// claim makes the folder, and locks a name that no other process uses. The caller holds mu.
func (f *File) claim() error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("creating the log folder: %w", err)
	}
	for i := 1; i <= maxProcesses; i++ {
		own := f.name
		if i > 1 {
			own += "-" + strconv.Itoa(i)
		}
		lock, err := os.OpenFile(filepath.Join(f.dir, own+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("opening the log: %w", err)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			lock.Close()
			continue
		}
		f.path, f.lock = filepath.Join(f.dir, own+suffix), lock
		return nil
	}
	return fmt.Errorf("opening the log: %d processes log as %s already", maxProcesses, f.name)
}

// open opens the current file, and ends a line that a crash cut. The caller holds mu.
func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	size, err := endLine(file)
	if err != nil {
		file.Close()
		return fmt.Errorf("opening the log: %w", err)
	}
	f.file, f.size = file, size
	return nil
}

// endLine appends a newline when the last byte is not one, and returns the size of the file.
func endLine(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return info.Size(), err
	}
	n, err := file.Write([]byte{'\n'})
	return info.Size() + int64(n), err
}

// Write appends one line. It fails when the file cannot be written; the next call tries again.
func (f *File) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.append(line)
	if err != nil && f.failed != nil {
		f.failed(err)
		f.failed = nil
	}
	return n, err
}

// append writes a line. The caller holds mu.
func (f *File) append(line []byte) (int, error) {
	if f.closed {
		return 0, os.ErrClosed
	}
	if f.lock == nil {
		if err := f.claim(); err != nil {
			return 0, err
		}
	}
	if f.file != nil && f.size > 0 && f.size+int64(len(line)) > f.max {
		err := errors.Join(f.file.Close(), os.Rename(f.path, f.path[:len(f.path)-len(suffix)]+oldSuffix))
		f.file = nil
		if err != nil {
			return 0, fmt.Errorf("rotating the log: %w", err)
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	return n, err
}

// Close closes the file. Later writes fail.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var err error
	for _, x := range []*os.File{f.file, f.lock} {
		if x != nil {
			err = errors.Join(err, x.Close())
		}
	}
	f.file, f.lock = nil, nil
	return err
}
