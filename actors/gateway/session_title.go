package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/client"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Times of the titles that a model writes.
const (
	titleInterval = time.Minute
	titleIdle     = 2 * time.Minute // since the last answer of any session
	titleAge      = 7 * 24 * time.Hour
	titleTimeout  = 2 * time.Minute
)

// titlePrompt asks for a title. The questions follow.
const titlePrompt = "Write a title of at most six words for a conversation with these questions, in their language. " +
	"Reply with the title only, without quotation marks.\n"

// Bounds of a title: the model reads the first questions, each clipped, and never what others wrote.
const (
	titleQuestions = 3
	titleQuestion  = 500 // bytes
	maxModelTitle  = 60  // runes
	titleTokens    = 60
)

// titleWriter has a model write a title for each session that has none.
type titleWriter struct {
	tried map[string]bool // sessions for which it failed; they keep their first question
}

// writeTitles writes missing titles, one at a time, while nothing is asked, until ctx ends.
func (g *Gateway) writeTitles(ctx context.Context) {
	w := titleWriter{tried: map[string]bool{}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(titleInterval):
		}
		if err := w.writeNext(ctx, g); err != nil && ctx.Err() == nil {
			g.out.LogError(err)
		}
	}
}

// writeNext writes the title of the session without one that was used last. It does nothing while a question is being
// answered, and until titleIdle after the last answer.
func (w titleWriter) writeNext(ctx context.Context, g *Gateway) error {
	ctx, cancel := context.WithTimeout(ctx, titleTimeout)
	defer cancel()
	list, _, err := g.client.Sessions(ctx, maxSessions, nil)
	if err != nil {
		return err
	}
	notes, now := g.readNotes(ctx), g.out.Now()
	id := ""
	for _, s := range list {
		if s.Running || now.Sub(s.Updated) < titleIdle {
			return nil
		}
		_, scheduled := subjects.ScheduleOf(s.ID)
		if id == "" && now.Sub(s.Updated) < titleAge && s.Turns > 0 && !w.tried[s.ID] && notes[s.ID].title() == "" &&
			subjects.ClientOf(s.ID) == "" && !scheduled {
			id = s.ID
		}
	}
	if id == "" {
		return nil
	}
	w.tried[id] = true
	conv, err := g.client.Session(ctx, id)
	if err != nil {
		if errors.Is(err, client.ErrNotFound) {
			return nil
		}
		return err
	}
	title, err := g.askTitle(ctx, conv)
	if err != nil || title == "" {
		return err
	}
	_, err = g.storeNote(ctx, id, func(n sessionNote) sessionNote {
		n.ModelTitle = title
		return n
	})
	return err
}

// askTitle asks the model that writes summaries for a title, in the background; "" = there is none.
func (g *Gateway) askTitle(ctx context.Context, conv subjects.Conversation) (string, error) {
	var prompt strings.Builder
	prompt.WriteString(titlePrompt)
	for _, t := range conv.Turns[:min(len(conv.Turns), titleQuestions)] {
		fmt.Fprintf(&prompt, "- %s\n", text.OneLine(t.Query, titleQuestion))
	}
	demo, think := false, false
	chat := wire.Client{
		Out: g.out.WithIDs(conv.SessionID, ""), Role: subjects.RoleSummaries, Timeout: titleTimeout, Background: true,
		OnDone: func(c subjects.ChatChunk) { demo = c.DemoModel },
	}
	q := model.Request{Messages: []model.Message{{Role: model.User, Content: prompt.String()}}, Think: &think}
	q.Options.Predict = titleTokens
	reply, _, err := model.Collect(chat.Chat(ctx, q))
	if err != nil || demo {
		return "", err
	}
	return cleanTitle(reply.Content), nil
}

// cleanTitle returns the title in a reply: one short line without quotation marks, "" when the reply is none.
func cleanTitle(reply string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(reply), "\n")
	title := makeTitle(strings.Trim(text.OneLine(line, 4*maxTitle), "\"'`*#„“”‘’«» ."))
	if len([]rune(title)) > maxModelTitle {
		return ""
	}
	return title
}
