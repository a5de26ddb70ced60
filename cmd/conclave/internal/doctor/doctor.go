// Package doctor checks an installation and names a fix for each problem. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/damage"
	"conclave/subjects"
)

// Levels of a check.
const (
	LevelOK   = "ok"
	LevelWarn = "warn" // works, but something is missing
	LevelFail = "fail" // conclave doctor exits with 1
)

// Check is the result of one check.
type Check = subjects.DoctorCheck

// fast keeps a check short when the server does not answer.
var fast = nats.Timeout(2 * time.Second)

const (
	requestTimeout   = 5 * time.Second
	auditReadTimeout = 10 * time.Second
	seeLog           = "see the log of conclave up"
	startAgain       = "restart conclave up, or run conclave provision on a stand-alone server"
)

// examination collects checks.
type examination struct {
	*cli.App
	cfg    config.Config // the shipped one when the user's is invalid
	checks []Check
}

// add, ok, warn and fail add a check. fix is the command or action that solves the problem.
func (x *examination) add(name, level, fix, format string, v ...any) {
	x.checks = append(x.checks, Check{Name: name, Level: level, Text: fmt.Sprintf(format, v...), Fix: fix})
}

func (x *examination) ok(name, format string, v ...any) { x.add(name, LevelOK, "", format, v...) }

func (x *examination) warn(name, fix, format string, v ...any) {
	x.add(name, LevelWarn, fix, format, v...)
}

func (x *examination) fail(name, fix, format string, v ...any) {
	x.add(name, LevelFail, fix, format, v...)
}

// Run runs every check and returns the results in order. It changes nothing. cfgErr is the error of loading cfg; it is
// a failed check, and the checks of the settings are left out then. The checks of actors are left out when the system
// does not run.
func Run(ctx context.Context, a *cli.App, cfg config.Config, cfgErr error) []Check {
	x := &examination{App: a, cfg: cfg}
	x.checkClock()
	x.checkFolders()
	x.checkKeys()
	if cfgErr != nil {
		x.fail("config", "correct the file; without it the shipped settings are used (a manifest.yaml also needs "+
			"manifest.last.yaml in the data folder removed)", "%s", term.OneLine(cfgErr.Error()))
		x.cfg = a.NamingConfig()
	} else {
		x.ok("config", "valid%s", OwnFiles(a.Home.Config))
		x.checkManifest(cfg)
		x.checkKeyring(cfg)
		x.checkCredentials(ctx, cfg)
		x.checkWeb(ctx, cfg)
		x.checkSandbox(cfg)
		x.checkOllamaCloud(ctx, cfg.Models.Ollama)
		x.checkHTTP(ctx, cfg)
		x.checkBackups(cfg)
	}
	x.checkEnvironment()
	x.checkDisk()
	x.checkDamage()
	x.checkAnchors()
	x.checkNATSTool()
	x.checkSystem(ctx)
	return x.checks
}

// CheckStart returns the models of a system that was started with cfg, and its problems: of models, approvals,
// credentials, web search and the nats tool, as far as they are known within two seconds.
func CheckStart(ctx context.Context, a *cli.App, cfg config.Config, b *bus.Bus) (list subjects.ModelList,
	problems []Check,
) {
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	x := &examination{App: a, cfg: cfg}
	if c, done := x.connect(b); c != nil {
		defer done()
		list = x.checkModels(limited, c, cfg.Generator.RespondentB.Enabled)
		x.checkApprovals(limited, c)
	}
	x.checkCredentials(limited, cfg)
	x.checkWeb(limited, cfg)
	x.checkNATSTool()
	if ctx.Err() != nil { // after an interrupt nothing is known
		return list, nil
	}
	return list, slices.DeleteFunc(x.checks, func(c Check) bool { return c.Level == LevelOK })
}

// CountFailed counts the checks that failed.
func CountFailed(checks []Check) (n int) {
	for _, c := range checks {
		if c.Level == LevelFail {
			n++
		}
	}
	return n
}

var levelColours = map[string]string{LevelOK: term.Green, LevelWarn: term.Yellow, LevelFail: term.Red}

// Print prints checks, a line each: level, name, text and fix, sanitized.
func Print(w io.Writer, checks []Check) {
	for _, c := range checks {
		text := c.Text
		if c.Fix != "" {
			text += ": " + c.Fix
		}
		fmt.Fprintf(w, "%s  %-10s %s\n", term.Paint(w, levelColours[c.Level], fmt.Sprintf("%-4s", c.Level)), c.Name,
			term.Plain(text))
	}
}

