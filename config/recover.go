package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"conclave/actors/broker"
	"conclave/actors/memory"
	"conclave/pkg/actor"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// restoreMemory takes memory back from the newest scheduled backup in which it is undamaged, when an earlier start
// could not open it or it is missing, and reports what came back. What cannot be opened is moved to a folder of damaged
// files.
func (c Config) restoreMemory(ctx context.Context, home bus.Home) error {
	reports, err := damage.Read(home.Data)
	if err != nil || !slices.ContainsFunc(reports, func(r damage.Report) bool { return r.Part == damage.Memory }) {
		return nil // a list that cannot be read is reported
	}
	if _, err := os.Lstat(memory.DatabaseFile(home.Data)); err == nil &&
		!memory.IsDamaged(memory.Verify(ctx, home.Data)) {
		return nil
	}
	r, err := backup.RestoreMemory(ctx, home, c.BackupFolder(home), func(data string) error {
		return memory.Verify(ctx, data)
	})
	if err != nil { // the rest of the system works without it
		return damage.Add(home.Data, damage.Report{Found: time.Now(), Text: "restoring memory: " + err.Error()})
	}
	return damage.Resolve(home.Data, damage.Memory, r)
}

// lostData is what a start amends when the server runs and before an actor does.
type lostData struct {
	turns    []lostTurn
	sessions []string // all that are known, when what they have read is damaged
}

// findLostData returns what is to be amended after damage, and adds to the reports what comes back from EVENTS. The
// server must be stopped.
func findLostData(ctx context.Context, home bus.Home, found []bus.StreamDamage) (lost lostData, err error) {
	lost.turns = findLostTurns(ctx, home, found)
	reports, err := damage.Read(home.Data)
	isPending := slices.ContainsFunc(reports, func(r damage.Report) bool {
		return r.Pending && r.Part == broker.FlowStream
	})
	isFound := slices.ContainsFunc(found, func(d bus.StreamDamage) bool { return d.Stream == broker.FlowStream })
	if err != nil || !isPending && !isFound {
		return lost, err
	}
	streams := []string{subjects.QuerySession.Stream}
	for _, account := range conversationOwners {
		streams = append(streams, "KV_"+subjects.StateBucket(account))
	}
	for _, stream := range streams {
		err = errors.Join(err, home.EachStored(ctx, stream, func(subject string, _ time.Time, _ []byte) {
			if t, ok := subjects.Match("turn.*.*", subject); ok {
				lost.sessions = append(lost.sessions, t[1])
			} else if t, ok := subjects.Match("$KV.*."+subjects.ConversationPrefix+".*", subject); ok {
				lost.sessions = append(lost.sessions, t[1])
			}
		}))
	}
	for _, t := range lost.turns { // answers that come back from EVENTS
		lost.sessions = append(lost.sessions, t.session)
	}
	slices.Sort(lost.sessions)
	lost.sessions = slices.Compact(lost.sessions)
	return lost, err
}

// amend adds the lost answers to their conversations, and ends what damaged records permit, see [broker.Distrust], also
// of damage that an earlier start found and did not come to. It reports what changed. It fails, and is to be repeated,
// when something may still be permitted.
func (r *Instance) amend(ctx context.Context, c Config, home bus.Home, lost lostData) error {
	if err := r.addTurns(ctx, c, lost.turns); err != nil {
		if err := damage.Add(home.Data, damage.Report{Found: time.Now(), Text: err.Error()}); err != nil {
			return err
		}
	}
	reports, err := damage.Read(home.Data)
	for _, d := range reports {
		if err != nil || !d.Pending {
			continue
		}
		changed := ""
		if changed, err = r.distrust(ctx, d.Part, lost.sessions); err != nil {
			return fmt.Errorf("ending what the damaged records of stream %s permitted: %w; start again, or see "+
				"conclave doctor", d.Part, err)
		}
		if changed != "" {
			d.Text += "; " + changed
		}
		part := d.Part
		d.Part, d.Pending = "", false
		err = damage.Resolve(home.Data, part, d)
	}
	return err
}

// distrust is [broker.Distrust] with the key of the broker.
func (r *Instance) distrust(ctx context.Context, stream string, sessions []string) (changed string, err error) {
	nc, err := r.Bus.Dial("broker")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return "", err
	}
	return broker.Distrust(ctx, out, stream, sessions)
}

// conversationOwners are the accounts that keep conversations, of which a deletion by the user is noted by the first.
var conversationOwners = []string{subjects.Generator, subjects.Committee}

// lostTurn is an answer that EVENTS has and the conversation of its session lacks, or the deletion of a conversation.
type lostTurn struct {
	account, session string
	turn             subjects.Turn // of a deletion, its time
	deleted          bool
}

