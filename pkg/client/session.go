package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Buckets of conversations: a session has the turns of the assistant in one and those of the committee in the other.
var (
	conversations  = subjects.StateBucket(subjects.Generator)
	deliberations  = subjects.StateBucket(subjects.Committee)
	sessionBuckets = []string{conversations, deliberations}
)

// SessionIDs returns the ids of the stored sessions, sorted; nil when there are none. Keys that are no session are
// skipped.
func (c *Client) SessionIDs(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var ids []string
	for _, bucket := range sessionBuckets {
		keys, err := c.out.Store(bucket).Keys(ctx, subjects.ConversationPrefix)
		if err != nil {
			return nil, fmt.Errorf("listing the sessions: %w", err)
		}
		for _, key := range keys {
			if id, ok := subjects.SessionOf(key); ok {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Session reads the session with this complete id, with the turns of the assistant and of the committee by time:
// [ErrNotFound] when there is none or the id is no valid token, [ErrUnreadable] when it cannot be decoded. Fields that
// this version does not know are ignored. The key decides whose session it is, not the stored id.
func (c *Client) Session(ctx context.Context, id string) (subjects.Conversation, error) {
	if subjects.CheckToken(id) != nil {
		return subjects.Conversation{}, fmt.Errorf("session %q: %w", id, ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conv, err := c.readConversation(ctx, conversations, id)
	missing := errors.Is(err, ErrNotFound)
	if err != nil && !missing {
		return subjects.Conversation{}, err
	}
	said, more := c.readConversation(ctx, deliberations, id)
	switch {
	case errors.Is(more, ErrNotFound):
		return conv, err
	case more != nil:
		return subjects.Conversation{}, more
	case missing:
		return said, nil
	}
	if saidSummary := indexConversation(said); saidSummary.isFirst(indexConversation(conv)) {
		conv.First, conv.Began = saidSummary.Question, saidSummary.began
	}
	conv.Turns = slices.Concat(conv.Turns, said.Turns)
	sortTurns(conv.Turns)
	conv.Dropped, conv.Archived = conv.Dropped+said.Dropped, conv.Archived+said.Archived
	conv.Past, conv.Labels = slices.Concat(conv.Past, said.Past), conv.Labels.Join(said.Labels)
	if said.Updated.After(conv.Updated) {
		conv.Updated = said.Updated
	}
	return conv, nil
}

func sortTurns(turns []subjects.Turn) {
	slices.SortStableFunc(turns, func(a, b subjects.Turn) int { return a.Time.Compare(b.Time) })
}

// TurnPage is a part of the archived turns of a session.
type TurnPage struct {
	Turns  []subjects.Turn // of the assistant and of the committee, oldest first
	Before string          // of the page before it; "" = there is none
	Lost   int             // turns between them that cannot be read
}

// maxTurnPage bounds a page of turns, in bytes, beyond its first turn.
const maxTurnPage = 2 << 20

// ErrPage means that a page of turns is named that no page before it has named.
var ErrPage = errors.New("no such page of turns")

// ArchivedTurns returns at most n, and about [maxTurnPage], of the turns that are no longer in the conversation of a
// session: the latest, or with before, as a page has it, those before that page. Errors are those of [Client.Session]
// and [ErrPage].
func (c *Client) ArchivedTurns(ctx context.Context, id, before string, n int) (page TurnPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	convs, left, err := c.archivedBefore(ctx, id, before)
	if err != nil {
		return page, err
	}
	type place struct {
		turn subjects.Turn
		n    int
	}
	var found [2][]place // latest first
	end := left
	for i, bucket := range sessionBuckets {
		for size := 0; end[i] > 0 && left[i]-end[i] < n && size < maxTurnPage; {
			end[i]--
			data, _, err := c.out.Store(bucket).Get(ctx, convs[i].ArchivedTurnKey(end[i]))
			p := place{n: end[i]}
			size += len(data)
			switch {
			case errors.Is(err, actor.ErrNotFound):
			case err != nil:
				return page, err
			case strict.DecodeStored(data, &p.turn) == nil:
				found[i] = append(found[i], p)
			}
		}
	}
	// Of a bucket whose turns are taken and that has further ones, the next turn may be the latest.
	isComplete := func(i int) bool { return len(found[i]) > 0 || end[i] == 0 }
	for len(page.Turns) < n && len(found[0])+len(found[1]) > 0 && isComplete(0) && isComplete(1) {
		i := 0
		if len(found[0]) == 0 || len(found[1]) > 0 && found[1][0].turn.Time.After(found[0][0].turn.Time) {
			i = 1
		}
		page.Turns, found[i] = append(page.Turns, found[i][0].turn), found[i][1:]
	}
	page.Lost = left[0] + left[1] - len(page.Turns)
	for i, rest := range found {
		if len(rest) > 0 { // they are in the page before
			end[i] = rest[0].n + 1
		}
		page.Lost -= end[i]
	}
	slices.Reverse(page.Turns)
	if end[0]+end[1] > 0 {
		page.Before = fmt.Sprintf("%d-%d", end[0], end[1])
	}
	return page, nil
}

// archivedBefore returns the part of a session in each bucket, and how many archived turns it has before a page, in all
// with "".
func (c *Client) archivedBefore(ctx context.Context, id, before string) (convs [2]subjects.Conversation, left [2]int,
	err error,
) {
	if subjects.CheckToken(id) != nil {
		return convs, left, fmt.Errorf("session %q: %w", id, ErrNotFound)
	}
	missing := 0
	for i, bucket := range sessionBuckets {
		convs[i], err = c.readConversation(ctx, bucket, id)
		switch {
		case errors.Is(err, ErrNotFound):
			missing++
		case err != nil:
			return convs, left, err
		}
		left[i] = convs[i].Archived
	}
	if missing == len(left) {
		return convs, left, fmt.Errorf("session %s: %w", id, ErrNotFound)
	}
	if before == "" {
		return convs, left, nil
	}
	var at [2]int
	if n, err := fmt.Sscanf(before, "%d-%d", &at[0], &at[1]); err != nil || n != len(at) ||
		before != fmt.Sprintf("%d-%d", at[0], at[1]) || at[0] < 0 || at[1] < 0 || at[0] > left[0] || at[1] > left[1] {
		return convs, left, fmt.Errorf("%w: %s", ErrPage, text.Clip(before, 40))
	}
	return convs, at, nil
}

// WholeSession is [Client.Session] with all its turns, the archived ones too. lost is the number of turns that are not
// among them, because they cannot be read or an earlier version did not keep them.
func (c *Client) WholeSession(ctx context.Context, id string) (conv subjects.Conversation, lost int, err error) {
	if conv, err = c.Session(ctx, id); err != nil {
		return conv, 0, err
	}
	lost = conv.Summarized + conv.Dropped - conv.Archived
	known := map[string]bool{}
	for _, t := range conv.Turns {
		known[t.QueryID] = true
	}
	for page := (TurnPage{}); conv.Archived > 0; {
		if page, err = c.ArchivedTurns(ctx, id, page.Before, archivePage); err != nil {
			return conv, 0, err
		}
		lost += page.Lost
		for _, t := range page.Turns {
			if !known[t.QueryID] { // a turn that was archived meanwhile is there twice
				conv.Turns = append(conv.Turns, t)
			}
		}
		if page.Before == "" {
			break
		}
	}
	sortTurns(conv.Turns)
	return conv, lost, nil
}

// archivePage is the number of archived turns that are read at once.
const archivePage = 200

// readConversation reads the part of a session in one bucket, with the errors of [Client.Session].
func (c *Client) readConversation(ctx context.Context, bucket, id string) (conv subjects.Conversation, err error) {
	data, _, err := c.out.Store(bucket).Get(ctx, subjects.ConversationKey(id))
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return conv, fmt.Errorf("session %s: %w", id, ErrNotFound)
	case err != nil:
		return conv, err
	}
	if conv, err = decodeConversation(id, data); err == nil && conv.Deleted {
		return subjects.Conversation{}, fmt.Errorf("session %s: %w", id, ErrNotFound)
	}
	return conv, err
}

// decodeConversation decodes the stored conversation of a session; the error wraps [ErrUnreadable]. A deleted one is no
// error.
func decodeConversation(id string, data []byte) (conv subjects.Conversation, err error) {
	if err := strict.DecodeStored(data, &conv); err != nil {
		return subjects.Conversation{}, fmt.Errorf("session %s: %w: %w", id, ErrUnreadable, err)
	}
	conv.SessionID = id
	return conv, nil
}

// ChangeSession deletes or summarizes a conversation: change is [subjects.SessionDelete] or [subjects.SessionCompact].
// A deletion includes the turns of the committee. ctx must have a deadline. A [subjects.Fault] says why nothing, or not
// all of it, was changed.
func (c *Client) ChangeSession(ctx context.Context, id, change string) (subjects.SessionChanged, error) {
	req := subjects.SessionChange{SessionID: id, Change: change}
	_, missing := c.readConversation(ctx, conversations, id)
	said, none := c.readConversation(ctx, deliberations, id)
	done := subjects.SessionChanged{SessionID: id, Change: change}
	hasSaid := change == subjects.SessionDelete && none == nil && len(said.Turns)+said.Dropped > 0
	if !hasSaid || !errors.Is(missing, ErrNotFound) {
		var err error
		if done, err = actor.Ask(ctx, c.out, subjects.SessionChangeService, req); err != nil || !hasSaid {
			return done, err
		}
	}
	more, err := actor.Ask(ctx, c.out, subjects.SessionChangeCommittee, req)
	done.Turns += more.Turns
	return done, err
}

// BranchSession sets the turns of a conversation from the question query on aside, [subjects.SessionBranch], or
// switches to the branch whose first question is query, [subjects.SessionSwitch]. ctx must have a deadline. A
// [subjects.Fault] says why nothing was changed.
func (c *Client) BranchSession(ctx context.Context, id, change, query string) (subjects.SessionChanged, error) {
	return actor.Ask(ctx, c.out, subjects.SessionChangeService, subjects.SessionChange{
		SessionID: id, Change: change,
		QueryID: query,
	})
}

// FindSession returns the complete id of the stored session with this id, or with this prefix of at least [IDPrefix]
// characters. None is [ErrNotFound], several are an [*AmbiguousError]. The session itself is not read.
func (c *Client) FindSession(ctx context.Context, id string) (string, error) {
	ids, err := c.SessionIDs(ctx)
	if err != nil {
		return "", err
	}
	return findID("session", id, ids)
}

// ErrNoAnswer means that a session exists and no answer is in it. It is an [ErrNotFound].
var ErrNoAnswer = fmt.Errorf("answer %w", ErrNotFound)

// LastTurn returns the last turn of a session, given by id or prefix, and the session's complete id. It is
// [ErrNotFound] when there is no such session, and [ErrNoAnswer] when it has no turn; several are an [*AmbiguousError].
// With an error the id is as far as it was resolved.
func (c *Client) LastTurn(ctx context.Context, session string) (subjects.Turn, string, error) {
	id, err := c.FindSession(ctx, session)
	if err != nil {
		return subjects.Turn{}, session, err
	}
	conv, err := c.Session(ctx, id)
	switch {
	case err != nil:
		return subjects.Turn{}, id, err
	case len(conv.Turns) == 0:
		return subjects.Turn{}, id, fmt.Errorf("session %s: %w", id, ErrNoAnswer)
	}
	return conv.Turns[len(conv.Turns)-1], id, nil
}

// SetSession replaces the override of a session, or only reads it with Show, and returns the one that the broker says
// holds. It may differ from the one requested: the caller compares.
func (c *Client) SetSession(ctx context.Context, set subjects.SessionConfig) (subjects.SessionConfig, error) {
	return request(ctx, c, brokerTimeout, subjects.SessionConfigService, set)
}

const (
	retryWords = 1000 // runes of feedback that go with a retried question
	goodGrade  = 4    // the critic's feedback on an answer with this grade is praise and would contradict the retry
)

// RetryText is the question of a turn for another attempt: the user's own words, the request to do better, and the
// criticism of the answer. The user's feedback is included when the reward is negative, the critic's when the grade is
// below [goodGrade] and the answer is trusted: feedback on an answer with untrusted content may repeat that content.
func RetryText(t subjects.Turn) string {
	question := subjects.UserText(t.Query) + "\n\n" + subjects.RetryInstruction
	g := t.Grades
	if g == nil {
		return question
	}
	if g.Words != "" && g.Reward < 0 {
		question += " I said of it: " + shorten(g.Words, retryWords)
	}
	if g.Feedback != "" && g.Critic < goodGrade && t.Labels != nil && t.Labels.Trust == subjects.Trusted {
		question += " A critic said of it: " + shorten(g.Feedback, retryWords)
	}
	return question
}

// shorten puts text on one line of at most n runes, of which the last three are "..." when it was cut. Invisible runes,
// also line breaks and tabs, become U+FFFD. n must be at least 3.
func shorten(s string, n int) string {
	s = strings.Join(strings.Fields(text.ReplaceHidden(s, func(rune) rune { return '\uFFFD' })), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-3]) + "..."
	}
	return s
}

// QuestionGrants returns what each question of a conversation permits after untrusted content, by query id, as the
// broker announced it. A question is missing when no tool was used for it, when its event is no longer stored, and when
// the event is about another session.
func (c *Client) QuestionGrants(ctx context.Context, conv subjects.Conversation) (map[string][]subjects.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	out := map[string][]subjects.Grant{}
	for _, t := range conv.Turns {
		stored, err := subjects.QueryGrantsEvent.StoredAs(accountBroker, t.QueryID)
		if err != nil {
			continue // no id of a question: nothing is stored under it
		}
		e, found, err := c.EventFrom(ctx, 1, stored)
		if err != nil {
			return nil, fmt.Errorf("reading what a question permits: %w", err)
		}
		var g subjects.Grants
		if found && e.Decode(&g) && g.SessionID == conv.SessionID {
			out[t.QueryID] = g.Grants
		}
	}
	return out, nil
}

// SessionContext returns what the model gets with the next question of a session.
func (c *Client) SessionContext(ctx context.Context, session string) (subjects.SessionContext, error) {
	return request(ctx, c, readTimeout, subjects.SessionContextService,
		subjects.SessionContextRequest{SessionID: session})
}
