package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	ids, answers, err := findForgotten(ctx, home)
	var r damage.Report
	if err == nil {
		r, err = backup.RestoreMemory(ctx, home, c.BackupFolder(home), func(data string) error {
			if err := memory.Verify(ctx, data); err != nil {
				return err
			}
			return memory.ForgetAgain(ctx, data, ids, answers)
		})
	}
	if err != nil { // the rest of the system works without it
		return damage.Add(home.Data, damage.Report{Found: time.Now(), Text: "restoring memory: " + err.Error()})
	}
	return damage.Resolve(home.Data, damage.Memory, r)
}

// findForgotten returns the ids of the entries that memory was made to forget and that were not stored again later, and
// all answers, as far as the event log has them. The server must be stopped.
func findForgotten(ctx context.Context, home bus.Home) (ids []string, answers []memory.Answer, failed error) {
	forgotten, stored := map[string]time.Time{}, map[string]time.Time{} // the last time, by id
	// Each may lack some, EVENTS also the last ones.
	for _, stream := range []string{"EVENTS", subjects.EventStream("memory")} {
		failed = errors.Join(failed, home.EachStored(ctx, stream, func(subject string, at time.Time, data []byte) {
			last := stored
			var e subjects.MemoryEvent
			var r subjects.Response
			from, isAnswer := subjects.Match("from.*.response.generation", subject)
			switch {
			case isAnswer && json.Unmarshal(data, &r) == nil:
				answers = append(answers, memory.Answer{Query: r.QueryID, Respondent: from[0]})
			case subject != subjects.MemoryStored.StoredBy("memory") || json.Unmarshal(data, &e) != nil:
			case e.Action == memory.ActionForgotten:
				last = forgotten
				fallthrough
			default:
				for _, id := range e.IDs {
					if at.After(last[id]) {
						last[id] = at
					}
				}
			}
		}))
	}
	for id, at := range forgotten {
		if !stored[id].After(at) {
			ids = append(ids, id)
		}
	}
	return ids, answers, failed
}

// lostData is what a start amends when the server runs and before an actor does.
type lostData struct {
	pending []damage.Report // of damage after which something may still be permitted
	turns   []lostTurn
	known   broker.Holders // whose record may be lost
}

// findLostData returns what is to be amended after the reported damage, none without any. The server must be stopped.
func findLostData(ctx context.Context, home bus.Home) (lost lostData, err error) {
	reports, err := damage.Read(home.Data)
	if err != nil {
		return lost, err
	}
	lost.pending = slices.DeleteFunc(reports, func(r damage.Report) bool { return !r.Pending })
	if len(lost.pending) == 0 {
		return lost, nil
	}
	lost.turns = findLostTurns(ctx, home, lost.pending)
	if lost.known.Principals, err = home.ReadPrincipals(); err != nil {
		return lost, err
	}
	lost.known.Sessions, err = findSessions(ctx, home)
	return lost, err
}

// sessionSubjects are the subjects that name a session, and the wildcard that stands for it. Other messages name it in
// their body.
var sessionSubjects = []struct {
	pattern string
	at      int
}{
	{"turn.*.*", 1},
	{"attachment.*.*.*", 0},
	{"$KV.session_config.*", 0},
	{"$KV.*.conv.*", 1},
	{"$KV.*.past.*.>", 1},
	{"$KV.*.session.*", 1},
	{"$KV.state_generator.turn.*", 0},
	{"$KV.state_respondent_b.turn.*", 0},
}

// findSessions returns the sessions that any message of any stream names. The server must be stopped.
func findSessions(ctx context.Context, home bus.Home) (found []string, failed error) {
	known := map[string]bool{}
	for _, st := range subjects.Table().Streams {
		if st.Account != subjects.Core {
			continue
		}
		failed = errors.Join(failed, home.EachStored(ctx, st.Name, func(subject string, _ time.Time, data []byte) {
			var body struct {
				SessionID string `json:"session_id"`
				Session   string `json:"session"`
			}
			_ = json.Unmarshal(data, &body) // some are no JSON
			known[body.SessionID], known[body.Session] = true, true
			for _, s := range sessionSubjects {
				if t, ok := subjects.Match(s.pattern, subject); ok {
					known[t[s.at]] = true
				}
			}
		}))
	}
	for session := range known {
		if subjects.CheckToken(session) == nil { // others are no keys
			found = append(found, session)
		}
	}
	return found, failed
}

