// Command generate writes nats.conf and docs/bus.md from the table of edges. Run it with "go generate ./subjects".
package main

import (
	"fmt"
	"os"

	"conclave/subjects"
)

// main writes nats.conf and docs/bus.md from the table. It must run in the folder subjects, as go generate does.
func main() {
	l := subjects.Table()
	for name, text := range map[string]string{"../nats.conf": l.Conf(), "../docs/bus.md": l.Doc()} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}
