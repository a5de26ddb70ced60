package tools

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model/modeltest/schematest"
)

func TestSchemas(t *testing.T) {
	schemas := map[string]json.RawMessage{}
	for _, tool := range Known(Config{}) {
		schemas[tool.Schema().Name] = tool.Schema().Parameters
	}
	schematest.Check(t, schemas)
}
