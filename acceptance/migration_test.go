package acceptance

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// The files in testdata were made by the build before this one, with keys of their own: two runs, the first with the
// built-in demo model and the second with a scripted model server; sessions notes and travel, memories, ratings,
// grades, an override and an approval. previous_build.tar.gz is the data folder. The event log drops events after
// ninety days, so previous_events.jsonl has one stored event of each kind.

// unpackPreviousData unpacks the data folder of the previous build.
func unpackPreviousData(t *testing.T) bus.Home {
	t.Helper()
	home := newHome(t)
	f, err := os.Open(filepath.Join("testdata", "previous_build.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return home
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(filepath.Dir(home.Data), filepath.FromSlash(h.Name))
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(name, 0o700)
		} else {
			var data []byte
			if data, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(name, data, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDataOfPreviousBuildIsRead starts this build on a data folder of the previous one.
func TestDataOfPreviousBuildIsRead(t *testing.T) {
	t.Parallel()
	home := unpackPreviousData(t)
	var logged bytes.Buffer
	r, err := settings(t, "memory.model", "false", "system.gateway.listen", "127.0.0.1:0").Start(t.Context(), home,
		slog.New(slog.NewTextHandler(&logged, nil)), config.Actors...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		down(t, r)
		if !strings.Contains(logged.String(), "the data folder was upgraded") { // it has no version
			t.Errorf("the log does not say that the data was upgraded: %s", &logged)
		}
	})
	user := dialUser(t, r.Bus)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()

	t.Run("sessions are listed", func(t *testing.T) {
		ids, err := user.SessionIDs(ctx)
		if err != nil || !slices.Equal(ids, []string{"notes", "travel"}) {
			t.Fatalf("%v, %v", ids, err)
		}
	})
	t.Run("history is read", func(t *testing.T) {
		for session, want := range map[string][]string{
			"notes": {"What is the capital of France?", "What did I ask before?", "Remember that my cat is called " +
				"Minka"},
			"travel": {"What is the capital of Portugal?", "What time is it in Tokyo?"},
		} {
			conversation, err := user.Session(ctx, session)
			var asked []string
			for _, turn := range conversation.Turns {
				asked = append(asked, turn.Query)
				if turn.Answer == "" {
					t.Errorf("%s: no answer to %q", session, turn.Query)
				}
			}
			if err != nil || !slices.Equal(asked, want) {
				t.Errorf("%s: %v, %v", session, asked, err)
			}
		}
	})
	t.Run("override holds", func(t *testing.T) {
		set, err := user.SetSession(ctx, subjects.SessionConfig{SessionID: "notes", Show: true})
		if err != nil || set.Override != subjects.OverrideRelax {
			t.Errorf("%+v, %v", set, err)
		}
	})
	t.Run("memory finds entries", func(t *testing.T) {
		reply, err := user.SearchMemory(ctx, subjects.MemoryQuery{Query: "Where does my sister Anna live?"})
		if err != nil || !slices.ContainsFunc(reply.Hits, func(h subjects.MemoryHit) bool {
			return strings.Contains(h.Entry.Name, "Bremen")
		}) {
			t.Errorf("%+v, %v", reply.Hits, err)
		}
		facts, _, err := user.ListMemories(ctx, subjects.MemoryAdminRequest{Kind: subjects.KindFact, Whole: true}, 0)
		if err != nil || len(facts) != 4 {
			t.Fatalf("%d facts, %v", len(facts), err)
		}
		bySource := map[subjects.Source]int{}
		for _, e := range facts {
			bySource[e.Provenance.Source]++
		}
		if bySource[subjects.SourceUser] != 3 {
			t.Errorf("sources %v", bySource)
		}
	})
	t.Run("audit verifies and continues", func(t *testing.T) {
		before := verified(t, home, r.Bus).Records
		if before < 198 {
			t.Errorf("%d records, the previous build wrote 198", before)
		}
		calls(t, r.Bus, 1)
		if after := verified(t, home, r.Bus).Records; after <= before {
			t.Errorf("%d records after a call, %d before", after, before)
		}
	})
	t.Run("questions are answered in an old session", func(t *testing.T) {
		q, err := user.Ask(ctx, client.Question{Session: "notes", Text: "What did I ask before?"})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		response, err := q.Wait()
		if err != nil || !strings.Contains(response.Answer, "Minka") {
			t.Errorf("%q, %v", response.Answer, err)
		}
	})
}

// TestEventsOfPreviousBuildDecode decodes recorded events as strictly as an actor does that consumes them.
func TestEventsOfPreviousBuildDecode(t *testing.T) {
	t.Parallel()
	payloads := map[string]func() any{
		subjects.AgentStateEvent.LiveSubject():       func() any { return &subjects.AgentState{} },
		subjects.ResponseGeneration.Name:             func() any { return &subjects.Response{} },
		subjects.AnswerDialog.Name:                   func() any { return &subjects.Dialog{} },
		subjects.CritiqueResult.Name:                 func() any { return &subjects.Critique{} },
		subjects.PairwiseResult.Name:                 func() any { return &subjects.Pairwise{} },
		subjects.UserFeedback.Name:                   func() any { return &subjects.Feedback{} },
		subjects.RewardEvent.Name:                    func() any { return &subjects.Reward{} },
		subjects.MemoryStored.Name:                   func() any { return &subjects.MemoryEvent{} },
		subjects.MemoryAnnotated.Name:                func() any { return &subjects.MemoryEvent{} },
		subjects.ApprovalRequestEvent.LiveSubject():  func() any { return &subjects.ApprovalRequest{} },
		subjects.ApprovalDecisionEvent.LiveSubject(): func() any { return &subjects.ApprovalReply{} },
		subjects.ToolRequestEvent.LiveSubject():      func() any { return &subjects.ToolRequest{} },
		subjects.ToolResultEvent.LiveSubject():       func() any { return &subjects.ToolResult{} },
	}
	f, err := os.Open(filepath.Join("testdata", "previous_events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e client.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		for pattern, payload := range payloads {
			if _, ok := subjects.Match(pattern, e.Subject); !ok {
				continue
			}
			seen[pattern]++
			if err := strict.DecodeJSON(e.Body, payload()); err != nil {
				t.Errorf("%s of %s: %v", e.Subject, e.From, err)
			}
		}
	}
	if err := lines.Err(); err != nil || len(seen) != len(payloads) {
		t.Errorf("decoded %v, %v", seen, err)
	}
}
