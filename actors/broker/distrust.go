package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/damage"
	"conclave/subjects"
)

// permissions are the streams whose records permit something, and what ends that. In a damaged file an earlier value of
// a record may be readable: a rule before it was revoked, an override before it ended, a session before it read
// untrusted content, a schedule before it was removed. Where the end of the questions is lost, the server gives their
// sequences, by which a flow and an override know them, to later ones.
var permissions = []struct {
	streams []string
	end     func(ctx context.Context, out actor.Out, known Holders) (changed string, err error)
}{
	{[]string{"KV_" + stage.RuleBucket}, revokeRules},
	{[]string{"KV_session_config", turns, questions}, liftOverrides},
	{[]string{"KV_flow", turns, questions}, taintSessions},
	{[]string{"KV_" + bucketSchemas}, withdrawDefinitions},
	{[]string{subjects.ScheduleDefinition.Stream}, pauseSchedules},
}

var turns, questions = subjects.QuerySession.Stream, subjects.QueryReceived.Stream

// revocable are the streams of which nothing comes back from a backup, because it may have been revoked since. An
// earlier approval is still the one of its call, so a damaged stream of approvals permits nothing new.
var revocable = []string{
	"KV_" + stage.RuleBucket, "KV_" + stage.ApprovalBucket, "KV_session_config", "KV_" + bucketSchemas,
	subjects.ScheduleDefinition.Stream,
}

// Holders are those whose record may be lost with a damaged stream, as other parts of the data know them.
type Holders struct {
	Sessions   []string
	Principals []subjects.Principal
}

// IsRestorable reports whether what a backup has of a stream may come back: false for what may have been revoked since.
func IsRestorable(stream string) bool { return !slices.Contains(revocable, stream) }

// Distrust ends what the records of a damaged stream permit, those of every stream for [damage.Unknown], also when they
// came back from a backup. It returns what changed, in words, "" for a stream that permits nothing. No broker may run.
// After an error some records may be unchanged.
func Distrust(ctx context.Context, out actor.Out, part string, known Holders) (changed string, failed error) {
	var all []string
	for _, p := range permissions {
		if part != damage.Unknown && !slices.Contains(p.streams, part) {
			continue
		}
		text, err := p.end(ctx, out, known)
		all, failed = append(all, text), errors.Join(failed, err)
	}
	return strings.Join(all, "; "), failed
}

// revokeRules revokes every standing rule, also those that ended, by a clock that may be wrong.
func revokeRules(ctx context.Context, out actor.Out, _ Holders) (string, error) {
	rules, err := stage.ReadAll(ctx, out, stage.RuleBucket, "", stage.ReadRule)
	rules = slices.DeleteFunc(rules, func(r stage.Rule) bool { return !r.Revoked.IsZero() })
	for _, r := range rules {
		r.Revoked, r.RevokedBy = out.Now(), "damage"
		err = errors.Join(err, r.Put(ctx, out.Store(stage.RuleBucket)))
	}
	return fmt.Sprintf("every standing rule was revoked (%d), because one of them may have been before: approve again",
		len(rules)), err
}

// liftOverrides removes levels and grants from the settings of all sessions. Settings that cannot be read, with which
// calls are denied, are left as they are.
func liftOverrides(ctx context.Context, out actor.Out, _ Holders) (changed string, failed error) {
	keys, err := out.Store("session_config").Keys(ctx, "")
	if err != nil {
		return "", err
	}
	lifted := 0
	for _, session := range keys {
		s, rev, err := readSetting(ctx, out, session)
		isUnset := s.All.Level == "" && len(s.All.Grant) == 0 && s.Once == nil
		if errors.Is(err, actor.ErrUnreadable) || err == nil && isUnset {
			continue
		}
		if err == nil {
			disable := s.All.Disable
			if s.Once != nil {
				disable = sortUnique(append(slices.Clip(disable), s.Once.Set.Disable...))
			}
			err = writeSetting(ctx, out, session, sessionSetting{All: setting{Disable: disable}}, rev)
		}
		if failed = errors.Join(failed, err); err == nil {
			lifted++
		}
	}
	return fmt.Sprintf("the overrides of every session were lifted (%d), because they may have ended before; what was "+
		"disabled for a message is disabled for its session", lifted), failed
}

