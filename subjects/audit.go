package subjects

import "time"

// Phases of an audit record. Every act is written twice: before it happens and with its outcome.
const (
	AuditOpen   = "open"   // the first record of a chain; links the chains before it
	AuditBefore = "before" // about to act
	AuditAfter  = "after"  // what came of it
)

// Outcomes an audit record may state. A record of phase before says only what was decided.
const (
	StatusAllowed = "allowed" // the broker decided yes; written before the act
	StatusDenied  = "denied"  // a layer refused; nothing ran
	StatusRefused = "refused" // the request itself could not be read; nothing ran
	StatusOK      = "ok"      // it ran and succeeded
	StatusFailed  = "failed"  // it ran and failed
	StatusUnknown = "unknown" // it may have run: no answer came

	StatusReplayed = "replayed" // it ran before: the answer came from the ledger, and nothing ran now
	StatusShown    = "shown"    // somebody was told what there is; nothing ran
)

// NothingRan reports whether a record of phase before with this status says all there is to say: no outcome will come.
func NothingRan(status string) bool {
	switch status {
	case StatusDenied, StatusRefused, StatusReplayed, StatusShown:
		return true
	}
	return false
}

// AuditRecord is one line of the audit. It never holds parameters or results, only a keyed hash of the parameters.
type AuditRecord struct {
	Chain string `json:"chain"` // the writer's chain, one per run of the writer
	Seq   uint64 `json:"seq"`   // 1, 2, 3 ... within the chain
	Prev  string `json:"prev"`  // hex SHA-256 of the record before, "" for the first

	Time  time.Time `json:"time"`
	Phase string    `json:"phase"`
	ID    string    `json:"id"` // pairs before and after

	AgentID    string   `json:"agent_id,omitempty"`   // the account the server wrote, and its path of spawned agents
	AgentType  string   `json:"agent_type,omitempty"` // the manifest's type of that account
	Lineage    []string `json:"lineage,omitempty"`    // root first
	Action     string   `json:"action"`
	Tool       string   `json:"tool,omitempty"`
	ParamsHash string   `json:"params_hash,omitempty"` // HMAC-SHA256: small inputs could be guessed from a plain hash
	Status     string   `json:"status,omitempty"`
	Reason     string   `json:"reason,omitempty"` // layer and rule of a refusal, code of a failure; never content
	Session    string   `json:"session,omitempty"`
	Query      string   `json:"query,omitempty"`

	Links   []AuditHead   `json:"links,omitempty"`   // on open: where this writer's earlier chains ended
	Genesis *AuditGenesis `json:"genesis,omitempty"` // on the first record of the whole trail
}

// AuditHead says where a chain ended: the anchor kept outside the stream.
type AuditHead struct {
	Account string `json:"account"`
	Chain   string `json:"chain"`
	Seq     uint64 `json:"seq"`
	Hash    string `json:"hash"`
}

// AuditGenesis opens an audit log. After a rotation it names the sealed predecessor and holds its heads.
type AuditGenesis struct {
	Sealed   string      `json:"sealed,omitempty"`    // file name of the sealed export
	SHA256   string      `json:"sha256,omitempty"`    // of that file
	LastSeq  uint64      `json:"last_seq,omitempty"`  // last stream sequence it holds
	OldHeads []AuditHead `json:"old_heads,omitempty"` // where each chain ended
}
