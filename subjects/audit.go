package subjects

import "time"

// Phases of an audit record. Every action has two records: before it runs and with its outcome.
const (
	AuditOpen   = "open"   // the first record of a chain; links the chains before it
	AuditBefore = "before" // the intent, before the action
	AuditAfter  = "after"  // the outcome
)

// Statuses of an audit record. A record of phase before states only the decision.
const (
	StatusAllowed = "allowed" // the broker allowed it; written before the action
	StatusDenied  = "denied"  // denied by policy; nothing ran
	StatusRefused = "refused" // the request was malformed; nothing ran
	StatusOK      = "ok"      // it ran and succeeded
	StatusFailed  = "failed"  // it ran and failed
	StatusUnknown = "unknown" // it may have run: no reply arrived

	StatusReplayed = "replayed" // it ran before: the result came from the ledger, and nothing ran now
	// a repetition of a call that is still handled, waiting for an approval or running: nothing ran for it
	StatusPending = "pending"
	StatusShown   = "shown" // a listing was returned; nothing ran
)

// Actions of audit records.
const (
	ActionOpenChain = "audit.open" // the first record of each chain
	ActionGenesis   = "audit.genesis"

	ActionToolCall    = "tool.call"
	ActionToolPreview = "tool.preview" // the tool showed what a call would do, and changed nothing
	ActionToolCapture = "tool.capture" // the tool kept the state of what a call would change
	// a running call asked the user: the answer was sent to its tool, or declined
	ActionToolAnswer       = "tool.answer"
	ActionDiscover         = "broker.discover"
	ActionValidate         = "broker.validate"
	ActionSpawn            = "agent.spawn"
	ActionSessionConfig    = "session.config"
	ActionApprovalDecision = "approval.decision"
	ActionApprovalRevoke   = "approval.revoke"
	// the user accepted the changed definition of a tool, whose hash is the parameter
	ActionToolAccept      = "tool.accept"
	ActionChangeShow      = "change.show" // the user listed changes that can be undone
	ActionChangeUndo      = "change.undo"
	ActionChangePurge     = "change.purge" // what was kept of changes was removed
	ActionScheduleAdd     = "schedule.add" // text, times and grants of the schedule are the parameter
	ActionSchedulePause   = "schedule.pause"
	ActionScheduleResume  = "schedule.resume"
	ActionScheduleRemove  = "schedule.remove"
	ActionSecretUse       = "secret.use"
	ActionSecretGet       = "secret.get"
	ActionMemoryRead      = "memory.read"
	ActionMemoryWrite     = "memory.write"
	ActionMemoryAnnotate  = "memory.annotate"
	ActionMemoryAdmin     = "memory.admin"
	ActionModelChat       = "model.chat"
	ActionModelEmbed      = "model.embed"
	ActionModelPull       = "model.pull"
	ActionTaskChange      = "task.change"
	ActionBackup          = "system.backup"
	ActionPrincipalAdd    = "principal.add"
	ActionPrincipalRevoke = "principal.revoke"
	ActionPrincipalRotate = "principal.rotate"
	ActionPrincipalUpdate = "principal.update"
	// the registry started and applied its stored list, whose hash is the parameter
	ActionPrincipalApply = "principal.apply"
	ActionMachineInvite  = "machine.invite"
	ActionSettingChange  = "setting.change"
)