// OwnFiles names the configuration files that exist in the folder, in brackets after a blank, or says that there are
// none.
func OwnFiles(dir string) string {
	var own []string
	for _, name := range config.Files {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			own = append(own, name)
		}
	}
	if own == nil {
		return " (no files: all settings as shipped)"
	}
	return " (" + strings.Join(own, ", ") + ")"
}

// checkSystem checks the running system with the user's key: server, streams, audit log, actors, and those of models,
// memory and approvals whose actor answers. A system that is not running is a warning; the first failure to connect
// ends the check.
func (x *examination) checkSystem(ctx context.Context) {
	b, err := x.Bus()
	switch {
	case errors.Is(err, bus.ErrNotRunning) && x.CheckNoStandalone() != nil:
		x.warn("running", "add --server with its address", "%v", x.CheckNoStandalone())
		return
	case errors.Is(err, bus.ErrNotRunning):
		x.warn("running", "conclave up", "conclave is not running on %s", x.Home.Data)
		return
	case err != nil:
		x.fail("running", "remove the file and start conclave up", "%v", err)
		return
	}
	x.ok("running", "%s", b.URL)
	c, done := x.connect(b)
	if c == nil {
		return
	}
	defer done()
	x.checkEvents(ctx, c)
	x.checkCluster(ctx, c)
	x.checkAuditSpace(ctx)
	x.checkAuditRecords(ctx, b)
	running := x.checkActors(ctx, c)
	if slices.Contains(running, "model") {
		x.checkModels(ctx, c, slices.Contains(running, subjects.RespondentB))
	}
	if slices.Contains(running, "memory") {
		x.checkMemory(ctx, c)
	}
	if slices.Contains(running, "broker") {
		x.checkApprovals(ctx, c)
		x.checkAddedTools(ctx, c)
	}
	if slices.Contains(running, subjects.Registry) {
		x.checkMachines(ctx, c)
	}
	x.checkContexts(b.URL)
}

// connect connects with the user's key. Without a connection the client is nil.
func (x *examination) connect(b *bus.Bus) (c *client.Client, done func()) {
	nc, err := b.Dial("user", fast)
	if err == nil {
		c, err = client.New(nc)
	}
	if err != nil {
		x.fail("server", "see the log of conclave up or nats-server", "%v", err)
		return nil, nil
	}
	x.ok("server", "connected with the user's key, nats-server %s", nc.ConnectedServerVersion())
	return c, nc.Close
}

// checkEvents warns when an account has used more than half of its quota of events of the last day: an agent alone gets
// no more of the broker's, and an account that is over its quota gets an error for each event.
func (x *examination) checkEvents(ctx context.Context, c *client.Client) {
	log, err := c.EventStatus(ctx)
	var quotas map[string]client.StreamStatus
	if err == nil {
		quotas, err = c.EventQuotas(ctx)
	}
	if err != nil {
		x.fail("streams", startAgain, "%v", err)
		return
	}
	var much []string
	for _, name := range slices.Sorted(maps.Keys(quotas)) {
		if s := quotas[name]; s.Max > 0 && s.Bytes > s.Max/2 {
			much = append(much, fmt.Sprintf("%s %d %%", name, s.Bytes*100/s.Max))
		}
	}
	text := fmt.Sprintf("%d events, %s", log.Messages, term.Bytes(log.Bytes))
	if len(much) > 0 {
		x.warn("streams", "see with conclave tap which account publishes so much; a larger event_max in system.yaml "+
			"gives more per day", "%s; of the quota of a day are used: %s", text, strings.Join(much, ", "))
		return
	}
	x.ok("streams", "%s", text)
}

// coreActors are those without which no question is answered, or no tool is called.
var coreActors = []string{"broker", "model", "router", subjects.Generator}

