package client

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/text"
	"conclave/subjects"
)

// SessionMatch is a session with turns that have all words of a search.
type SessionMatch struct {
	SessionSummary
	Found   int           // turns that have the words
	Latest  subjects.Turn // the last of these
	Excerpt string        // of Latest, around a word, on one line
}

const (
	searchedAtOnce = 8   // sessions that are read at the same time
	excerptBefore  = 40  // bytes before the word
	maxExcerpt     = 160 // bytes
)

// SearchSessions finds sessions in which a question with its answer, archived ones too, has all words, whatever their
// case and accents: last used first, and the search ends with at least most of them, or with ctx. left is the number of
// sessions that were not searched, among them those that cannot be read. Turns that were set aside are not searched.
func (c *Client) SearchSessions(ctx context.Context, words string, most int) (found []SessionMatch, left int,
	err error,
) {
	wanted := strings.Fields(text.Fold(words))
	all, unread, err := c.Sessions(ctx, math.MaxInt, nil)
	if err != nil || len(wanted) == 0 {
		return nil, 0, err
	}
	for len(all) > 0 && len(found) < most && ctx.Err() == nil {
		part := all[:min(searchedAtOnce, len(all))]
		matches, failed := make([]SessionMatch, len(part)), make([]bool, len(part))
		var reading sync.WaitGroup
		for i, s := range part {
			reading.Go(func() {
				conv, _, err := c.WholeSession(ctx, s.ID)
				matches[i] = matchSession(s, conv.Turns, wanted)
				// A session whose first question is being answered has no conversation.
				failed[i] = err != nil && !errors.Is(err, ErrNotFound)
			})
		}
		reading.Wait()
		for i, m := range matches {
			if failed[i] {
				left++
			} else if m.Found > 0 {
				found = append(found, m)
			}
		}
		all = all[len(part):]
	}
	return found, left + len(all) + unread, nil
}

// matchSession finds the turns of a session that have all words, which are folded.
func matchSession(s SessionSummary, turns []subjects.Turn, words []string) SessionMatch {
	m := SessionMatch{SessionSummary: s}
	for _, t := range turns {
		whole := t.Query + "\n" + t.Answer
		folded := text.Fold(whole)
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(folded, w) }) {
			m.Found, m.Latest = m.Found+1, t
			m.Excerpt = excerpt(whole, words)
		}
	}
	return m
}

// excerpt returns the part of a text around the last of the words, or its beginning where folding moved it.
func excerpt(s string, words []string) string {
	at := -1
	if lower := strings.ToLower(s); len(lower) == len(s) {
		at = strings.Index(lower, words[len(words)-1])
	}
	if at <= excerptBefore {
		return text.OneLine(s, maxExcerpt)
	}
	from := at - excerptBefore
	if blank := strings.IndexAny(s[from:at], " \n"); blank >= 0 {
		from += blank + 1
	} else {
		from = at
	}
	return "… " + text.OneLine(s[from:], maxExcerpt)
}
