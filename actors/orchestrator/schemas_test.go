package orchestrator

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model/modeltest/schematest"
)

func TestSchemas(t *testing.T) {
	schematest.Check(t, map[string]json.RawMessage{"plan": planSchema, "return": returnSchema})
}
