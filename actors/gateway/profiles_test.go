package gateway_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
)

// Profiles tell how the process works inside: they are off unless the process turns them on, need the credential then,
// and are served on this machine only.
func TestProfiles(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	off := startGateway(t, b, setup{})
	on := startGateway(t, b, setup{
		Config: gateway.Config{Hosts: []string{"conclave.example"}},
		change: func(g *gateway.Gateway) {
			g.Counters = func() map[string]int64 { return map[string]int64{"subscriptions": 7} }
		},
	})
	paths := []string{
		"/debug/counters", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine?debug=1",
		"/debug/pprof/mutex",
	}
	for _, path := range paths {
		if status, _, body := off.do("GET", path, ""); status != http.StatusNotFound {
			t.Errorf("off: %s is %d %s", path, status, body)
		}
		if status, _, body := on.do("GET", path, "", "Authorization",
			"Bearer wrong"); status != http.StatusUnauthorized {
			t.Errorf("without the credential: %s is %d %s", path, status, body)
		}
		if status, _, body := on.do("GET", path, "", "Host", "conclave.example"); status != http.StatusForbidden {
			t.Errorf("through a proxy: %s is %d %s", path, status, body)
		}
		if status, _, body := on.do("GET", path, ""); status != http.StatusOK || body == "" {
			t.Errorf("with the credential: %s is %d %s", path, status, body)
		}
	}
	if status, _, _ := on.do("GET", "/debug/pprof/cmdline", ""); status != http.StatusNotFound {
		t.Errorf("the command line is %d", status)
	}
	_, _, body := on.do("GET", "/debug/counters", "")
	var counters map[string]int64
	if err := json.Unmarshal([]byte(body), &counters); err != nil || counters["subscriptions"] != 7 ||
		counters["goroutines"] == 0 || counters["heap_objects"] == 0 {
		t.Errorf("the counters are %s, %v", body, err)
	}

	cfg := defaultConfig(gateway.Config{Listen: "0.0.0.0:0", TokenFile: tokenFile(t, token, 0o600)})
	_, err := actor.Supervise(t.Context(),
		actor.Spec{Name: "gateway", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
			g := gateway.New(cfg, nc)
			g.Counters = func() map[string]int64 { return nil }
			return g, nil
		}}, b.Dial, actor.Config{})
	if err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("started on every address: %v", err)
	}
}
