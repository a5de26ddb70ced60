package vector

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

// resident is how much memory this process really has.
func resident(t *testing.T) (kilobytes int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut(b, []byte("RssAnon:"))
	if _, err := fmt.Fscan(bytes.NewReader(after), &kilobytes); err != nil {
		t.Fatal(err)
	}
	return kilobytes
}

func TestCloseReleasesMemory(t *testing.T) {
	const n, dims = 40_000, 512
	x := open(t, dims)
	v := random(rand.New(rand.NewPCG(1, 1)), 1000, dims)
	for first := 0; first < n; first += 1000 {
		add(t, x, numbered(first, 1000), v)
	}
	full, used := resident(t), x.Bytes()
	if used < n*2*dims || used > n*(2*dims+100) {
		t.Errorf("%d bytes for %d vectors", used, n)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if back := (full - resident(t)) << 10; back < used*3/4 {
		t.Errorf("%d of %d bytes came back", back, used)
	}
}
