package view

import (
	"strings"
	"testing"

	"conclave/subjects"
)

// Two questions of one client can be told apart by what audit tail prints, and it selects one of them with --query.
func TestAuditLineTellsQuestionsOfAClientApart(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, id := range []string{
		"client_phone_b9d6f9_f471b5c2b877b5fe4e3b709b", "client_phone_b9d6f9_92930a61bb164ad943b85124",
		"f471b5c2b877b5fe4e3b709b",
	} {
		var b strings.Builder
		AuditLine(&b, AuditEntry{AuditRecord: subjects.AuditRecord{Query: id}})
		_, rest, _ := strings.Cut(b.String(), "  query ")
		short, _, _ := strings.Cut(rest, " ")
		if short == "" || len(short) == len(id) || !strings.HasPrefix(id, short) || seen[short] {
			t.Errorf("%s is shown as %q", id, short)
		}
		seen[short] = true
	}
}
