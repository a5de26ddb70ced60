package vector
import "testing"
func BenchmarkZZ(b *testing.B) {
	x, d := benchIndex(b, 100000, Options{Dims: benchDims})
	for b.Loop() { b.ReportMetric(d.recall(b, x, 64), "recall") }
}
