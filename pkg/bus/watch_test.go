package bus_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/bus/bustest"
)

// TestWatchOwnMessagesOnce shows that a watcher with the key of the account that publishes receives each message once,
// as the copy of the stored one, also with a subscription to everything. A message as it was published would arrive
// before that copy.
func TestWatchOwnMessagesOnce(t *testing.T) {
	t.Parallel()
	b := startBus(t)
	for _, tt := range []struct{ role, pattern string }{{"user", ""}, {"user", ">"}, {"gateway", ""}} {
		watcher, publisher := bustest.Dial(t, b, tt.role), bustest.Dial(t, b, tt.role)
		for _, subject := range []string{
			"query.received", "query.committee", "query.task", "user.feedback", "query.cancel.q1",
		} {
			pattern := tt.pattern
			if pattern == "" {
				pattern = subject
			}
			sub, err := watcher.SubscribeSync(pattern)
			if err == nil {
				err = watcher.FlushTimeout(testTimeout)
			}
			if err == nil {
				_, err = publisher.Request(subject, []byte(`{"query":"hello"}`), testTimeout)
			}
			if err != nil {
				t.Fatal(err)
			}
			m := &nats.Msg{Subject: nats.InboxPrefix}
			for err == nil && strings.HasPrefix(m.Subject, nats.InboxPrefix) {
				m, err = sub.NextMsg(testTimeout)
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.Subject != subject || m.Header.Get(jetstream.StreamHeader) == "" {
				t.Errorf("%s watches %s and receives %s as published, %v", tt.role, pattern, m.Subject, m.Header)
			}
			_ = sub.Unsubscribe()
		}
	}
}
