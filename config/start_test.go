package config_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

func TestE2E(t *testing.T) {
	cfg, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	home := bus.Home{Data: dir + "/data", Config: dir + "/config"}
	t0 := time.Now()
	c, err := cfg.Start(t.Context(), home, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})), config.Actors...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("start", time.Since(t0))
	defer func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	nc, err := c.Bus.Dial("operator")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	out, _ := actor.NewOut(nc)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ask, _ := subjects.ToolAsk.With("get_datetime")
	for range 3 {
		t0 = time.Now()
		res, err := actor.Ask(ctx, out, ask, subjects.ToolRequest{CallID: "c1", Args: []byte(`{"timezone":"Europe/Berlin"}`)})
		t.Logf("%+v %v %v", res, err, time.Since(t0))
	}
	ask, _ = subjects.ToolAsk.With("web_search")
	res, err := actor.Ask(ctx, out, ask, subjects.ToolRequest{CallID: "c1", Args: []byte(`{"timezone":"Europe/Berlin"}`)})
	t.Logf("%+v %v", res, err)
	rep, err := config.Verify(ctx, home, c.Bus)
	t.Logf("%+v %v", rep, err)
	if !rep.OK {
		t.Fatal(rep.First)
	}
}
