package bus_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// The requests of nats stream ls, kv ls, account info and server check connection, with the keys and the inbox prefix
// of the contexts, are answered; a denied one would take until its timeout.
func TestNATSCommandLineIsAnswered(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	for role, prefix := range map[string]string{"user": bus.CoreAPI, "auditor": bus.AuditAPI} {
		nc := b.Connect(role, nats.CustomInboxPrefix(subjects.CLIInboxPrefix))
		for _, subject := range []string{prefix + ".STREAM.LIST", prefix + ".STREAM.NAMES", prefix +
			".INFO", "$SYS.REQ.USER.INFO"} {
			m, err := nc.Request(subject, nil, testTimeout)
			var reply struct {
				Error any `json:"error"`
			}
			if err != nil || json.Unmarshal(m.Data, &reply) != nil || reply.Error != nil {
				t.Errorf("%s %s: %+v %v", role, subject, m, err)
			}
		}
		own := nc.NewRespInbox()
		sub, err := nc.SubscribeSync(own)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish(own, []byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := sub.NextMsg(testTimeout); err != nil {
			t.Errorf("%s: its own inbox: %v", role, err)
		}
	}
}

// With the key of the user or the auditor nobody can forge a reply to another program of it.
func TestInboxOfOtherProgramIsDenied(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	for _, role := range []string{"user", "auditor"} {
		denials := make(chan error, 1)
		nc := b.Connect(role, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denials <- err }))
		if err := nc.Publish(b.Connect(role).NewInbox(), []byte("forged")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-denials:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Error(err)
			}
		case <-time.After(testTimeout):
			t.Errorf("%s may publish to the inbox of another program", role)
		}
	}
}

// lockedBuffer is a log that the server writes concurrently.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A denied subject is one short line in the log, and a flood of them a few, with the number of the others when the
// server stops. A flood of one account does not hide the denials of another.
func TestDenialsAreFewShortLogLines(t *testing.T) {
	t.Parallel()
	keys := bus.Keys{Dir: t.TempDir()}
	roles, _ := subjects.Table().Roles()
	if _, err := keys.Ensure(roles); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	s, err := bus.StartServer(bus.ServerConfig{Store: t.TempDir()}, keys, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(t.Context())
	for _, flood := range []struct {
		role, subject string
		requests      int
	}{
		{"user", "tool.request.run_shell", 50},
		{"auditor", "tool.request.fs_write", 3},
		{"generator", "audit.forged", 25},
	} {
		nc, err := (&bus.Bus{URL: s.URL(), Keys: keys, Server: s}).Dial(flood.role)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for range flood.requests {
			if err := nc.Publish(flood.subject, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil { // the server logs a denial before it reads the next message
			t.Fatal(err)
		}
		if lines := strings.Count(log.String(), flood.subject); lines != min(flood.requests, 5) {
			t.Errorf("%d lines about %d denials of %s:\n%s", lines, flood.requests, flood.role, log.String())
		}
	}
	s.Stop(t.Context())
	text := log.String()
	if strings.Contains(text, "nkey:") || strings.Contains(text, "level=ERROR") {
		t.Errorf("log:\n%s", text)
	}
	if strings.Count(text, "within a minute") != 2 ||
		!strings.Contains(text, "denied: 45 more of user within a minute") ||
		!strings.Contains(text, "denied: 20 more of generator within a minute") {
		t.Errorf("want the numbers of suppressed denials of user and generator:\n%s", text)
	}
}
