package model

import (
	"context"
	"fmt"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onPull downloads a model and streams the progress. It denies every account but the user's (so do the grants of the
// server), a server that is not configured and is no machine, and one on another machine without permission; it rejects
// an invalid name.
func (m *Model) onPull(ctx context.Context, in actor.Msg[subjects.PullRequest], send func(subjects.PullProgress) error,
	out actor.Out,
) error {
	rec := m.newRecord(subjects.ActionModelPull, in.From, in.Session, in.Query, in.Body.Model, []byte(in.Body.Model))
	if !slices.Contains(subjects.UserAccounts, in.From) {
		return m.refuse(ctx, out, rec, subjects.Faultf(subjects.CodeDenied, "only the user fetches models: conclave "+
			"model pull"))
	}
	if err := checkName(in.Body.Model); err != nil {
		rec.Tool = ""
		return m.refuse(ctx, out, rec, subjects.Faultf(subjects.CodeMalformed, "%v", err))
	}
	serverName, backendName := m.cfg.SplitName(in.Body.Model)
	s := m.servers[serverName]
	var err error
	if c, rest, ok := m.splitMachine(in.Body.Model); ok {
		s, backendName = c.server, rest
		err = m.checkRemote(in.Body.Model, backendName, "")
	} else if s == nil {
		err = fmt.Errorf("%w: there is no %s to fetch models", model.ErrUnsupported, serverName)
	} else {
		err = m.checkRemote(in.Body.Model, backendName, s.remoteHost)
	}
	if err != nil {
		return m.refuse(ctx, out, rec, err)
	}
	_, err = actor.Audited(ctx, out, m.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.Empty, error) {
		err := p.Check()
		if err == nil {
			err = s.pull(ctx, backendName, send)
		}
		s.dropCache()
		return subjects.Empty{}, reportOutcome(ctx, p, true, err)
	})
	return err
}

// pull downloads a model and sends the progress; nil = the download is complete. It ends with the first error of the
// backend or of send, or with the cause of ctx.
func (s *server) pull(ctx context.Context, backendName string, send func(subjects.PullProgress) error) error {
	for p, err := range s.backend.Pull(ctx, backendName) {
		if err != nil {
			return err
		}
		err := send(subjects.PullProgress{
			Status: text.Clip(p.Status, 500), Digest: text.Clip(p.Digest, 200),
			Total: p.Total, Completed: p.Completed,
		})
		if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
