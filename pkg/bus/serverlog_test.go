package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The number of suppressed denials is one line per minute and account, also without a further denial, and each minute
// has a budget of its own.
func TestSuppressedDenialsAreCountedEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		l := &serverLog{log: slog.New(slog.NewTextHandler(&text, nil))}
		for _, want := range []int{15, 25} {
			text.Reset()
			for range want + 5 {
				denyPublish(l, "user")
			}
			denyPublish(l, "auditor")
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := strings.Count(text.String(), "may not publish"); n != 6 {
				t.Errorf("%d lines about denials, want 5 and 1:\n%s", n, text.String())
			}
			if strings.Count(text.String(), "within a minute") != 1 ||
				!strings.Contains(text.String(), fmt.Sprintf("denied: %d more of user within a minute", want)) {
				t.Errorf("want one line with the %d suppressed denials:\n%s", want, text.String())
			}
		}
	})
}

// The accounts after the first hundred within a minute share a budget, so that the memory is bounded.
func TestBudgetsOfDenialsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		l := &serverLog{log: slog.New(slog.NewTextHandler(&text, nil))}
		for i := range 200 {
			denyPublish(l, fmt.Sprintf("account%d", i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(text.String(), "may not publish"); n != 105 ||
			!strings.Contains(text.String(), "denied: 95 more of other accounts within a minute") {
			t.Errorf("%d lines about denials, want 105 and the number of the others:\n%s", n, text.String())
		}
	})
}

// denyPublish logs a denial as the NATS server does.
func denyPublish(l *serverLog, account string) {
	l.Errorf("127.0.0.1:1 - cid:7 - %q - Publish Violation - Subject %q", account+"/nkey:UABC",
		"tool.request.run_shell")
}
