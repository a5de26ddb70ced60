package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// What the user set for a session stands in the bucket session_config, under the session. Only the user's accounts
// reach the subject on which it is set: no agent can loosen its own rules.

// setting is what the user set.
type setting struct {
	Level   string   `json:"level,omitempty"`
	Disable []string `json:"disable,omitempty"`
	Grant   []string `json:"grant,omitempty"`
}

// sessionSetting holds for a session. Once holds for one message of it, besides.
type sessionSetting struct {
	All  setting      `json:"all"` // of its messages
	Once *onceSetting `json:"once,omitempty"`
}

// onceSetting holds for one message. It stays with that message: another one never matches.
type onceSetting struct {
	Set   setting `json:"set"`
	Query string  `json:"query,omitempty"` // the message; nothing = the next one, not known yet
	After uint64  `json:"after,omitempty"` // the session's last message when it was set: the next one comes after it
}

// most names that one list of a setting may hold.
const maxNames = 64

// onSessionConfig sets what holds for a session, or tells it. What is set takes the place of all that was set for the
// session before; what is set once goes on top of it.
func (b *Broker) onSessionConfig(ctx context.Context, in actor.Msg[subjects.SessionConfig], out actor.Out) (subjects.SessionConfig, error) {
	q := in.Body
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: "session.config"}
	if fault := b.checkSetting(in.From, q); fault != nil {
		if subjects.CheckToken(q.SessionID) == nil {
			rec.Session = q.SessionID
		}
		if err := b.gate.Record(ctx, out, rec, subjects.StatusRefused, fault.Code); err != nil {
			return subjects.SessionConfig{}, err
		}
		return subjects.SessionConfig{}, fault
	}
	if q.Show {
		s, _, err := readSetting(ctx, out, q.SessionID)
		if err != nil {
			return subjects.SessionConfig{}, settingsFault(out, err)
		}
		return s.describe(q.SessionID, q.QueryID), nil
	}
	asked, err := json.Marshal(q)
	if err != nil {
		return subjects.SessionConfig{}, fmt.Errorf("encoding what is to be set: %w", err)
	}
	rec.Session, rec.Query, rec.ParamsHash = q.SessionID, q.QueryID, b.hash.Hash(asked)
	rec.Reason = summarizeConfig(q)
	set, err := actor.Audited(ctx, out, b.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.SessionConfig, error) {
		s, err := b.storeSetting(ctx, out, p, q)
		if err != nil {
			return subjects.SessionConfig{}, settingsFault(out, err)
		}
		return s.describe(q.SessionID, q.QueryID), nil
	})
	if errors.Is(err, actor.ErrUnrecorded) {
		return subjects.SessionConfig{}, subjects.Faultf(subjects.CodeUnrecorded, "the audit did not take the outcome, so look what holds for the session")
	}
	return set, err
}

// settingsFault is what the user is told when the bucket cannot be used.
func settingsFault(out actor.Out, err error) error {
	out.LogError(fmt.Errorf("the settings of a session: %w", err))
	return subjects.Faultf(subjects.CodeUnavailable, "the settings of the session cannot be read or written; nothing was changed, see conclave doctor")
}

// checkSetting reports what is wrong with a request. It is strict: a setting that is half understood is none.
func (b *Broker) checkSetting(from string, q subjects.SessionConfig) *subjects.Fault {
	bad := func(format string, a ...any) *subjects.Fault {
		return subjects.Faultf(subjects.CodeMalformed, format, a...)
	}
	if !slices.Contains(subjects.UserAccounts, from) {
		return subjects.Faultf(subjects.CodeDenied, "only the user sets what holds for a session")
	}
	if subjects.CheckToken(q.SessionID) != nil {
		return bad("session_id must name a session: letters, digits, - and _")
	}
	if q.QueryID != "" && subjects.CheckToken(q.QueryID) != nil {
		return bad("query_id may hold letters, digits, - and _ only")
	}
	nothing := q.Override == "" && len(q.Disable)+len(q.Grant) == 0
	if q.Show {
		if !nothing || q.Once {
			return bad("show changes nothing; leave the rest out")
		}
		return nil
	}
	switch {
	case nothing:
		return bad("nothing to set; give override, disable or grant, or show to see what holds")
	case q.QueryID != "" && !q.Once:
		return bad("query_id says which message a setting is for; set once too")
	case q.Once && q.Override == subjects.OverrideNone && len(q.Disable)+len(q.Grant) == 0:
		return bad("for one message there is nothing to take back; leave once out to remove what holds for the session")
	case q.Override != "" && !slices.Contains(policy.Levels, q.Override):
		return bad("there is no override %q; choose from %s", text.OneLine(q.Override, 40), strings.Join(policy.Levels, ", "))
	case len(q.Disable) > maxNames || len(q.Grant) > maxNames:
		return bad("at most %d tools may be disabled, and as many grants given", maxNames)
	}
	for _, tool := range q.Disable {
		if subjects.CheckToken(tool) != nil {
			return bad("%q is not the name of a tool; name each one to disable", text.OneLine(tool, 60))
		}
	}
	m := b.rules.Load().Manifest
	for _, g := range q.Grant {
		if err := m.CheckGrant(g); err != nil {
			return bad("%v", err)
		}
	}
	return nil
}

