package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The user's settings for a session are stored in the bucket session_config, keyed by session. Only the user's accounts
// may publish on the subject that sets them: no agent can loosen its own rules.

// setting is one set of overrides: a level, disabled tools and grants.
type setting struct {
	Level   string    `json:"level,omitempty"`
	Until   time.Time `json:"until,omitzero"` // when the level ALL ends
	Disable []string  `json:"disable,omitempty"`
	Grant   []string  `json:"grant,omitempty"`
}

// expireAll removes the level ALL when it has ended at now, and also when the record does not say when it ends.
func (s *setting) expireAll(now time.Time) {
	if s.Level == subjects.OverrideAll && !now.Before(s.Until) {
		s.Level, s.Until = "", time.Time{}
	}
}

// sessionSetting is what the user set for a session. Once applies to one message on top of All.
type sessionSetting struct {
	All  setting      `json:"all"` // applies to every message
	Once *onceSetting `json:"once,omitempty"`
}

// onceSetting applies to one message, to which it is bound for good when Query is set.
type onceSetting struct {
	Set   setting `json:"set"`
	Query string  `json:"query,omitempty"` // the message; "" = the next one, not known yet
	// sequence of the session's last message when it was set; the next one follows it
	After uint64 `json:"after,omitempty"`
}

// maxNames bounds each list of names in a setting.
const maxNames = 64

// onSessionConfig sets the overrides of a session, or shows them, and replies with what is set then. A setting replaces
// everything set for the session before; a once setting adds to it for one message. It denies and rejects what
// [Broker.checkSetting] does, which is recorded; showing is not. A setting is stored only after it is recorded.
func (b *Broker) onSessionConfig(ctx context.Context, in actor.Msg[subjects.SessionConfig],
	out actor.Out,
) (subjects.SessionConfig, error) {
	q := in.Body
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: subjects.ActionSessionConfig}
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
		return subjects.SessionConfig{}, fmt.Errorf("encoding session config: %w", err)
	}
	rec.Session, rec.Query, rec.ParamsHash = q.SessionID, q.QueryID, b.hash.Hash(asked)
	rec.Reason = summarizeConfig(q)
	set, err := actor.Audited(ctx, out, b.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.SessionConfig,
		error,
	) {
		s, err := b.storeSetting(ctx, out, p, q)
		if err != nil {
			return subjects.SessionConfig{}, settingsFault(out, err)
		}
		return s.describe(q.SessionID, q.QueryID), nil
	})
	if errors.Is(err, actor.ErrUnrecorded) {
		return subjects.SessionConfig{}, subjects.Faultf(subjects.CodeUnrecorded, "the outcome could not be recorded "+
			"in the audit log; check what is set with show")
	}
	return set, err
}

// settingsFault logs err and returns the fault of a setting that cannot be read or written.
func settingsFault(out actor.Out, err error) error {
	out.LogError(fmt.Errorf("session config: %w", err))
	return subjects.Faultf(subjects.CodeUnavailable, "the settings of the session cannot be read or written, so "+
		"nothing was changed; see conclave doctor")
}

// checkSetting denies accounts other than the user's and rejects a malformed setting as a whole: names that are no
// tokens, unknown levels, grants that the manifest does not allow, more than maxNames disabled tools or grants, a
// setting of nothing, and contradictory fields. nil means that it may be stored or shown.
func (b *Broker) checkSetting(from string, q subjects.SessionConfig) *subjects.Fault {
	nothing := q.Override == "" && len(q.Disable)+len(q.Grant) == 0
	switch {
	case !slices.Contains(subjects.UserAccounts, from):
		return subjects.Faultf(subjects.CodeDenied, "only the user may change the settings of a session")
	case subjects.CheckToken(q.SessionID) != nil:
		return rejectSetting("invalid session_id: use letters, digits, - and _ only")
	case q.QueryID != "" && subjects.CheckToken(q.QueryID) != nil:
		return rejectSetting("invalid query_id: use letters, digits, - and _ only")
	case q.Show && (!nothing || q.Once):
		return rejectSetting("show changes nothing; leave the other fields out")
	case q.Show:
		return nil
	}
	if f := checkLevel(q, nothing); f != nil {
		return f
	}
	for _, tool := range q.Disable {
		if subjects.CheckToken(tool) != nil {
			return rejectSetting("invalid tool name %q; list each tool to disable", text.OneLine(tool, 60))
		}
	}
	m := b.rules.Load().Manifest
	for _, g := range q.Grant {
		if err := m.CheckGrant(g); err != nil {
			return rejectSetting("%v", err)
		}
	}
	return nil
}