// checkActors fails when an expected actor or tool does not answer, and returns the names of those that do, sorted.
// Where actors run in processes of their own, as in containers, one that is not of [coreActors] may be left out by
// design, and is a warning.
func (x *examination) checkActors(ctx context.Context, c *client.Client) []string {
	pings, err := c.Ping(ctx, "")
	var running, missing, absent []string
	r, notRunning := x.Home.ReadRunning()
	// that of a conclave up without --bus-only, and not a server that --server names
	inOneProcess := x.Server == "" && notRunning == nil && slices.Contains(r.Actors, "broker")
	for _, p := range pings {
		running = append(running, p.Name)
		if notice := p.Metadata[damage.NoticeKey]; notice != "" && !inOneProcess {
			x.fail("data", damage.Remedy+" in that folder", "the data folder of %s: %s", p.Name, notice)
		}
	}
	slices.Sort(running)
	running = slices.Compact(running)
	for _, n := range append(x.cfg.EnabledActors(), x.cfg.ToolNames()...) {
		switch {
		case n == "tools", slices.Contains(running, n):
		case inOneProcess || slices.Contains(coreActors, n):
			missing = append(missing, n)
		default:
			absent = append(absent, n)
		}
	}
	switch {
	case err != nil:
		x.fail("actors", seeLog, "%v", err)
	case len(missing) > 0:
		x.fail("actors", seeLog+", or start them with conclave actor "+strings.Join(missing, " "), "no answer from %s",
			strings.Join(missing, ", "))
	case len(absent) > 0:
		x.warn("actors", "start them with conclave actor "+strings.Join(absent, " ")+" unless they are left out by "+
			"design", "answers from %s; none from %s", strings.Join(running, ", "), strings.Join(absent, ", "))
	default:
		x.ok("actors", "answers from %s", strings.Join(running, ", "))
	}
	return running
}

// checkAuditSpace warns when a writer's part of the audit log is 80 % full, because its actor does nothing when it is
// full. It connects with the auditor's key and fails when that, or the stream, is missing.
func (x *examination) checkAuditSpace(ctx context.Context) {
	c, done, err := x.Connect("auditor", fast)
	if err != nil {
		x.fail("audit", "see the log of conclave up or nats-server", "%v", err)
		return
	}
	defer done()
	parts, err := c.AuditStatus(ctx)
	if err != nil {
		x.fail("audit", startAgain, "%v", err)
		return
	}
	var used, most int64
	var nearly []string
	for _, w := range subjects.AuditWriters {
		used, most = used+parts[w].Bytes, most+parts[w].Max
		if s := parts[w]; s.IsNearlyFull() {
			nearly = append(nearly, fmt.Sprintf("%s %d %%", w, s.Bytes*100/s.Max))
		}
	}
	text := fmt.Sprintf("%s of %s used", term.Bytes(used), term.Bytes(most))
	if len(nearly) > 0 {
		x.warn("audit", "stop conclave and run conclave audit rotate; an actor whose part of the log is full does "+
			"nothing any more, and without the broker's part every tool call is denied", "%s; nearly full: %s", text,
			strings.Join(nearly, ", "))
		return
	}
	x.ok("audit", "%s", text)
}

// checkAuditRecords warns of problems in the records of the audit log, and when it cannot read the whole log within
// auditReadTimeout. The anchors are those of this data folder: of a server that is named with --server, and of a
// cluster, only messages that are no records are reported. Sealed logs and witnesses are not compared.
func (x *examination) checkAuditRecords(ctx context.Context, b *bus.Bus) {
	nc, err := b.Dial("auditor", fast)
	if err != nil {
		return // checkAuditSpace has said it
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, auditReadTimeout)
	defer cancel()
	hasAnchors := x.Server == "" && !strings.Contains(b.URL, ",")
	var rep audit.Report
	var src audit.Source
	heads, err := audit.ReadHeads(x.Home.Heads()) // before the log: what is anchored must be in it
	if err == nil || !hasAnchors {
		src, err = bus.NewAuditReader(nc).ReadAll(ctx)
	}
	if err == nil {
		rep, err = audit.Verify(ctx, src, heads, audit.VerifyOptions{Actions: subjects.AuditActions})
	}
	const fix = "run conclave audit verify"
	switch {
	case err != nil:
		x.warn("records", fix, "read %d messages of the audit log, not all: %v", rep.Messages, err)
	case hasAnchors && rep.Bad > rep.Unreadable:
		x.warn("records", fix, "the audit log has %s, first %s", term.Count(rep.Bad, "problem"), rep.First)
	case rep.Unreadable > 0:
		x.warn("records", fix, "%s of the audit log cannot be read", term.Count(rep.Unreadable, "message"))
	default:
		x.ok("records", "%d messages of the audit log can be read", rep.Messages)
	}
}

