package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"conclave/pkg/story"
	"conclave/subjects"
)

// Story is an acceptance story of this build.
type Story struct {
	File    string    `json:"file"`
	ID      string    `json:"id"`
	Title   string    `json:"title"`
	Why     string    `json:"why"`
	Command string    `json:"command"`       // that runs it in a terminal
	Run     *StoryRun `json:"run,omitempty"` // the latest one, if this gateway has run it
}

// StoryRun is the state of the latest run of a story.
type StoryRun struct {
	State string    `json:"state"` // running, ok or failed
	Began time.Time `json:"began"`
	Ms    int64     `json:"ms"` // 0 while it runs
}

// storyTimeout is the longest run of a story.
const storyTimeout = 5 * time.Minute

// maxStoryReports bounds the reports of one run; further events are dropped, checks and the end are not.
const maxStoryReports = 4096

// storyLog is the latest run of each story that this gateway has run. One story runs at a time: each is a whole system.
type storyLog struct {
	mu   sync.Mutex
	runs map[string]*storyRun // by file
}

// storyRun is a run of a story: its reports in order, as JSON. mu of the log protects it.
type storyRun struct {
	StoryRun
	reports [][]byte
	more    chan struct{} // closed with the next report
	cancel  context.CancelFunc
}

// begin adds a run that cancel stops, unless a story runs already.
func (l *storyLog) begin(file string, now time.Time, cancel context.CancelFunc) (*storyRun, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, run := range l.runs {
		if run.State == story.StateRunning {
			return nil, problemf(http.StatusConflict, codeConflict, "%s is running; wait for its end, or stop it",
				other)
		}
	}
	if l.runs == nil {
		l.runs = map[string]*storyRun{}
	}
	run := &storyRun{
		StoryRun: StoryRun{State: story.StateRunning, Began: now}, more: make(chan struct{}),
		cancel: cancel,
	}
	l.runs[file] = run
	return run, nil
}

// add appends a report.
func (l *storyLog) add(run *storyRun, p story.Progress) {
	data, err := json.Marshal(p)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(run.reports) >= maxStoryReports && p.Event != nil {
		return
	}
	if e := p.End; e != nil {
		run.State, run.Ms = story.StateFailed, e.Millis
		if e.OK {
			run.State = story.StateOK
		}
	}
	run.reports = append(run.reports, data)
	close(run.more)
	run.more = make(chan struct{})
}

// after returns the reports of a run behind the first n, whether they include the last one, and a channel that is
// closed with the next.
func (l *storyLog) after(run *storyRun, n int) (reports [][]byte, ended bool, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(run.reports[min(n, len(run.reports)):]), run.State != story.StateRunning, run.more
}

// get returns the latest run of a story, nil without any.
func (l *storyLog) get(file string) *storyRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[file]
}

// state returns the state of the latest run of a story, nil without any.
func (l *storyLog) state(file string) *StoryRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	if run := l.runs[file]; run != nil {
		s := run.StoryRun
		return &s
	}
	return nil
}

// onStories lists the stories of this build with the command and the latest run of each.
func (g *Gateway) onStories(w http.ResponseWriter, _ *http.Request) error {
	list := []Story{}
	for _, s := range g.Stories {
		s.Run = g.stories.state(s.File)
		list = append(list, s)
	}
	g.writeJSON(w, http.StatusOK, struct {
		Stories []Story `json:"stories"`
		CanRun  bool    `json:"can_run"`
	}{list, g.RunStory != nil})
	return nil
}

// findStory returns the file of the story in the path.
func (g *Gateway) findStory(r *http.Request) (string, error) {
	file := r.PathValue("name")
	if !slices.ContainsFunc(g.Stories, func(s Story) bool { return s.File == file }) {
		return "", problemf(http.StatusNotFound, codeNotFound, "there is no such story; GET /stories lists them")
	}
	return file, nil
}

// errStoryStopped ends a run that the user stops.
var errStoryStopped = errors.New("stopped by the user")

// onStoryRun starts a story of this build on a system of its own, with its own folder, keys, ports and scripted model.
// It is not a request to the running system, whose memory, settings and audit log it does not reach. The run continues
// when the client disconnects, and ends with the gateway.
func (g *Gateway) onStoryRun(w http.ResponseWriter, r *http.Request) error {
	file, err := g.findStory(r)
	if err != nil {
		return err
	}
	if g.RunStory == nil {
		return problemf(http.StatusServiceUnavailable, subjects.CodeUnavailable, "this process cannot run stories; "+
			"use conclave story run stories/%s", file)
	}
	ctx, cancel := context.WithTimeout(g.life, storyTimeout)
	stopped, stop := context.WithCancelCause(ctx)
	run, err := g.stories.begin(file, g.out.Now(), func() { stop(errStoryStopped) })
	if err != nil {
		cancel()
		return err
	}
	g.serving.Go(func() {
		defer cancel()
		defer stop(nil)
		end := g.RunStory(stopped, file, func(p story.Progress) { g.stories.add(run, p) }).End()
		if stopped.Err() != nil {
			end.OK, end.Reason = false, context.Cause(stopped).Error()
		}
		g.stories.add(run, story.Progress{End: end})
	})
	g.writeJSON(w, http.StatusAccepted, g.stories.state(file))
	return nil
}

// onStoryStop stops the run of a story.
func (g *Gateway) onStoryStop(w http.ResponseWriter, r *http.Request) error {
	file, err := g.findStory(r)
	if err != nil {
		return err
	}
	state := g.stories.state(file)
	if state == nil || state.State != story.StateRunning {
		return problemf(http.StatusNotFound, codeNotFound, "%s is not running", file)
	}
	g.stories.get(file).cancel()
	g.writeJSON(w, http.StatusAccepted, state)
	return nil
}

// onStoryReports streams the reports of the latest run of a story as server-sent events, from its start or behind
// Last-Event-ID, until its end. Without a run it is 404.
func (g *Gateway) onStoryReports(w http.ResponseWriter, r *http.Request) error {
	file, err := g.findStory(r)
	if err != nil {
		return err
	}
	run := g.stories.get(file)
	if run == nil {
		return problemf(http.StatusNotFound, codeNotFound, "%s was not run since the gateway started", file)
	}
	n := 0
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if n, err = strconv.Atoi(last); err != nil || n < 0 {
			return problemf(http.StatusBadRequest, subjects.CodeMalformed, "invalid Last-Event-ID: use the id of an "+
				"event")
		}
	}
	leave, err := acquireSlot(g.slots.streams, "event streams are open")
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := g.withTimeout(r.Context(), noTimeout)
	defer cancel()
	s := &eventWriter{w: w, rc: http.NewResponseController(w), timeout: g.cfg.WriteTimeout}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	s.writef("retry: 1000\n: reports of %s\n\n", file)
	heartbeat := time.NewTicker(g.cfg.Heartbeat)
	defer heartbeat.Stop()
	for {
		reports, ended, more := g.stories.after(run, n)
		for _, data := range reports {
			n++
			s.writef("id: %d\ndata: %s\n\n", n, data)
		}
		s.flush()
		if ended || s.err != nil {
			return nil
		}
		select {
		case <-more:
		case <-heartbeat.C:
			s.writef(": heartbeat\n\n")
		case <-ctx.Done():
			return nil
		}
	}
}
