package broker

import (
	"encoding/json"
	"testing"

	"conclave/pkg/model/modeltest/schematest"
)

func TestSchemas(t *testing.T) {
	rank, err := rankFormat([]string{"web_search", "fs_read"}, 4)
	if err != nil {
		t.Fatal(err)
	}
	schematest.Check(t, map[string]json.RawMessage{"findings": findingsFormat, "rank": rank})
}
