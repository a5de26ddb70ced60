package gateway

import (
	"context"
	"net/http"
	"time"

	"conclave/pkg/audit"
	"conclave/subjects"
)

// auditHeadSubject is where the auditor's key publishes the head of the audit log. No service reads the log itself.
const auditHeadSubject = "from.auditor.auditlog.head"

// AuditStatus is the state of the audit log as the head that the auditor published last. It has no record and nothing
// of one.
type AuditStatus struct {
	Messages uint64    `json:"messages,omitempty" jsonschema:"messages up to the head, each of one or more records"`
	Head     string    `json:"head" jsonschema:"the head that conclave audit verify --head checks"`
	Kept     time.Time `json:"kept,omitzero" jsonschema:"when the head was computed and published"`
	Note     string    `json:"note,omitempty" jsonschema:"why there is no head"`
}

// noAuditHead is the note before the first head.
const noAuditHead = "no head of the audit log was published yet; conclave up publishes the first within twenty " +
	"minutes of the first start; conclave audit verify prints it at once"

// auditCacheTime is the lifetime of a cached head: the search for it may take many requests.
const auditCacheTime = 30 * time.Second

// onAuditStatus returns the state of the audit log: to the user, and to clients with the permission audit_status.
func (g *Gateway) onAuditStatus(ctx context.Context, _ *http.Request) (any, error) {
	return g.auditStatus(ctx)
}

// auditStatus returns the head of the audit log that was published last; only a note before the first.
func (g *Gateway) auditStatus(ctx context.Context) (AuditStatus, error) {
	return g.auditHead.get(g.out.Now, func() (AuditStatus, time.Duration, error) {
		status, err := g.readAuditHead(ctx)
		switch {
		case ctx.Err() != nil:
			return status, 0, err
		case status.Head == "":
			return status, time.Second, err // the first may come at any moment
		}
		return status, auditCacheTime, err
	})
}

// readAuditHead returns the status by the head that was published last. Events that are no head are skipped; without
// any the status has a note.
func (g *Gateway) readAuditHead(ctx context.Context) (s AuditStatus, err error) {
	for e, err := range g.client.EventsBack(ctx, auditHeadSubject) {
		if err != nil {
			return s, err
		}
		var body subjects.AuditLogHead
		if !e.Decode(&body) {
			continue
		}
		h, err := audit.ParseLogHead(body.Head)
		if err != nil {
			continue
		}
		s = AuditStatus{Messages: h.Seq, Head: body.Head, Kept: e.Time}
		for _, seq := range h.Others {
			s.Messages += seq
		}
		return s, nil
	}
	return AuditStatus{Note: noAuditHead}, nil
}
