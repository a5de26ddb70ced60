package acceptance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestCanary: the arguments of a call stand in the event copies, which is what those are for, and nowhere else: not in
// the audit, not in the anchors, not in the log, in no other file.
func TestCanary(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	cfg := settings(t)
	var log syncBuffer
	r, err := cfg.Start(t.Context(), home, debugLog(&log), config.Actors...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, r) })
	p := dialOperator(t, r.Bus)
	var canaries []string
	sent := func(tool, args string, code string) {
		t.Helper()
		canary := "canary" + actor.NewID()
		canaries = append(canaries, canary)
		res := p.callTool(t.Context(), tool, actor.NewID(), strings.ReplaceAll(args, "CANARY", canary))
		if res.Error == nil && code != "" || res.Error != nil && res.Error.Code != code {
			t.Errorf("%s %s: %v, want %q", tool, args, res.Error, code)
		}
	}
	sent("get_datetime", `{"timezone":"CANARY"}`, subjects.CodeTool)
	sent("get_datetime", `{"CANARY":"UTC"}`, subjects.CodeDenied)
	sent("get_datetime", `{"timezone":"UTC","CANARY":1,"CANARY":2}`, subjects.CodeMalformed)
	sent("fs_read", `{"path":"CANARY"}`, subjects.CodeTool)
	sent("no_such_tool", `{"query":"CANARY"}`, subjects.CodeUnknownTool)
	copies := len(canaries)
	// These never become a call, so there is no copy of them.
	sent("get_datetime", `{"timezone":CANARY`, subjects.CodeMalformed)
	for body, code := range map[string]string{
		`{"call_id":"c","args":{"timezone":CANARY}}`:                                       subjects.CodeMalformed,
		`{"call_id":"c","timezone":"CANARY"}`:                                              subjects.CodeMalformed,
		`{"call_id":"c","args":{"timezone":"CANARY` + strings.Repeat("x", 300<<10) + `"}}`: subjects.CodeTooLarge,
	} {
		canary := "canary" + actor.NewID()
		canaries = append(canaries, canary)
		m := nats.NewMsg("tool.request.get_datetime")
		m.Data = []byte(strings.ReplaceAll(body, "CANARY", canary))
		m.Header.Set(subjects.HeaderType, subjects.TypeJSON)
		m.Header.Set(subjects.HeaderDeadline, strconv.FormatInt(time.Now().Add(testTimeout).UnixMilli(), 10))
		if reply, err := p.nc.RequestMsg(m, testTimeout); err != nil ||
			reply.Header.Get(subjects.HeaderErrCode) != code {
			t.Errorf("%.60s: %v, %v", body, reply, err)
		}
	}

	msgs := bustest.ReadAuditLog(t, r.Bus)
	plain := sha256.Sum256([]byte(`{"timezone":"` + canaries[0] + `"}`))
	hashes := 0
	for _, m := range msgs {
		for _, rec := range decoded(t, m) {
			if rec.ParamsHash == hex.EncodeToString(plain[:]) {
				t.Error("a hash of the arguments without a key: it can be guessed")
			}
			if rec.ParamsHash != "" {
				hashes++
			}
		}
	}
	if hashes < copies {
		t.Errorf("%d records with a hash, %d calls", hashes, copies)
	}
	verified(t, home, r.Bus)
	down(t, r)

	where := map[string][]string{} // canary -> files that hold it
	err = filepath.WalkDir(home.Data, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(name)
		for _, c := range canaries {
			if bytes.Contains(b, []byte(c)) {
				where[c] = append(where[c], name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range canaries {
		for _, name := range where[c] {
			if !strings.Contains(name, filepath.Join("CORE", "streams", "EVENTS")) {
				t.Errorf("canary %d stands in %s", i, name)
			}
		}
		if (len(where[c]) > 0) != (i < copies) {
			t.Errorf("canary %d stands in %v", i, where[c])
		}
		if strings.Contains(log.String(), c) {
			t.Errorf("canary %d stands in the log", i)
		}
	}
	if !strings.Contains(log.String(), "dead letter") || !strings.Contains(log.String(), "level=DEBUG") {
		t.Errorf("the log was not caught: %s", log.String())
	}
	for _, m := range msgs {
		for _, c := range canaries {
			if bytes.Contains(m.Data, []byte(c)) {
				t.Errorf("message %d of the audit holds a canary", m.Seq)
			}
		}
	}
	t.Logf("%d canaries, %d audit messages, %d bytes of log", len(canaries), len(msgs), len(log.String()))
}
