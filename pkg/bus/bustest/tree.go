package bustest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// HashTree returns a hash of the names, modes, times and contents of all files below dir. Two equal ones mean that
// nothing was written in between.
func HashTree(t testing.TB, dir string) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintln(sum, path, info.Mode(), info.Size(), info.ModTime())
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum.Write(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
