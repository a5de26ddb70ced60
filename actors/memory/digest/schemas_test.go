package digest

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model/modeltest/schematest"
)

func TestSchemas(t *testing.T) {
	schematest.Check(t, map[string]json.RawMessage{
		"digest": digestSchema, "segments": segmentsSchema, "rank": rankSchema,
	})
}
