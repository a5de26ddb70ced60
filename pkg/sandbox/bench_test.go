//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkLaunch compares a run in the sandbox with a plain exec of the same program, alternately in one process.
func BenchmarkLaunch(b *testing.B) {
	requireSandbox(b)
	dir := newWorkFolder(b)
	var plain, inside []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		plain = append(plain, time.Since(began))
		began = time.Now()
		if r, err := Run(b.Context(), Spec{Args: []string{"/bin/true"}, Dir: dir, Limits: DefaultLimits}); err != nil ||
			r.ExitCode != 0 {
			b.Fatal(r.ExitCode, err)
		}
		inside = append(inside, time.Since(began))
	}
	slices.Sort(plain)
	slices.Sort(inside)
	median := func(d []time.Duration) float64 { return float64(d[len(d)/2].Microseconds()) / 1000 }
	b.ReportMetric(median(plain), "plain-ms")
	b.ReportMetric(median(inside), "sandbox-ms")
	b.ReportMetric(median(inside)-median(plain), "overhead-ms")
}
