package acceptance

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// machinePart is the process of the fault suite that runs a machine which joined the hub, with the assistant's model.
// When the machine cannot be reached, the hub's own model answers.
const (
	machinePart  = "joined machine"
	machineModel = "big"
)

var machineFaults = []fault{
	{"joined machine killed", 4, func(h *faultHarness) { h.process(machinePart).restart() }},
	{"joined machine killed while its link is cut", 2, func(h *faultHarness) {
		p := h.process(machinePart)
		p.link.Cut()
		h.pause(5, 600)
		p.restart()
		h.pause(5, 600)
		p.link.Heal()
	}},
	{"link of joined machine cut", 4, func(h *faultHarness) {
		h.process(machinePart).link.Cut()
		h.pause(5, 2500)
		h.process(machinePart).link.Heal()
	}},
	{"link of joined machine frozen", 4, func(h *faultHarness) {
		h.process(machinePart).link.Freeze()
		h.pause(50, 4000)
		h.process(machinePart).link.Heal()
	}},
}

// startJoinedMachine invites a machine and starts its process, which reaches the hub at address over a link.
func (h *faultHarness) startJoinedMachine(t *testing.T, address string, script scriptserver.Script) *faultProcess {
	t.Helper()
	link := bustest.StartLink(t, address)
	token := inviteMachine(t, h.server.dialBus(),
		subjects.MachineInvite{Machine: "gpu-box", Actors: []string{"model"}})
	token.Address = link.Addr()
	home := newHome(t)
	if err := joinMachine(t, home, token); err != nil {
		t.Fatal(err)
	}
	configure := home.Data + "-config"
	if err := os.MkdirAll(configure, 0o700); err != nil {
		t.Fatal(err)
	}
	h.machineModel = modeltest.New(t, scriptserver.Script{machineModel: script["assistant"]})
	writeFile(t, filepath.Join(configure, "models.yaml"), fmt.Appendf(nil, "ollama: {url: %q, slots: 8}\n",
		h.machineModel.URL))
	p := &faultProcess{
		t: t, names: machinePart, link: link, stderr: &syncBuffer{},
		env: []string{dataEnv + "=" + home.Data},
	}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// runFaultMachine runs a machine that joined until its input ends.
func runFaultMachine(c config.Config, home bus.Home, log *slog.Logger, lines <-chan string) error {
	r, _, err := c.StartMachine(context.Background(), home, log)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	var controls faultControls
	for line := range lines {
		controls.apply(line)
	}
	return r.Stop(context.Background())
}