// findLostTurns returns the answers, oldest first, that EVENTS has and a damaged bucket of conversations lacks, and
// adds to the reports how many come back, or why none does. A session that the user deleted later is deleted again. The
// server must be stopped.
func findLostTurns(ctx context.Context, home bus.Home, found []bus.StreamDamage) (lost []lostTurn) {
	for _, account := range conversationOwners {
		i := slices.IndexFunc(found, func(d bus.StreamDamage) bool {
			return d.Stream == "KV_"+subjects.StateBucket(account)
		})
		if i < 0 {
			continue
		}
		turns, err := findTurnsOf(ctx, home, account)
		if err != nil {
			found[i].Restored += "; no answers came back from EVENTS: " + err.Error()
			continue
		}
		lost = append(lost, turns...)
		answers := 0
		for _, t := range turns {
			if !t.deleted {
				answers++
			}
		}
		found[i].Restored += fmt.Sprintf("; %d answers came back from EVENTS into their conversations, without the "+
			"tool results between question and answer", answers)
	}
	return lost
}

// findTurnsOf is findLostTurns for an account.
func findTurnsOf(ctx context.Context, home bus.Home, account string) (lost []lostTurn, err error) {
	kept := map[string]subjects.Conversation{}
	bucket := subjects.StateBucket(account)
	err = home.EachStored(ctx, "KV_"+bucket, func(subject string, _ time.Time, data []byte) {
		var c subjects.Conversation
		session, ok := subjects.SessionOf(subject[len("$KV.")+len(bucket)+1:])
		if ok && json.Unmarshal(data, &c) == nil {
			kept[session] = c // the last one holds
		}
	})
	if err != nil {
		return nil, err
	}
	answers := subjects.ResponseGeneration.StoredBy(account)
	notes, err := subjects.AgentStateEvent.StoredAs(subjects.Generator, subjects.Generator)
	if err != nil {
		return nil, err
	}
	turns, deleted := map[string][]lostTurn{}, map[string]time.Time{}
	// The last events may not be in EVENTS yet, or be damaged there.
	for _, stream := range []string{"EVENTS", subjects.EventStream(account), subjects.EventStream(subjects.Generator)} {
		err := home.EachStored(ctx, stream, func(subject string, at time.Time, data []byte) {
			var r subjects.Response
			var s subjects.AgentState
			switch {
			case subject == answers && json.Unmarshal(data, &r) == nil && subjects.CheckToken(r.SessionID) == nil:
				c := kept[r.SessionID]
				if at.Before(c.Updated) || c.Answered(r.QueryID) ||
					slices.ContainsFunc(turns[r.SessionID], func(t lostTurn) bool {
						return t.turn.QueryID == r.QueryID
					}) {
					return
				}
				t := conversation.NewTurn(r, at.UTC())
				if account != subjects.Generator {
					t.Respondent = account
				}
				turns[r.SessionID] = append(turns[r.SessionID], lostTurn{account, r.SessionID, t, false})
			case subject == notes && json.Unmarshal(data, &s) == nil && s.Code == subjects.NoteDeleted &&
				at.After(deleted[s.SessionID]):
				deleted[s.SessionID] = at
			}
		})
		if err != nil {
			return nil, err
		}
	}
	for session, at := range deleted {
		turns[session] = slices.DeleteFunc(turns[session], func(t lostTurn) bool { return t.turn.Time.Before(at) })
		if c := kept[session]; len(c.Turns) > 0 && c.Updated.Before(at) {
			turns[session] = append(turns[session], lostTurn{account, session, subjects.Turn{Time: at.UTC()}, true})
		}
	}
	for _, all := range turns {
		lost = append(lost, all...)
	}
	slices.SortStableFunc(lost, func(a, b lostTurn) int { return a.turn.Time.Compare(b.turn.Time) })
	return lost, nil
}

// addTurns adds lost answers to their conversations, before an actor runs.
func (r *Instance) addTurns(ctx context.Context, c Config, lost []lostTurn) error {
	g, err := c.Generator.Actor()
	if err != nil {
		return err
	}
	for _, account := range conversationOwners {
		if err := r.addTurnsOf(ctx, account, lost, g.Turns); err != nil {
			return fmt.Errorf("restoring conversations, not all answers came back from EVENTS: %w", err)
		}
	}
	return nil
}

// addTurnsOf adds the lost answers of an account, and keeps the latest most turns of a conversation.
func (r *Instance) addTurnsOf(ctx context.Context, account string, lost []lostTurn, most int) error {
	lost = slices.DeleteFunc(slices.Clone(lost), func(t lostTurn) bool { return t.account != account })
	if len(lost) == 0 {
		return nil
	}
	nc, err := r.Bus.Dial(account)
	if err != nil {
		return err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return err
	}
	store := out.Store(subjects.StateBucket(account))
	for _, t := range lost {
		c, rev, err := conversation.Read(ctx, store, t.session)
		if err != nil {
			return err
		}
		if t.deleted {
			data, err := conversation.Erase(c, t.turn.Time)
			if err == nil {
				_, err = store.Put(ctx, subjects.ConversationKey(t.session), data, rev)
			}
			if err != nil {
				return err
			}
			continue
		}
		_, _, _, err = conversation.Append(ctx, store, c, rev, func() subjects.Turn { return t.turn }, most)
		if err != nil {
			return err
		}
	}
	return nil
}