// storeSetting writes what was asked for, and returns all that holds then.
func (b *Broker) storeSetting(ctx context.Context, out actor.Out, p *actor.Permit, q subjects.SessionConfig) (sessionSetting, error) {
	if err := p.Check(); err != nil {
		return sessionSetting{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	mine := setting{Level: q.Override, Disable: sortUnique(q.Disable), Grant: sortUnique(q.Grant)}
	once := &onceSetting{Set: mine, Query: q.QueryID}
	if q.Once && q.QueryID == "" {
		_, last, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": "turn.*." + q.SessionID})
		if err != nil {
			return sessionSetting{}, err
		}
		if found {
			once.After = last
		}
	}
	for range maxWriteAttempts {
		s, rev, err := readSetting(ctx, out, q.SessionID)
		if err != nil {
			return s, err
		}
		if q.Once {
			s.Once = once
		} else {
			s = sessionSetting{All: mine}
		}
		if err = writeSetting(ctx, out, q.SessionID, s, rev); !errors.Is(err, actor.ErrChanged) {
			return s, err
		}
	}
	return sessionSetting{}, errWriteConflict
}

// claimOverride is what the user set, as it holds for a message of a session. A setting for the next message is tied to that
// message here, before anything is decided by it. An error means that nobody knows what holds: the call is refused.
func (b *Broker) claimOverride(ctx context.Context, out actor.Out, session, query string) (policy.Override, error) {
	if session == "" {
		return policy.Override{}, nil // nobody can have set anything
	}
	for range maxWriteAttempts {
		s, rev, err := readSetting(ctx, out, session)
		if err != nil {
			return policy.Override{}, err
		}
		if s.Once == nil || s.Once.Query != "" || query == "" {
			return s.overrideFor(query), nil
		}
		next, err := nextMessage(ctx, out, session, query, s.Once.After)
		if err != nil {
			return policy.Override{}, err
		}
		if next == "" {
			return s.overrideFor(query), nil
		}
		s.Once.Query = next
		if err = writeSetting(ctx, out, session, s, rev); err == nil {
			return s.overrideFor(query), nil
		}
		if !errors.Is(err, actor.ErrChanged) {
			return policy.Override{}, err
		}
	}
	return policy.Override{}, errWriteConflict
}

// peekOverride is [Broker.claimOverride] for a call that is not made: a setting for the next message stays free.
func (b *Broker) peekOverride(ctx context.Context, out actor.Out, session, query string) (policy.Override, error) {
	if session == "" {
		return policy.Override{}, nil
	}
	s, _, err := readSetting(ctx, out, session)
	if err == nil && s.Once != nil && s.Once.Query == "" && query != "" {
		s.Once.Query, err = nextMessage(ctx, out, session, query, s.Once.After)
	}
	if err != nil {
		return policy.Override{}, err
	}
	return s.overrideFor(query), nil
}

// nextMessage is the message that came first after one of a session, as the router stored it; "" when none came yet. In a
// session whose messages do not go through the router it is the one at hand.
func nextMessage(ctx context.Context, out actor.Out, session, query string, after uint64) (string, error) {
	q, _, found, err := readTurn(ctx, out, map[string]any{"seq": after + 1, "next_by_subj": "turn.*." + session})
	switch {
	case err != nil:
		return "", err
	case found:
		return q.QueryID, nil
	case after > 0:
		return "", nil
	}
	return query, nil
}

// overrideFor is what holds for a message. What is disabled for the session stays so for every message of it.
func (s sessionSetting) overrideFor(query string) policy.Override {
	o := policy.Override{Level: s.All.Level, Disable: slices.Clone(s.All.Disable), Grant: slices.Clone(s.All.Grant)}
	if s.Once != nil && query != "" && s.Once.Query == query {
		o = s.Once.mergeInto(o)
	}
	return o
}

// mergeInto is a setting for one message on top of the session's.
func (s onceSetting) mergeInto(o policy.Override) policy.Override {
	if s.Set.Level != "" {
		o.Level = s.Set.Level
	}
	o.Disable, o.Grant = sortUnique(append(o.Disable, s.Set.Disable...)), sortUnique(append(o.Grant, s.Set.Grant...))
	return o
}

// describe is what holds for a message, for the user; for the next one when none is named.
func (s sessionSetting) describe(session, query string) subjects.SessionConfig {
	o := s.overrideFor(query)
	c := subjects.SessionConfig{SessionID: session}
	if s.Once != nil && s.Once.Query == query {
		c.Once, c.QueryID = true, query
		o = s.Once.mergeInto(o)
	}
	c.Override, c.Disable, c.Grant = o.Level, o.Disable, o.Grant
	if c.Override == "" {
		c.Override = subjects.OverrideNone
	}
	return c
}

// sortUnique are what was listed, each once, in order.
func sortUnique(in []string) []string { return slices.Compact(slices.Sorted(slices.Values(in))) }

// summarizeConfig says what is set in the few words that the audit keeps. The hash of the whole stands beside it.
func summarizeConfig(q subjects.SessionConfig) string {
	words := []string{"override=" + q.Override}
	if q.Override == "" {
		words = nil
	}
	for _, tool := range q.Disable {
		words = append(words, "disable="+tool)
	}
	for _, g := range q.Grant {
		words = append(words, "grant="+g)
	}
	if q.Once {
		words = append(words, "once")
	}
	return text.Clip(strings.Join(words, " "), 200)
}

func readSetting(ctx context.Context, out actor.Out, session string) (s sessionSetting, rev uint64, err error) {
	data, rev, err := out.Store("session_config").Get(ctx, session)
	if errors.Is(err, actor.ErrNotFound) {
		return s, 0, nil
	}
	if err == nil {
		err = actor.DecodeStrict(data, &s)
	}
	if err != nil {
		return sessionSetting{}, 0, fmt.Errorf("reading what is set for a session: %w", err)
	}
	return s, rev, nil
}

func writeSetting(ctx context.Context, out actor.Out, session string, s sessionSetting, rev uint64) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if _, err = out.Store("session_config").Put(ctx, session, data, rev); err != nil {
		return fmt.Errorf("writing what is set for a session: %w", err)
	}
	return nil
}
