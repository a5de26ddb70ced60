// Command generate writes nats.conf and docs/bus.md from the table of edges. Run it with "go generate ./subjects".
package main

import (
	"fmt"
	"os"

	"conclave/subjects"
)

func main() {
	l := subjects.Table()
	for name, text := range map[string]string{"../nats.conf": l.Conf(), "../docs/bus.md": l.Doc()} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}