// AuditActions lists the actions that each account may record, beside [ActionOpenChain]. The account is in the subject,
// where the server writes it; the action is the writer's word. The writer refuses to append any other action, and the
// verifier reports it: a compromised writer can lie about its own acts, and not about those of the broker.
var AuditActions = map[string][]string{
	"broker": {
		ActionToolCall, ActionToolPreview, ActionToolCapture, ActionToolAnswer, ActionDiscover, ActionValidate,
		ActionSpawn,
		ActionSessionConfig, ActionApprovalDecision, ActionApprovalRevoke,
		ActionToolAccept, ActionScheduleAdd, ActionSchedulePause, ActionScheduleResume, ActionScheduleRemove,
		ActionSecretUse, ActionChangeShow, ActionChangeUndo, ActionChangePurge,
	},
	"memory":       {ActionMemoryRead, ActionMemoryWrite, ActionMemoryAnnotate, ActionMemoryAdmin},
	"model":        {ActionModelChat, ActionModelEmbed, ActionModelPull},
	"secrets":      {ActionSecretGet},
	"orchestrator": {ActionTaskChange},
	Registry: {
		ActionPrincipalAdd, ActionPrincipalRevoke, ActionPrincipalRotate, ActionPrincipalUpdate,
		ActionPrincipalApply, ActionMachineInvite, ActionSettingChange,
	},
	"gateway": {ActionBackup}, // the access points of the user, the socket for backups among them
}

// NothingRan reports whether a record of phase before with this status is complete: no outcome record follows.
func NothingRan(status string) bool {
	switch status {
	case StatusDenied, StatusRefused, StatusReplayed, StatusPending, StatusShown:
		return true
	}
	return false
}

// AuditRecord is one record of the audit log. It never holds parameters or results, only a keyed hash of the
// parameters.
type AuditRecord struct {
	Chain string `json:"chain"` // the writer's chain, one per run of the writer
	Seq   uint64 `json:"seq"`   // 1, 2, 3 ... within the chain
	Prev  string `json:"prev"`  // hex SHA-256 of the record before, "" for the first

	Time  time.Time `json:"time"`
	Phase string    `json:"phase"`
	ID    string    `json:"id"` // pairs before and after

	AgentID string `json:"agent_id,omitempty"` // the account that the server wrote, and its spawn chain
	// the manifest's type of that account; "user" and "actor" for accounts without one
	AgentType  string   `json:"agent_type,omitempty"`
	Lineage    []string `json:"lineage,omitempty"` // the account first, then the spawned agents down to the caller
	Action     string   `json:"action"`
	Tool       string   `json:"tool,omitempty"`
	ParamsHash string   `json:"params_hash,omitempty"` // HMAC-SHA256: small inputs could be guessed from a plain hash
	Status     string   `json:"status,omitempty"`
	Reason     string   `json:"reason,omitempty"` // layer and rule of a denial, code of a failure; never content
	Session    string   `json:"session,omitempty"`
	Query      string   `json:"query,omitempty"`
	// Change is the change as which it took effect; what was before a change of files is kept.
	Change string `json:"change,omitempty"`

	Links   []AuditHead   `json:"links,omitempty"`   // on open: where this writer's earlier chains ended
	Genesis *AuditGenesis `json:"genesis,omitempty"` // on the first record of the audit log
}

// AuditHead is the last record of a chain: the anchor that is kept outside the stream.
type AuditHead struct {
	Account string `json:"account"`
	Chain   string `json:"chain"`
	Seq     uint64 `json:"seq"`
	Hash    string `json:"hash"`
}

// AuditLogHead is the head of the whole audit log, in its text form: see the package audit.
type AuditLogHead struct {
	Head string `json:"head"`
}

// AuditGenesis opens an audit log. After a rotation it names the sealed predecessor and holds its heads.
type AuditGenesis struct {
	Sealed   string      `json:"sealed,omitempty"`    // file name of the sealed export
	SHA256   string      `json:"sha256,omitempty"`    // of that file
	LastSeq  uint64      `json:"last_seq,omitempty"`  // messages that the streams of the sealed log report
	OldHeads []AuditHead `json:"old_heads,omitempty"` // where each chain ended
}

// AuditCapacity warns that a writer's part of the audit log is nearly full. When it is full, the writer does nothing
// more.
type AuditCapacity struct {
	Writer string `json:"writer"`
	Bytes  int64  `json:"bytes"` // used
	Max    int64  `json:"max"`
}
