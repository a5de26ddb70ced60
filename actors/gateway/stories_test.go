package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/story"
)

// TestStoryRun runs a story over HTTP: its reports are streamed while it runs and again afterwards, one story runs at a
// time, it can be stopped, and a client may not run any.
func TestStoryRun(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	registry := &listRegistry{}
	client, phoneToken := newClient("phone", time.Unix(1, 0))
	startActor(t, b, registry)
	started, release := make(chan string, 8), make(chan struct{})
	d, w := describe(t), startGateway(t, b, setup{change: func(g *gateway.Gateway) {
		g.Stories = []gateway.Story{{File: "s1.yaml", ID: "S1"}, {File: "s2.yaml", ID: "S2"}}
		g.RunStory = func(ctx context.Context, file string, observe func(story.Progress)) story.Result {
			observe(story.Progress{Turn: &story.TurnProgress{
				N: 1, Step: "Is the world round?",
				State: story.StateRunning,
			}})
			started <- file
			select {
			case <-release:
				return story.Result{Took: time.Second}
			case <-ctx.Done():
				return story.Result{Failures: []story.Failure{{Text: ctx.Err().Error()}}}
			}
		}
	}})
	w.setClients(registry, phoneToken, true, client)
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if status, _, body := w.do(method, "/stories/s1.yaml/run", "", "Authorization",
			"Bearer "+phoneToken); status != http.StatusForbidden {
			t.Errorf("%s by a client: %d %s", method, status, body)
		}
	}
	none := func() string { return "" }
	w.checkRoutes(d, none, []routeTest{
		{"no run", "GET", "/stories/{name}/run", "/stories/s1.yaml/run", "", 404, "was not run", ""},
		{"stop no run", "DELETE", "/stories/{name}/run", "/stories/s1.yaml/run", "", 404, "not running", ""},
		{"unknown", "POST", "/stories/{name}/run", "/stories/..%2Fs1.yaml/run", "", 404, "no such story", ""},
		{"run", "POST", "/stories/{name}/run", "/stories/s1.yaml/run", "", 202, `"state":"running"`, ""},
		{"run again", "POST", "/stories/{name}/run", "/stories/s1.yaml/run", "", 409, "s1.yaml is running", ""},
		{"run another", "POST", "/stories/{name}/run", "/stories/s2.yaml/run", "", 409, "s1.yaml is running", ""},
		{"running", "GET", "/stories", "/stories", "", 200, `"run":{"state":"running"`, ""},
	})
	<-started
	close(release)
	// The stream ends with the run, and a second reader gets the same.
	_, header, live := w.do("GET", "/stories/s1.yaml/run", "")
	if !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") ||
		!strings.Contains(live, "id: 1\ndata: {\"turn\":{\"n\":1") ||
		!strings.Contains(live, `"end":{"ok":true,"ms":1000`) {
		t.Errorf("%s", live)
	}
	if _, _, again := w.do("GET", "/stories/s1.yaml/run", ""); again != live {
		t.Errorf("read again: %s", again)
	}
	if _, _, rest := w.do("GET", "/stories/s1.yaml/run", "", "Last-Event-ID", "1"); strings.Contains(rest, `"turn"`) ||
		!strings.Contains(rest, "id: 2\n") {
		t.Errorf("resumed: %s", rest)
	}
	release = make(chan struct{})
	w.checkRoutes(d, none, []routeTest{
		{"run the other", "POST", "/stories/{name}/run", "/stories/s2.yaml/run", "", 202, "running", ""},
		{"stop", "DELETE", "/stories/{name}/run", "/stories/s2.yaml/run", "", 202, "running", ""},
	})
	if _, _, stopped := w.do("GET", "/stories/s2.yaml/run", ""); !strings.Contains(stopped,
		`"reason":"stopped by the user"`) {
		t.Errorf("%s", stopped)
	}
	w.checkRoutes(d, none, []routeTest{{
		"results", "GET", "/stories", "/stories", "", 200, `"run":{"state":"failed"`,
		"",
	}})
}

// TestStoryWithoutRunner refuses to run a story where the process cannot, and names the command.
func TestStoryWithoutRunner(t *testing.T) {
	t.Parallel()
	w := startGateway(t, bustest.Start(t), setup{change: func(g *gateway.Gateway) {
		g.Stories = []gateway.Story{{File: "s1.yaml"}}
	}})
	w.checkRoutes(describe(t), func() string { return "" }, []routeTest{
		{
			"run", "POST", "/stories/{name}/run", "/stories/s1.yaml/run", "", 503, "conclave story run stories/s1.yaml",
			"",
		},
		{"list", "GET", "/stories", "/stories", "", 200, `"can_run":false`, ""},
	})
}
