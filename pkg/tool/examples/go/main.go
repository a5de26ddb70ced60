// A tool for Conclave. Change the definition and countWords, then run: go mod tidy && go run .
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"conclave/pkg/tool/conclavetool"
)

// definition is what the model reads. After a change the tool waits for you: conclave tool accept word_count
var definition = conclavetool.Definition{
	Name:        "word_count",
	Description: "Counts the words and characters of a text.",
	Parameters: json.RawMessage(
		`{
		"type": "object",
		"properties": {"text": {"type": "string", "description": "the text"}},
		"required": ["text"],
		"additionalProperties": false
	}`),
	Version: "1",
}

// countWords runs one call. Its result, and the text of its error, are for the model.
func countWords(_ context.Context, args json.RawMessage) (string, error) {
	var in struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d words, %d characters", len(strings.Fields(in.Text)), len([]rune(in.Text))), nil
}

func main() {
	cfg, err := conclavetool.ReadConfig("conclave.json")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Printf("serving %s at %s; Ctrl-C ends it", definition.Name, cfg.Server)
	if err := conclavetool.Serve(ctx, cfg, definition, countWords); err != nil {
		stop()
		log.Fatal(err)
	}
}
