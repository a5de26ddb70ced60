package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestChaosRollingRestart stops and starts each server of a cluster of three processes in turn, while 50 questions per
// second are asked, each with a tool call, and four processes of actors answer: every question has exactly one answer,
// and the audit log verifies. Then a server is killed.
func TestChaosRollingRestart(t *testing.T) {
	if os.Getenv("CONCLAVE_CHAOS") == "" {
		t.Skip("takes minutes: set CONCLAVE_CHAOS=1")
	}
	p := newInstallation(t)
	if err := os.WriteFile(filepath.Join(p.dir, "config", "conclave", "system.yaml"),
		[]byte(system+"\nbroker: {question_rate: 1000}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var report keysReport
	if err := json.Unmarshal([]byte(p.run(cli.ExitOK, "conclave", "keys", "--json", "--cluster",
		strings.Join(bustest.LoopbackHosts(), ","))), &report); err != nil {
		t.Fatal(err)
	}
	servers := make([]*process, len(report.Servers))
	for i, s := range report.Servers {
		servers[i] = p.clusterServer(t, s)
	}
	provision := p.begin("conclave", "provision")
	<-provision.done
	if !strings.Contains(provision.stderr.String(), "The streams are created") {
		t.Fatal(provision.stderr)
	}
	for _, actors := range [][]string{
		{"broker", "secrets"},
		{"tools"},
		{"model", "memory", "critic", "reward", "router"},
		{"generator"},
		{"generator"},
	} {
		c := p.begin(built(t, "conclave"), append([]string{"actor"}, actors...)...)
		p.must(c.stdout, `"pid"`)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%v: %s", actors, lastBytes(c.stderr.String(), 4000))
			}
		})
	}
	home := bus.Home{Data: p.data, Config: filepath.Join(p.dir, "config", "conclave")}
	b := home.Connect(home.ClusterURL(), nil)
	nc, err := b.Dial("user")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		t.Fatal(err)
	}

	stop := make(chan struct{})
	var asking sync.WaitGroup
	var asked, rejected atomic.Int64
	asking.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				id := actor.NewID()
				q := subjects.Query{
					SessionID: fmt.Sprintf("s%d", n), QueryID: fmt.Sprintf("q%d", n),
					Query: "What time is it in Berlin?",
				}
				for actor.EmitOnce(ctx, out, subjects.QueryReceived, id, q) != nil {
					if ctx.Err() != nil {
						rejected.Add(1)
						return
					}
					time.Sleep(100 * time.Millisecond)
				}
				asked.Add(1)
			})
		}
	})
	for round := range 2 {
		for i, s := range report.Servers {
			bustest.AwaitReplicas(t, b)
			began := time.Now()
			signal := os.Signal(syscall.SIGTERM)
			if round == 1 && i > 0 {
				break
			}
			if round == 1 {
				signal = syscall.SIGKILL
			}
			if _, err := servers[i].end(signal); err != nil {
				t.Fatal(err)
			}
			servers[i] = p.clusterServer(t, s)
			t.Logf("%s: %v and started in %s; %d asked", s.Name, signal, time.Since(began).Round(time.Millisecond),
				asked.Load())
		}
	}
	bustest.AwaitReplicas(t, b)
	close(stop)
	asking.Wait()
	if n := rejected.Load(); n > 0 {
		t.Errorf("%d questions were not accepted within a minute", n)
	}
	answers, failed := p.countAnswers(t, b, int(asked.Load()))
	t.Logf("%d questions, %d with an answer, %d with an honest failure", asked.Load(), len(answers)-failed, failed)
	for q, n := range answers {
		if n != 1 {
			t.Errorf("%s has %d answers", q, n)
		}
	}
	if len(answers) != int(asked.Load()) || failed > 0 {
		t.Errorf("%d of %d questions have an answer, %d of them failed", len(answers), asked.Load(), failed)
	}
	p.run(cli.ExitOK, "conclave", "audit", "verify")
}

func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }

// clusterServer starts a server of a cluster as "conclave keys --cluster" says.
func (p *installation) clusterServer(t *testing.T, s bus.ClusterServer) *process {
	t.Helper()
	c := p.begin("sh", "-c", fmt.Sprintf("cd '%s' && set -a && . ./nats.env && set +a && exec '%s' -c nats.conf",
		s.Folder, built(t, "nats-server")))
	p.must(c.stderr, `Server is ready`)
	return c
}

// countAnswers waits until there are want answers, or none has come for a minute, and returns how many each question
// has, and how many of the answers are failures.
func (p *installation) countAnswers(t *testing.T, b *bus.Bus, want int) (answers map[string]int, failed int) {
	t.Helper()
	nc, err := b.Dial("user")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	answers = map[string]int{}
	quiet := time.Now()
	for next := uint64(1); time.Since(quiet) < time.Minute &&
		(len(answers) < want || time.Since(quiet) < 10*time.Second); {
		s, err := c.EventStatus(t.Context())
		if err != nil || next > s.Last {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		for ; next <= s.Last; next++ {
			e, ok, err := c.Event(t.Context(), next)
			if err != nil {
				break
			}
			if !ok || !strings.HasSuffix(e.Subject, "response.generation") {
				continue
			}
			var r subjects.Response
			if !e.Decode(&r) {
				t.Errorf("event %d is no response", next)
				continue
			}
			answers[r.QueryID]++
			quiet = time.Now()
			if r.Error != nil || !strings.Contains(r.Answer, "get_datetime says") {
				failed++
				if failed < 20 {
					t.Logf("%s: %v %q", r.QueryID, r.Error, r.Answer)
				}
			}
		}
	}
	return answers, failed
}