// checkCluster warns when a stream has a replica that is down or behind: until it is back, another server must not be
// stopped. It adds nothing for a single server.
func (x *examination) checkCluster(ctx context.Context, user *client.Client) {
	status, err := user.CoreCluster(ctx)
	if err == nil && status.Name != "" {
		var auditor *client.Client
		var done func()
		if auditor, done, err = x.Connect("auditor", fast); err == nil {
			defer done()
			var audit client.ClusterStatus
			audit, err = auditor.AuditCluster(ctx)
			status.Streams, status.Behind = status.Streams+audit.Streams, append(status.Behind, audit.Behind...)
		}
	}
	switch {
	case err != nil:
		x.fail("cluster", startAgain, "%v", err)
	case len(status.Behind) > 0:
		x.warn("cluster", "start the missing server, or wait; stop no other server before this check is ok",
			"%d of the replicas are not up to date, first %s", len(status.Behind), status.Behind[0])
	case status.Name != "":
		x.ok("cluster", "every replica of %d streams is up to date", status.Streams)
	}
}

// checkMemory reports how much is remembered and how it is searched, and warns of entries that wait for an embedding or
// for the user's decision. It fails when memory cannot be used, unless it is switched off in the settings.
func (x *examination) checkMemory(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := c.MemoryStatus(ctx)
	var f *subjects.Fault
	switch {
	case errors.As(err, &f):
		if !x.cfg.Memory.Enabled {
			x.ok("memory", "switched off in memory.yaml")
			return
		}
		x.fail("memory", "correct that, then restart conclave up; answers given meanwhile are remembered then", "%s",
			term.OneLine(f.Text))
		return
	case err != nil:
		x.fail("memory", seeLog, "no status: %v", err)
		return
	}
	total := 0
	for _, n := range s.Entries {
		total += n
	}
	x.ok("memory", "%s and %s in %s; conclave memory status shows more", entries(total),
		term.Count(s.Relations, "relation"), term.Bytes(s.Bytes))
	if s.Unembedded > 0 {
		x.checkVectors(s)
	}
	if n := s.States[subjects.MemoryCandidate]; n > 0 {
		x.warn("candidates", "list them with conclave memory list --state candidate, decide with conclave memory "+
			"accept or reject", "%s proposed by agents", entries(n))
	}
}

// checkVectors warns of entries without an embedding, with the cause that memory has seen. s has at least one.
func (x *examination) checkVectors(s subjects.MemoryStatus) {
	without := entries(s.Unembedded) + " without an embedding, found by words only"
	if s.Problem == "" {
		x.warn("vectors", "wait: they are embedded in the background; run conclave doctor again", "%s", without)
		return
	}
	x.warn("vectors", "correct that; memory embeds the entries again by itself, rejected ones after an hour", "%s: %s",
		without, term.OneLine(s.Problem))
}

// entries is a number of memories in words.
func entries(n int) string { return term.Count(n, "entry", "entries") }

// checkMachines warns of machines whose link is down. It adds nothing when no machine has joined.
func (x *examination) checkMachines(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := c.Machines(ctx)
	if err != nil {
		x.fail("machines", seeLog, "%v", err)
		return
	}
	down := client.DescribeLinks(all)
	for _, line := range down {
		x.warn("machines", "see conclave machines", "%s", strings.TrimPrefix(line, "machines: "))
	}
	joined := len(slices.DeleteFunc(all, func(m subjects.MachineStatus) bool { return m.Added.IsZero() }))
	if joined > 0 && len(down) == 0 {
		x.ok("machines", "%s connected", term.Count(joined, "machine"))
	}
}

// checkApprovals warns when calls wait for the user's approval, and fails when the broker does not answer.
func (x *examination) checkApprovals(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	l, err := c.Approvals(ctx, false)
	switch n := len(l.Approvals); {
	case err != nil:
		x.fail("approvals", seeLog, "%s", term.OneLine(cli.BrokerError("approvals", err).Error()))
	case n > 0:
		x.warn("approvals", "list and decide with conclave approve", "%s", view.WaitingCalls(n))
	default:
		x.ok("approvals", "no call waits for your approval; %s remembered", term.Count(len(l.Rules), "decision"))
	}
}
