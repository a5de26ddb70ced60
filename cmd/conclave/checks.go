package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/actors/model"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	llm "conclave/pkg/model"
	"conclave/pkg/model/ollama"
	"conclave/subjects"
)

// Room that the disk of the streams should have, and must have.
const (
	goodRoom  = 1 << 30
	leastRoom = 64 << 20
)

// quickly keeps an examination short where the server does not answer.
var quickly = nats.Timeout(2 * time.Second)

// newest is a moment that has surely passed: a clock before it is wrong.
var newest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (x *examination) clock() {
	now := time.Now()
	if now.Before(newest) {
		x.fail("clock", "set the clock; deadlines and the audit's times depend on it", "the clock says %s", now.Format(time.DateTime))
		return
	}
	x.ok("clock", "%s", now.Format(time.RFC3339))
}

// absent reports whether the system was never started here.
func (x *examination) absent() bool {
	_, err := os.Stat(x.home.Data)
	return errors.Is(err, fs.ErrNotExist)
}

func (x *examination) folders() {
	if x.absent() {
		x.warn("folders", "conclave up makes it", "%s is not there yet", x.home.Data)
		return
	}
	good := true
	for _, d := range []string{x.home.Data, x.home.Config, x.home.Keys().Dir, x.home.Store(), x.home.Heads(), x.home.Sealed()} {
		info, err := os.Stat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist): // made when it is needed
		case err != nil:
			good = false
			x.fail("folders", "make it readable to you", "%v", err)
		case !info.IsDir():
			good = false
			x.fail("folders", "move it away", "%s is not a folder", d)
		case info.Mode().Perm()&0o077 != 0 && d != x.home.Config:
			good = false
			x.fail("folders", "chmod 700 "+shellQuote(d), "%s is open to others (%o)", d, info.Mode().Perm())
		case info.Mode().Perm()&0o022 != 0: // settings may be read by others, not changed
			good = false
			x.fail("folders", "chmod 700 "+shellQuote(d), "%s can be changed by others (%o)", d, info.Mode().Perm())
		}
	}
	if good {
		x.ok("folders", "%s is yours alone", x.home.Data)
	}
}

func (x *examination) keys() {
	if x.absent() {
		return
	}
	lasting, _ := subjects.Table().Roles()
	var lost []string
	good := true
	for _, r := range lasting {
		_, err := x.home.Keys().Public(r)
		switch {
		case errors.Is(err, bus.ErrMissingKey):
			lost = append(lost, r)
		case err != nil:
			good = false
			x.fail("keys", "chmod 600 "+shellQuote(x.home.Keys().Path(r))+", or bring it back from a copy", "%v", err)
		}
	}
	switch {
	case len(lost) > 0:
		x.warn("keys", "conclave up makes new ones", "%d of %d are missing: %s", len(lost), len(lasting), strings.Join(lost, ", "))
	case good:
		x.ok("keys", "%d in %s, yours alone", len(lasting), x.home.Keys().Dir)
	}
}

// environment compares the file for a stand-alone server with the keys.
func (x *examination) environment() {
	vars, err := readEnv(x.home.Env())
	if errors.Is(err, fs.ErrNotExist) {
		x.ok("nats.conf", "embedded; a stand-alone server would need conclave keys")
		return
	}
	if err != nil {
		x.fail("nats.conf", "make it readable to you", "%v", err)
		return
	}
	fix := "conclave keys writes it anew; then restart nats-server"
	for _, name := range subjects.Table().EnvVars() {
		if vars[name] == "" {
			x.fail("nats.conf", fix, "%s has no value for $%s", x.home.Env(), name)
			return
		}
	}
	lasting, _ := subjects.Table().Roles()
	for _, r := range lasting {
		if key, err := x.home.Keys().Public(r); err == nil && vars[subjects.KeyEnvVar(r)] != key {
			x.fail("nats.conf", fix, "%s holds another key for %s than the key folder", x.home.Env(), r)
			return
		}
	}
	x.ok("nats.conf", "%s has every variable", x.home.Env())
}

