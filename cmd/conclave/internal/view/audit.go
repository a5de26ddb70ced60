package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// AuditEntry is an audit record with its place in the log.
type AuditEntry struct {
	Message string `json:"message"` // name of its message: see [audit.MessageName]
	Account string `json:"account"`
	// Bad is why the message has no records: it cannot be decoded. The time of the entry is that of its storage then.
	Bad string `json:"bad,omitempty"`
	subjects.AuditRecord
}

// DecodeAudit returns the records of a stored message, without verifying them, and one bad entry for a message that
// cannot be decoded. The account comes from the subject and is "" when that has another form.
func DecodeAudit(m audit.Stored) []AuditEntry {
	account := ""
	if t, ok := subjects.Match("audit.*.*", m.Subject); ok {
		account = t[0]
	}
	batch, err := audit.DecodeBatch(m.Data)
	if err != nil {
		bad := fmt.Sprintf("the message of %d bytes cannot be read: %v; run conclave audit verify", len(m.Data), err)
		return []AuditEntry{{m.Name(), account, bad, subjects.AuditRecord{Time: m.Time}}}
	}
	out := make([]AuditEntry, len(batch))
	for i, d := range batch {
		out[i] = AuditEntry{m.Name(), account, "", d.Record}
	}
	return out
}

var statusColours = map[string]string{
	subjects.StatusDenied: term.Red, subjects.StatusRefused: term.Red, subjects.StatusFailed: term.Yellow,
	subjects.StatusUnknown: term.Yellow,
	subjects.StatusOK:      term.Green, subjects.StatusAllowed: term.Green,
}

// AuditLine prints a record on one sanitized line. The writer is the account that the server wrote into the subject;
// everything after it is the writer's statement. Ids and hashes are shortened; an empty field is "-".
func AuditLine(w io.Writer, e AuditEntry) {
	at := e.Time.Local().Format("2006-01-02 15:04:05.000")
	if e.Bad != "" {
		fmt.Fprintf(w, "%s  %-12s  %-8s  %s: %s\n", at, e.Message, term.Plain(cmp.Or(e.Account, "?")),
			term.Paint(w, term.Red, "bad"), term.Plain(e.Bad))
		return
	}
	agent := cmp.Or(e.AgentID, "-")
	if e.AgentType != "" {
		agent += " (" + e.AgentType + ")"
	}
	status := cmp.Or(e.Status, "-")
	if e.Reason != "" {
		status += ": " + e.Reason
	}
	fmt.Fprintf(w, "%s  %-12s  %-8s  %-6s  %-22s  %-30s  %-7s  query %s  params %s\n",
		at, e.Message, term.Plain(cmp.Or(e.Account, "?")),
		term.Plain(e.Phase), term.Plain(agent), term.Plain(strings.TrimSpace(e.Action+" "+e.Tool)),
		term.Paint(w, statusColours[e.Status], term.Plain(status)), term.Plain(cmp.Or(shortQuery(e.Query), "-")),
		term.Plain(cmp.Or(term.ShortID(e.ParamsHash), "-")))
}

// shortQuery is the beginning of the id of a question. All ids of a client begin with its scope, which is kept.
func shortQuery(id string) string {
	scope := ""
	if subjects.ClientOf(id) != "" {
		scope = id[:strings.LastIndex(id, "_")+1]
	}
	return scope + term.ShortID(strings.TrimPrefix(id, scope))
}

// auditFields is the order of the fields of a record.
var auditFields = []string{
	"message", "account", "bad", "chain", "seq", "prev", "time", "phase", "id", "agent_id", "agent_type", "lineage",
	"action", "tool", "params_hash",
	"status", "reason", "session", "query", "links", "genesis",
}

// AuditRecord prints each field of a record that is not empty on a line, with the names of the JSON form and sanitized.
func AuditRecord(w io.Writer, e AuditEntry) {
	b, _ := json.Marshal(e) // an entry can be encoded, and decoded again
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(b, &fields)
	for _, name := range auditFields {
		raw, ok := fields[name]
		if !ok || string(raw) == `""` {
			continue
		}
		text := string(raw)
		var s string
		if json.Unmarshal(raw, &s) == nil {
			text = s
		}
		fmt.Fprintf(w, "%s %s\n", term.Paint(w, term.Dim, fmt.Sprintf("%-12s", name)), term.Plain(text))
	}
}

// SealedExport is a sealed audit log in a file.
type SealedExport struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
	// the log whose first record has its hash; "" = only the file itself was checked
	AnchoredBy string `json:"anchored_by,omitempty"`
}

// AuditReport prints the result of a verification: the problems of a failed one and nothing else, or the counts with
// remarks on unfinished and unanchored records. what names the log; sealed is nil for the current one.
func AuditReport(w io.Writer, r audit.Report, what string, sealed *SealedExport) {
	if !r.OK {
		for _, p := range r.Problems {
			fmt.Fprintf(w, "%s %s\n", term.Paint(w, term.Red, "bad"), term.Plain(p.String()))
		}
		if more := r.Bad - len(r.Problems); more > 0 {
			fmt.Fprintf(w, "    and %d more\n", more)
		}
		return
	}
	line := func(format string, v ...any) { fmt.Fprintf(w, "   "+format+"\n", v...) }
	fmt.Fprintf(w, "%s %s: %d records in %d messages of %d chains\n", term.Paint(w, term.Green, "ok"), what, r.Records,
		r.Messages, r.Chains)
	if r.Unfinished > 0 {
		line("%d actions have no outcome: a crash cut them off", r.Unfinished)
	}
	if r.Pending > 0 {
		line("%d actions are running", r.Pending)
	}
	if r.Unacknowledged > 0 {
		line("%d records after the last acknowledged one: not anchored, and nothing acted on them", r.Unacknowledged)
	}
	for _, d := range r.Damage { // of a log that verifies: no acknowledged record was in it
		line("%s: a write that a crash cut off", term.Plain(d.String()))
	}
	if n := len(r.Predecessors); n > 0 {
		line("%d sealed audit logs before it are unchanged", n)
		if last := r.Predecessors[n-1]; last.Note != "" {
			line("%s: %s", term.Plain(last.File), term.Plain(last.Note))
		}
	}
	if r.Head.Seq > 0 {
		line("head %s", r.Head)
	}
	if sealed != nil {
		line("sha256 %s, anchored by %s", sealed.SHA256, cmp.Or(sealed.AnchoredBy, "nothing outside the file"))
	}
}
