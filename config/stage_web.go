package config

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"conclave/actors/tools"
	"conclave/pkg/story"
	"conclave/pkg/webclient"
)

// stageWeb is the whole web of a story: one server of this machine that has its pages under their names, and a SearXNG
// that finds them.
type stageWeb struct {
	at     netip.AddrPort
	pages  []story.Page
	tell   func(story.Event)
	http   *http.Server
	stop   context.CancelFunc
	served chan struct{}

	mu    sync.Mutex
	asked map[string]int // pages, by address
}

// openWeb serves pages until it is closed. tell hears of each that is asked for.
func openWeb(pages []story.Page, tell func(story.Event)) (*stageWeb, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("opening the story's web: %w", err)
	}
	w := &stageWeb{pages: pages, tell: tell, served: make(chan struct{}), asked: map[string]int{}}
	w.at = ln.Addr().(*net.TCPAddr).AddrPort()
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	w.http = &http.Server{Handler: w, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		defer close(w.served)
		_ = w.http.Serve(ln)
	}()
	return w, nil
}

// close ends the server and every answer that is still to come.
func (w *stageWeb) close() {
	w.stop()
	_ = w.http.Close()
	<-w.served
}

// url is where its SearXNG is.
func (w *stageWeb) url() string { return "http://" + w.at.String() }

// settings are those of the web tools. A search is offered when it can find something.
func (w *stageWeb) settings() (search, fetch map[string]any) {
	search, fetch = map[string]any{"provider": "none"}, map[string]any{"enabled": true}
	for _, p := range w.pages {
		if p.Snippet != "" {
			search = map[string]any{"provider": "searxng", "searxng": map[string]any{"url": w.url()}}
		}
	}
	return search, fetch
}

// tools are those of the stage. Whatever the settings say, they fetch from the story's web and from nowhere else.
func (st *Harness) tools(c Config) []*tools.Tool {
	all := tools.Config{WebSearch: c.WebSearch, WebFetch: c.WebFetch, Own: c.listenAddresses()}
	if !c.WebFetch.Enabled {
		return tools.Configured(all) // nobody fetches anything
	}
	hosts := map[string]netip.AddrPort{}
	if st.web != nil {
		for _, p := range st.web.pages {
			if u, err := url.Parse(p.URL); err == nil {
				hosts[u.Hostname()] = st.web.at
			}
		}
	}
	// Nothing is kept of a page, so that the story sees each time that one is asked for.
	all.Web = webclient.NewStaged(webclient.Config{Version: tools.Version}, hosts)
	return tools.Configured(all)
}

// ServeHTTP implements [http.Handler].
func (w *stageWeb) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Host == w.at.String() {
		w.search(out)
		return
	}
	address := "http://" + r.Host + r.URL.RequestURI()
	w.mu.Lock()
	w.asked[address]++
	w.mu.Unlock()
	body, err := json.Marshal(map[string]string{"url": address})
	if err == nil {
		w.tell(story.Event{Subject: story.PageRequested, Time: time.Now(), Body: body})
	}
	for _, p := range w.pages {
		if p.URL == address {
			write(out, r, p)
			return
		}
	}
	http.NotFound(out, r)
}

// write answers with a page, after the time that it takes.
func write(out http.ResponseWriter, r *http.Request, p story.Page) {
	if p.Delay > 0 {
		late := time.NewTimer(p.Delay)
		defer late.Stop()
		select {
		case <-late.C:
		case <-r.Context().Done(): // whoever asked is gone
			return
		}
	}
	out.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status != 0 {
		out.WriteHeader(p.Status)
	}
	fmt.Fprintf(out, "<!doctype html><html><head><title>%s</title></head><body>%s</body></html>", html.EscapeString(p.Title), p.Body)
}

// search answers as SearXNG does, with all pages that a search may find.
func (w *stageWeb) search(out http.ResponseWriter) {
	found := []map[string]string{}
	for _, p := range w.pages {
		if p.Snippet != "" {
			found = append(found, map[string]string{"title": p.Title, "url": p.URL, "content": p.Snippet})
		}
	}
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(map[string]any{"results": found, "unresponsive_engines": []any{}})
}

// PageRequests implements [story.System].
func (st *Harness) PageRequests() map[string]int {
	if st.web == nil {
		return nil
	}
	st.web.mu.Lock()
	defer st.web.mu.Unlock()
	return maps.Clone(st.web.asked)
}