// taintSessions notes for the known sessions, and for those that have a record, that their record is lost, see
// [policy.Flow.WithLost]. A record that cannot be read, with which calls are denied, is left as it is. The questions so
// far that a record lacks stay unknown to it, so that each call for them asks.
func taintSessions(ctx context.Context, out actor.Out, known Holders) (changed string, failed error) {
	keys, err := out.Store("flow").Keys(ctx, "")
	if err != nil {
		return "", err
	}
	last, err := actor.ReadStored(ctx, out, turns, map[string]any{"last_by_subj": ">"})
	if err != nil {
		return "", err
	}
	if last == nil {
		last = &actor.StoredMessage{}
	}
	all := slices.Concat(keys, known.Sessions)
	slices.Sort(all)
	tainted := 0
	b := &Broker{}
	for _, session := range slices.Compact(all) {
		f, rev, err := b.readFlow(ctx, out, session)
		if err == nil {
			err = b.writeFlow(ctx, out, session, f.WithLost(out.Now().UTC(), last.Seq), rev)
		}
		switch {
		case err == nil:
			tainted++
		case !errors.Is(err, actor.ErrUnreadable):
			failed = errors.Join(failed, err)
		}
	}
	return fmt.Sprintf("every session counts as having read untrusted content, and private content that nobody asked "+
		"for (%d), because the record of it may be lost", tainted), failed
}

// withdrawDefinitions makes the definition of each tool of a run-time principal wait until the user accepts it again.
// Tools of the build have theirs in the program.
func withdrawDefinitions(ctx context.Context, out actor.Out, known Holders) (changed string, failed error) {
	withdrawn := 0
	for _, p := range known.Principals {
		zone, tools, _ := p.Zone()
		if p.Kind != subjects.ToolPrincipal {
			continue
		}
		for _, tool := range tools {
			d := definition{Pin: "damaged", Added: p.Added} // the hash of no definition
			at := zoneTool{zone, tool}
			_, rev, err := out.Store(bucketSchemas).Get(ctx, at.key())
			if err == nil || errors.Is(err, actor.ErrNotFound) {
				d.revision = rev
				err = d.store(ctx, out, at)
			}
			if failed = errors.Join(failed, err); err == nil {
				withdrawn++
			}
		}
	}
	return fmt.Sprintf("the definitions of added tools (%d) have to be accepted again, because they may have changed "+
		"since: see conclave tool list", withdrawn), failed
}

// pauseSchedules pauses every schedule. One that cannot be read is not asked.
func pauseSchedules(ctx context.Context, out actor.Out, _ Holders) (changed string, failed error) {
	paused := 0
	for seq := uint64(1); ; {
		m, err := actor.ReadStored(ctx, out, subjects.ScheduleDefinition.Stream,
			map[string]any{"seq": seq, "next_by_subj": subjects.ScheduleDefinition.Name})
		if err != nil {
			return "", err
		}
		if m == nil {
			return fmt.Sprintf("every schedule was paused (%d), because it may have been changed or removed since: "+
				"see conclave schedule list, and resume what you want", paused), nil
		}
		seq = m.Seq + 1
		var s subjects.Schedule
		if json.Unmarshal(m.Data, &s) != nil || s.Removed || s.Paused {
			continue
		}
		s.Paused = true
		topic, err := subjects.ScheduleDefinition.With(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		if err == nil {
			err = actor.EmitRevision(ctx, out, topic, out.NewID(), m.Seq, s)
		}
		if err != nil {
			return "", err
		}
		paused++
	}
}