// repair runs a server that other processes cannot reach, adds the lost answers to their conversations, and ends what
// damaged records permit, see [broker.Distrust], also of damage that an earlier start found and did not come to. It
// reports what changed. It fails, and is to be repeated, when something may still be permitted. Without pending damage
// it does nothing.
func (r *Instance) repair(ctx context.Context, c Config, home bus.Home, lost lostData, hasData bool,
	log *slog.Logger,
) error {
	if len(lost.pending) == 0 {
		return nil
	}
	if err := r.startServer(ctx, c, home, hasData, true, log); err != nil {
		return err
	}
	defer func() {
		r.server.Stop(ctx)
		r.server = nil
	}()
	if err := r.addTurns(ctx, c, lost.turns); err != nil {
		if err := damage.Add(home.Data, damage.Report{Found: time.Now(), Text: err.Error()}); err != nil {
			return err
		}
	}
	for _, d := range lost.pending {
		changed, err := r.distrust(ctx, d.Part, lost.known)
		if err != nil {
			return fmt.Errorf("ending what damaged records permitted, %s: %w; start again, or see conclave doctor",
				d.Text, err)
		}
		if changed != "" {
			d.Text += "; " + changed
		}
		part := d.Part
		d.Part, d.Pending = "", false
		if err := damage.Resolve(home.Data, part, d); err != nil {
			return err
		}
	}
	return nil
}

// distrust is [broker.Distrust] with the key of the broker.
func (r *Instance) distrust(ctx context.Context, part string, known broker.Holders) (changed string, err error) {
	nc, err := r.Bus.Dial("broker")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return "", err
	}
	return broker.Distrust(ctx, out, part, known)
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
func findLostTurns(ctx context.Context, home bus.Home, reports []damage.Report) (lost []lostTurn) {
	for _, account := range conversationOwners {
		i := slices.IndexFunc(reports, func(r damage.Report) bool {
			return r.Part == "KV_"+subjects.StateBucket(account)
		})
		if i < 0 {
			continue
		}
		turns, err := findTurnsOf(ctx, home, account)
		if err != nil {
			reports[i].Restored += "; no answers came back from EVENTS: " + err.Error()
			continue
		}
		lost = append(lost, turns...)
		answers := 0
		for _, t := range turns {
			if !t.deleted {
				answers++
			}
		}
		reports[i].Restored += fmt.Sprintf("; %d answers came back from EVENTS into their conversations, without the "+
			"tool results between question and answer", answers)
	}
	return lost
}

// findTurnsOf is findLostTurns for an account.
func findTurnsOf(ctx context.Context, home bus.Home, account string) (lost []lostTurn, err error) {
	kept, archived, err := readConversations(ctx, home, subjects.StateBucket(account))
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
	for session, c := range kept {
		if archived[session] && (c.Deleted || c.Deletions > 0) {
			if _, known := deleted[session]; !known { // EVENTS does not tell
				deleted[session] = time.Time{}
			}
		}
	}
	for session, at := range deleted {
		turns[session] = slices.DeleteFunc(turns[session], func(t lostTurn) bool { return t.turn.Time.Before(at) })
		if c := kept[session]; archived[session] || len(c.Turns) > 0 && c.Updated.Before(at) {
			turns[session] = append(turns[session], lostTurn{account, session, subjects.Turn{Time: at.UTC()}, true})
		}
	}
	for _, all := range turns {
		lost = append(lost, all...)
	}
	slices.SortStableFunc(lost, func(a, b lostTurn) int { return a.turn.Time.Compare(b.turn.Time) })
	return lost, nil
}

// readConversations returns the conversations of a bucket by session, and the sessions of which it has archived turns.
func readConversations(ctx context.Context, home bus.Home, bucket string) (kept map[string]subjects.Conversation,
	archived map[string]bool, err error,
) {
	kept, archived = map[string]subjects.Conversation{}, map[string]bool{}
	err = home.EachStored(ctx, "KV_"+bucket, func(subject string, _ time.Time, data []byte) {
		var c subjects.Conversation
		key := subject[len("$KV.")+len(bucket)+1:]
		session, ok := subjects.SessionOf(key)
		if ok && json.Unmarshal(data, &c) == nil {
			kept[session] = c // the last one holds
		} else if t, ok := subjects.Match(subjects.ArchivePrefix("*")+".>", key); ok && len(data) > 0 {
			archived[t[0]] = true
		}
	})
	return kept, archived, err
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
			if err := eraseAgain(ctx, store, c, rev, t.turn.Time); err != nil {
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

// eraseAgain deletes a conversation, which has revision rev, that the user deleted at a time, unless it has later
// turns, and what came back of the turns that were archived before.
func eraseAgain(ctx context.Context, store actor.Store, c subjects.Conversation, rev uint64, at time.Time) error {
	deletions := c.Deletions
	if c.Deleted || c.Updated.Before(at) {
		deletions = conversation.EveryDeletion
	}
	if err := conversation.EraseArchive(ctx, store, c.SessionID, deletions); err != nil || rev == 0 || c.Deleted ||
		!c.Updated.Before(at) {
		return err
	}
	data, err := conversation.Erase(c, at)
	if err == nil {
		_, err = store.Put(ctx, subjects.ConversationKey(c.SessionID), data, rev)
	}
	return err
}
