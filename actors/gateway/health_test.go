package gateway_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/damage"
	"conclave/pkg/datatest"
)

// damagedActor tells of damage in a data folder of its own.
type damagedActor struct{ notice string }

func (d *damagedActor) Name() string          { return "memory" }
func (d *damagedActor) Routes() []actor.Route { return nil }
func (d *damagedActor) Describe() map[string]string {
	return map[string]string{damage.NoticeKey: d.notice}
}

// TestDamageInHealth: the user reads what is damaged in the data folder and in those of other processes, each once and
// with what to do; a client learns only that something is.
func TestDamageInHealth(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	phone, token := newClient("phone", time.Unix(1, 0))
	startActor(t, b, registry)
	startActor(t, b, &damagedActor{"stream QUERIES: cut off\nmemory: 3 writes are lost"})
	data := datatest.Dir(t)
	w := startGateway(t, b, setup{change: func(g *gateway.Gateway) { g.Data, g.OtherData = data, true }})
	w.setClients(registry, token, true, phone)
	about := func(header ...string) (out []string) {
		_, _, body := w.do("GET", "/health", "", header...)
		for _, line := range read[gateway.Health](t, body).Degraded {
			if strings.HasPrefix(line, "data: ") {
				out = append(out, strings.TrimSuffix(line, "; "+damage.Remedy))
			}
		}
		return out
	}
	const lost = "data: memory: 3 writes are lost"
	if got := about(); !slices.Equal(got, []string{"data: stream QUERIES: cut off", lost}) {
		t.Errorf("in another data folder: %q", got)
	}
	if err := damage.Add(data, damage.Report{Text: "stream QUERIES", Restored: "cut off"}, damage.Report{
		Text: "stream QUERIES: cut off",
	}); err != nil {
		t.Fatal(err)
	}
	if got := about(); !slices.Equal(got, []string{
		"data: stream QUERIES; cut off", "data: stream QUERIES: cut off", lost,
	}) {
		t.Errorf("in both: %q", got)
	}
	if got := about("Authorization", "Bearer "+token); !slices.Equal(got, []string{
		"data: stored data is damaged",
	}) {
		t.Errorf("a client reads %q", got)
	}
	if err := os.WriteFile(filepath.Join(data, "damage.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := about(); len(got) == 0 || got[0] != "data: the list of damage cannot be read" {
		t.Errorf("with a list that cannot be read: %q", got)
	}
}
