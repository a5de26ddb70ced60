package loop

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model"
	"conclave/pkg/model/modeltest/schematest"
)

func TestSchemas(t *testing.T) {
	parameters := json.RawMessage(`{"type":"object","properties":{"path":{"type":"string","maxLength":70000},` +
		`"mode":{"enum":["a","b"]},"more":{"description":"anything"}},"required":["path","more"]}`)
	schematest.Check(t, map[string]json.RawMessage{
		"decision":  choiceSchema("choice", choiceNames([]model.Tool{{Name: "web_search"}, {Name: "fs_read"}})),
		"address":   choiceSchema("url", []string{"https://example.org/"}),
		"arguments": shapeOf(parameters),
	})
}