func (x *examination) disk() {
	dir := x.home.Store()
	for { // before the first start: the disk that it will be on
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := bus.Free(dir)
	text := fmt.Sprintf("%s free on the disk of %s", size(free), x.home.Store())
	switch {
	case err != nil:
		x.fail("disk", "see that the folder can be reached", "%s: %v", dir, err)
	case free < leastRoom:
		x.fail("disk", "make room; without it every tool call is denied", "only %s", text)
	case free < goodRoom:
		x.warn("disk", "make room soon", "%s", text)
	default:
		x.ok("disk", "%s", text)
	}
}

// size is a number of bytes in the largest unit that leaves something before the point.
func size(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KB", "MB", "GB", "TB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

func (x *examination) anchors() {
	if x.absent() {
		return
	}
	heads, err := audit.ReadHeads(x.home.Heads())
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(heads) == 0:
		x.warn("anchors", "conclave up opens the audit", "the audit has no anchors yet")
	case err != nil:
		x.fail("anchors", "bring back "+x.home.Heads()+" from a copy", "%v", err)
	default:
		x.ok("anchors", "%d chains anchored; conclave audit verify checks them all", len(heads))
	}
}

func (x *examination) tools() {
	path, err := exec.LookPath("nats")
	if err != nil {
		x.warn("nats tool", natsFix, "not on PATH")
		return
	}
	x.ok("nats tool", "%s", path)
}

// system looks at what runs.
func (x *examination) system(ctx context.Context) {
	b, err := x.bus()
	switch {
	case errors.Is(err, bus.ErrNotRunning):
		x.warn("running", "conclave up", "conclave is not running on %s", x.home.Data)
		return
	case err != nil:
		x.fail("running", "take the file away and start conclave up", "%v", err)
		return
	}
	x.ok("running", "%s", b.URL)
	nc, err := b.Dial("user", quickly)
	if err != nil {
		x.fail("server", "see the log of conclave up, or of nats-server", "%v", err)
		return
	}
	defer nc.Close()
	x.ok("server", "reached with the user's key, nats-server %s", nc.ConnectedServerVersion())
	if info, err := stream(ctx, nc, bus.CoreAPI, events); err != nil {
		x.fail("streams", "start conclave up again, or run conclave provision on a stand-alone server", "%v", err)
	} else {
		x.ok("streams", "%d events, %s", info.State.Messages, size(info.State.Bytes))
	}
	x.fullness(ctx, b)
	pings, err := gather[micro.Ping](ctx, nc, "$SRV.PING")
	var there, lost []string
	for _, p := range pings {
		there = append(there, p.Name)
	}
	slices.Sort(there)
	there = slices.Compact(there)
	for _, n := range expected(x.settings()) {
		if !slices.Contains(there, n) {
			lost = append(lost, n)
		}
	}
	switch {
	case err != nil:
		x.fail("actors", "see the log of conclave up", "%v", err)
	case len(lost) > 0:
		x.fail("actors", "see the log of conclave up, or start them with conclave actor "+strings.Join(lost, " "), "no answer from %s", strings.Join(lost, ", "))
	default:
		x.ok("actors", "answers from %s", strings.Join(there, ", "))
	}
	if slices.Contains(there, "model") {
		x.models(ctx, nc, slices.Contains(there, subjects.RespondentB))
	}
	if slices.Contains(there, "memory") {
		x.memory(ctx)
	}
	if slices.Contains(there, "broker") {
		x.approvals(ctx)
	}
	x.contexts(b.URL)
}

// models says who answers in which role, and what is missing. respondentB says whether the second respondent is there.
func (x *examination) models(ctx context.Context, nc *nats.Conn, respondentB bool) {
	out, err := actor.NewOut(nc)
	if err != nil {
		x.fail("models", "see the log of conclave up", "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		x.fail("models", "see the log of conclave up", "%v", err)
		return
	}
	good := true
	for _, r := range list.Roles {
		switch {
		case r.DemoModel && r.Role == subjects.RoleAssistant:
			good = false
			x.warn("models", "run ollama serve, then conclave model pull "+x.settings().Models.Roles[subjects.RoleAssistant], "no Ollama: a built-in demo model answers, not a model")
		case r.DemoModel:
			good = false
		case r.Role == subjects.RoleCritic: // it has a check of its own
		case r.Notice != "": // it says what to do: fetch a model, correct a name, start a server
			good = false
			x.warn("models", r.Notice, "for %s", r.Role)
		}
	}
	if good {
		x.ok("models", "%d, and one for every role", len(list.Models))
	}
	x.judging(list, respondentB)
}

// cloud says whether an Ollama on this machine may pass prompts on. One that is elsewhere or not there is not asked.
func (x *examination) cloud(ctx context.Context, server model.Server) {
	if server.RemoteHost() != "" {
		return
	}
	b, err := ollama.New(ollama.Config{URL: server.URL})
	if err != nil {
		return // the configuration is valid: not to be met
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	const anyway = "conclave refuses its models unless allow_remote in models.yaml names them"
	switch on, err := b.Cloud(ctx); {
	case errors.Is(err, llm.ErrUnsupported):
		x.ok("cloud", "not known, this Ollama does not say; %s", anyway)
	case err != nil: // nobody there: what that means is said with the models
	case on:
		x.warn("cloud", "start Ollama with OLLAMA_NO_CLOUD=1 to turn it off", "Ollama's cloud is on; %s", anyway)
	default:
		x.ok("cloud", "Ollama's cloud is off; %s", anyway)
	}
}

// fullness says how much of its room the audit has taken. When it is full, every call is denied.
func (x *examination) fullness(ctx context.Context, b *bus.Bus) {
	nc, err := b.Dial("auditor", quickly)
	if err != nil {
		x.fail("audit", "see the log of conclave up, or of nats-server", "%v", err)
		return
	}
	defer nc.Close()
	info, err := stream(ctx, nc, bus.AuditAPI, subjects.Audit)
	if err != nil {
		x.fail("audit", "start conclave up again, or run conclave provision on a stand-alone server", "%v", err)
		return
	}
	text := fmt.Sprintf("%s of %s", size(info.State.Bytes), size(info.Config.MaxBytes))
	if info.Config.MaxBytes > 0 && info.State.Bytes*5 >= info.Config.MaxBytes*4 {
		x.warn("audit", "stop conclave and run conclave audit rotate; when it is full, every tool call is denied", "%s are used", text)
		return
	}
	x.ok("audit", "%s are used", text)
}

// contexts looks at the files of the nats tool.
func (x *examination) contexts(url string) {
	home, err := bus.DefaultHome()
	if err != nil {
		x.warn("contexts", "set HOME", "%v", err)
		return
	}
	for _, name := range []string{"conclave", "conclave-audit"} {
		file := filepath.Join(filepath.Dir(home.Config), "nats", "context", name+".json")
		var c struct {
			URL string `json:"url"`
		}
		data, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(data, &c) != nil {
			x.warn("contexts", "conclave up writes it", "%s is not there or cannot be read", file)
			return
		}
		if c.URL != url {
			x.warn("contexts", "conclave up writes it anew at its next start", "%s points to %s, the server is at %s", file, c.URL, url)
			return
		}
	}
	x.ok("contexts", "conclave and conclave-audit point to %s", url)
}
