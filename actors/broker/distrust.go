package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
)

// FlowStream has what each session has read. Before [Distrust] of it the sessions have to be looked for.
const FlowStream = "KV_flow"

// Distrust ends what the records of a damaged stream permit: an earlier value of a record may be readable in it, a rule
// before it was revoked, an override before it ended, a session before it read untrusted content. All standing rules
// are revoked, and overrides lifted except for disabled tools. For the flow the given sessions and those with a record
// count as having read untrusted and private content. It returns what changed, in words, "" for other streams. No
// broker may run. After an error some records may be unchanged.
func Distrust(ctx context.Context, out actor.Out, stream string, sessions []string) (changed string, err error) {
	switch stream {
	case "KV_" + stage.RuleBucket:
		rules, err := stage.ReadAll(ctx, out, stage.RuleBucket, "", stage.ReadRule)
		rules = slices.DeleteFunc(rules, func(r stage.Rule) bool { return !r.Revoked.IsZero() })
		for _, r := range rules { // also those that ended, by a clock that may be wrong
			r.Revoked, r.RevokedBy = out.Now(), "damage"
			err = errors.Join(err, r.Put(ctx, out.Store(stage.RuleBucket)))
		}
		return fmt.Sprintf("every standing rule was revoked (%d), because one of them may have been before: approve "+
			"again", len(rules)), err
	case "KV_session_config":
		lifted, err := liftOverrides(ctx, out)
		return fmt.Sprintf("the overrides of every session were lifted (%d), because they may have ended before; what "+
			"was disabled for a message is disabled for its session", lifted), err
	case FlowStream:
		sessions, err := taintSessions(ctx, out, sessions)
		return fmt.Sprintf("every session counts as having read untrusted and private content (%d), because the "+
			"record of it may be lost", sessions), err
	}
	return "", nil
}

// liftOverrides removes levels and grants from the settings of all sessions and returns how many had some. Settings
// that cannot be read, with which calls are denied, are left as they are.
func liftOverrides(ctx context.Context, out actor.Out) (lifted int, failed error) {
	keys, err := out.Store("session_config").Keys(ctx, "")
	if err != nil {
		return 0, err
	}
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
	return lifted, failed
}

// taintSessions records for the sessions, and for those that have a record, that they read content of unknown origin,
// and returns how many they are. A record that cannot be read, with which calls are denied, is left as it is.
func taintSessions(ctx context.Context, out actor.Out, sessions []string) (tainted int, failed error) {
	keys, err := out.Store("flow").Keys(ctx, "")
	if err != nil {
		return 0, err
	}
	all := slices.Concat(keys, sessions)
	slices.Sort(all)
	unknown := policy.Result{Tool: policy.Tool{Name: "(damaged record)"}, Time: out.Now().UTC()}
	for _, session := range slices.Compact(all) {
		err := (&Broker{}).updateFlow(ctx, out, session, func(f *policy.Flow) *policy.Flow {
			return f.WithResult(unknown)
		})
		switch {
		case err == nil:
			tainted++
		case !errors.Is(err, actor.ErrUnreadable):
			failed = errors.Join(failed, err)
		}
	}
	return tainted, failed
}