// rejectSetting returns the fault of a malformed setting.
func rejectSetting(format string, a ...any) *subjects.Fault {
	return subjects.Faultf(subjects.CodeMalformed, format, a...)
}

// checkLevel rejects a change of nothing, fields that contradict each other, an unknown level, a lifetime that is not
// for ALL or out of range, and more than maxNames names. nothing says that q has no level, disabled tools or grants.
func checkLevel(q subjects.SessionConfig, nothing bool) *subjects.Fault {
	switch {
	case nothing:
		return rejectSetting("nothing to set; give override, disable or grant, or use show to see the settings")
	case q.QueryID != "" && !q.Once:
		return rejectSetting("query_id needs once: it names the message of a one-message setting")
	case q.Once && q.Override == subjects.OverrideNone && len(q.Disable)+len(q.Grant) == 0:
		return rejectSetting("override none cannot be set once; leave once out to clear the settings of the session")
	case !q.Expires.IsZero():
		return rejectSetting("expires is set by the broker; give lifetime_seconds")
	case q.Lifetime != 0 && (q.Override != subjects.OverrideAll || q.Lifetime < 0 ||
		q.Lifetime > int(subjects.MaxAllLifetime/time.Second)):
		return rejectSetting("lifetime_seconds is for override ALL, from 1 to %d",
			int(subjects.MaxAllLifetime/time.Second))
	case q.Override != "" && !slices.Contains(policy.Levels, q.Override):
		return rejectSetting("unknown override %q; use one of %s", text.OneLine(q.Override, 40),
			strings.Join(policy.Levels, ", "))
	case len(q.Disable) > maxNames || len(q.Grant) > maxNames:
		return rejectSetting("too many names: at most %d disabled tools and as many grants", maxNames)
	}
	return nil
}

