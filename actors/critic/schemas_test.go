package critic

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model/modeltest/schematest"
)

func TestSchemas(t *testing.T) {
	schemas := map[string]json.RawMessage{"grade": replySchema(scores), "comparison": replySchema(letters)}
	for _, tool := range Tools() {
		schemas[tool.Schema.Name] = tool.Schema.Parameters
	}
	schematest.Check(t, schemas)
}
