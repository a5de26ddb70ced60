package backup

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"conclave/pkg/file"
)

// writeArchive packs a complete folder into the new file dest, of mode 0600. It appears complete or not at all.
func writeArchive(ctx context.Context, dest, staging string, m Manifest) error {
	tmp, err := os.CreateTemp(filepath.Dir(dest), ".conclave-backup-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(packFiles(ctx, tmp, isCompressed(dest), staging, m), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	err = os.Link(tmp.Name(), dest) // unlike a rename, a link never replaces a file
	if errors.Is(err, syscall.EPERM) || errors.Is(err, errors.ErrUnsupported) {
		err = os.Rename(tmp.Name(), dest)
	}
	if err != nil {
		return err
	}
	return file.Sync(filepath.Dir(dest))
}

// packFiles writes the manifest and its files as an archive.
func packFiles(ctx context.Context, w io.Writer, compressed bool, staging string, m Manifest) error {
	var zipped *gzip.Writer
	if compressed {
		zipped = gzip.NewWriter(w)
		w = zipped
	}
	archive := tar.NewWriter(w)
	pack := func(name string, mode fs.FileMode) error {
		f, err := os.Open(filepath.Join(staging, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{
			Name: name, Mode: int64(mode.Perm()), Size: info.Size(),
			ModTime: m.Created, Typeflag: tar.TypeReg,
		}); err != nil {
			return err
		}
		_, err = io.Copy(archive, f)
		return err
	}
	if err := pack(manifestFile, 0o600); err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := errors.Join(ctx.Err(), pack(f.Path, f.Mode)); err != nil {
			return err
		}
	}
	err := archive.Close()
	if zipped != nil {
		err = errors.Join(err, zipped.Close())
	}
	return err
}

// source is a backup that is being read.
type source struct {
	manifest Manifest
	// each calls f with the content of every file of the manifest, once.
	each  func(f func(File, io.Reader) error) error
	close func() error
}

// maxManifest bounds the size of a manifest, in bytes.
const maxManifest = 64 << 20

// open opens a backup, a folder or an archive, and reads its manifest.
func open(from string) (*source, error) {
	info, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return openFolder(from)
	}
	return openArchive(from)
}

// parseManifest decodes and checks a manifest.
func parseManifest(r io.Reader) (m Manifest, err error) {
	d := json.NewDecoder(io.LimitReader(r, maxManifest))
	if err := d.Decode(&m); err != nil {
		return m, fmt.Errorf("%w: its %s cannot be read: %w", ErrUnreadable, manifestFile, err)
	}
	return m, m.check()
}

func openFolder(from string) (*source, error) {
	root, err := os.OpenRoot(from)
	if err != nil {
		return nil, err
	}
	m, err := file.OpenIn(root, manifestFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s has no %s", ErrUnreadable, from, manifestFile)
	}
	s := &source{close: root.Close}
	if err == nil {
		s.manifest, err = parseManifest(m)
		m.Close()
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	s.each = func(f func(File, io.Reader) error) error {
		for _, each := range s.manifest.Files {
			r, err := file.OpenIn(root, filepath.FromSlash(each.Path))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: %s is missing", ErrUnreadable, each.Path)
			}
			if err == nil {
				err = errors.Join(f(each, r), r.Close())
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return s, nil
}

func openArchive(from string) (*source, error) {
	f, err := file.Open(from)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*source, error) { return nil, errors.Join(err, f.Close()) }
	buffered := bufio.NewReaderSize(f, 1<<20)
	var r io.Reader = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		if r, err = gzip.NewReader(buffered); err != nil {
			return fail(fmt.Errorf("%w: %w", ErrUnreadable, err))
		}
	}
	archive := tar.NewReader(r)
	h, err := archive.Next()
	if err != nil || h.Name != manifestFile {
		return fail(fmt.Errorf("%w: %s is not an archive that conclave backup wrote", ErrUnreadable, from))
	}
	s := &source{close: f.Close}
	if s.manifest, err = parseManifest(archive); err != nil {
		return fail(err)
	}
	s.each = func(f func(File, io.Reader) error) error {
		for _, each := range s.manifest.Files { // they are in the order of the manifest
			h, err := archive.Next()
			if err != nil || h.Name != each.Path || h.Typeflag != tar.TypeReg {
				return fmt.Errorf("%w: %s is missing", ErrUnreadable, each.Path)
			}
			if err := f(each, archive); err != nil {
				return err
			}
		}
		return nil
	}
	return s, nil
}
