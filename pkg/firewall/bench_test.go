package firewall

import (
	"strings"
	"testing"
)

// page is 10 KB of ordinary text with a bit of everything that sets rules off.
var page = strings.Repeat(`To install the package, run the installer and follow these steps. Please send us a message
if you need help: support@example.com. The assistant reads <b>all</b> files & writes to https://example.com/a?b=c.
- name: value, "key": 'quoted text', 12345, naïve café – Straße, игра, 今日は
`, 40)[:10240]

func BenchmarkScan10KB(b *testing.B) {
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		Scan(page)
	}
}
