package strict

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkParseKeys reads objects with few and with the most keys.
func BenchmarkParseKeys(b *testing.B) {
	for _, n := range []int{8, 32, 128, maxKeys} {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf(`"key_%04d":%d`, i, i))
		}
		object := []byte("{" + strings.Join(members, ",") + "}")
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(object); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