// storeSetting stores a checked setting and returns everything set for the session. Without a valid permit nothing is
// written. The caller's deadline does not interrupt the write. A once setting without a query id applies to the first
// message after the session's last one. ALL ends after its lifetime. It fails after maxWriteAttempts write conflicts.
func (b *Broker) storeSetting(ctx context.Context, out actor.Out, p *actor.Permit,
	q subjects.SessionConfig,
) (sessionSetting, error) {
	if err := p.Check(); err != nil {
		return sessionSetting{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.AuditTimeout)
	defer cancel()
	mine := setting{Level: q.Override, Disable: sortUnique(q.Disable), Grant: sortUnique(q.Grant)}
	if q.Override == subjects.OverrideAll {
		mine.Until = out.Now().UTC().Add(cmp.Or(time.Duration(q.Lifetime)*time.Second, subjects.DefaultAllLifetime))
	}
	once := &onceSetting{Set: mine, Query: q.QueryID}
	if q.Once && q.QueryID == "" {
		_, last, found, err := readTurn(ctx, out, map[string]any{"last_by_subj": "turn.*." + q.SessionID})
		if err != nil {
			return sessionSetting{}, err
		}
		if found {
			once.After = last.Seq
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

// callerOverride returns the overrides that apply to a caller's message. What loosens the policy, a level or grants,
// applies only to a query that the router stored for the session and that the caller's account answers, until it is
// finished, and never to respondent B; disabled tools apply to every caller. With dry, and for respondent B, a once
// setting is not claimed. An error means that the overrides are unknown: the caller must deny.
func callerOverride(ctx context.Context, out actor.Out, caller subjects.Caller, session, query string,
	dry bool,
) (o policy.Override, err error) {
	o, err = claimOverride(ctx, out, session, query, dry || isRespondentB(caller))
	if err != nil || o.Level == "" && len(o.Grant) == 0 {
		return o, err
	}
	restricted := policy.Override{Disable: o.Disable}
	if isRespondentB(caller) {
		return restricted, nil
	}
	turn, served, err := findServedTurn(ctx, out, caller.Account, session, query)
	if err != nil || !served {
		return restricted, err
	}
	if finished, err := isFinished(ctx, out, caller.Account, query, turn.Time); err != nil || finished {
		return restricted, err
	}
	return o, nil
}

// claimOverride returns the overrides that apply to a message of a session; none without a session. A once setting for
// the next message is bound to that message by compare-and-set before any decision depends on it. query is the message;
// with "" no once setting applies or is bound. With dry a once setting applies as if it were bound. An error means that
// the overrides are unknown: the caller must deny.
func claimOverride(ctx context.Context, out actor.Out, session, query string, dry bool) (policy.Override, error) {
	if session == "" {
		return policy.Override{}, nil
	}
	for range maxWriteAttempts {
		s, rev, err := readSetting(ctx, out, session)
		if err != nil {
			return policy.Override{}, err
		}
		if s.Once == nil || s.Once.Query != "" || query == "" {
			return s.overrideFor(query), nil
		}
		next, err := nextMessage(ctx, out, session, s.Once.After)
		if err != nil {
			return policy.Override{}, err
		}
		s.Once.Query = next
		if next == "" || dry {
			return s.overrideFor(query), nil
		}
		if err = writeSetting(ctx, out, session, s, rev); err == nil {
			return s.overrideFor(query), nil
		}
		if !errors.Is(err, actor.ErrChanged) {
			return policy.Override{}, err
		}
	}
	return policy.Override{}, errWriteConflict
}

// nextMessage is the id of the first message of a session after sequence after, as the router stored it, "" when there
// is none yet.
func nextMessage(ctx context.Context, out actor.Out, session string, after uint64) (string, error) {
	q, _, _, err := readTurn(ctx, out, map[string]any{"seq": after + 1, "next_by_subj": "turn.*." + session})
	return q.QueryID, err
}

// overrideFor returns the overrides that apply to a message. Tools disabled for the session stay disabled in every
// message.
func (s sessionSetting) overrideFor(query string) policy.Override {
	o := policy.Override{Level: s.All.Level, Disable: slices.Clone(s.All.Disable), Grant: slices.Clone(s.All.Grant)}
	if s.Once != nil && query != "" && s.Once.Query == query {
		o = s.Once.mergeInto(o)
	}
	return o
}

// mergeInto adds a once setting to the overrides of the session: its level replaces theirs, its lists are added.
func (s onceSetting) mergeInto(o policy.Override) policy.Override {
	if s.Set.Level != "" {
		o.Level = s.Set.Level
	}
	o.Disable, o.Grant = sortUnique(append(o.Disable, s.Set.Disable...)), sortUnique(append(o.Grant, s.Set.Grant...))
	return o
}

// describe returns what is set for a message in the form that the user reads; for the next message when query is "".
// Once is set when a one-message setting is part of it. No level is shown as none.
func (s sessionSetting) describe(session, query string) subjects.SessionConfig {
	o := s.overrideFor(query)
	c := subjects.SessionConfig{SessionID: session}
	if s.Once != nil && s.Once.Query == query {
		c.Once, c.QueryID = true, query
		if query == "" { // of the next message: not one of overrideFor's
			o = s.Once.mergeInto(o)
		}
	}
	c.Override, c.Disable, c.Grant = o.Level, o.Disable, o.Grant
	switch {
	case o.Level != subjects.OverrideAll:
	case c.Once && s.Once.Set.Level != "":
		c.Expires = s.Once.Set.Until
	default:
		c.Expires = s.All.Until
	}
	if c.Override == "" {
		c.Override = subjects.OverrideNone
	}
	return c
}

// sortUnique returns the distinct names in order.
func sortUnique(in []string) []string { return slices.Compact(slices.Sorted(slices.Values(in))) }

// summarizeConfig returns a setting in at most 200 bytes for the audit record, next to the hash of the whole request,
// which identifies what is cut off.
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

// readSetting reads the settings of a session and their revision: the zero setting and 0 when nothing is set. A level
// ALL that has ended is left out. A record with an unknown field is
// [actor.ErrUnreadable].
func readSetting(ctx context.Context, out actor.Out, session string) (s sessionSetting, rev uint64, err error) {
	data, rev, err := out.Store("session_config").Get(ctx, session)
	if errors.Is(err, actor.ErrNotFound) {
		return s, 0, nil
	}
	if err == nil {
		if err = strict.DecodeJSON(data, &s); err != nil {
			err = fmt.Errorf("%w: %w", actor.ErrUnreadable, err)
		}
	}
	if err != nil {
		return sessionSetting{}, 0, fmt.Errorf("reading session config: %w", err)
	}
	s.All.expireAll(out.Now())
	if s.Once != nil {
		s.Once.Set.expireAll(out.Now())
	}
	return s, rev, nil
}

// writeSetting stores the settings of a session at revision rev, 0 for new ones. The error wraps [actor.ErrChanged]
// when rev is outdated.
func writeSetting(ctx context.Context, out actor.Out, session string, s sessionSetting, rev uint64) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if _, err = out.Store("session_config").Put(ctx, session, data, rev); err != nil {
		return fmt.Errorf("writing session config: %w", err)
	}
	return nil
}
