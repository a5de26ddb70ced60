package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"conclave/pkg/story"
)

// webServer serves the pages of a story under their host names, and a SearXNG that finds them.
type webServer struct {
	addr    netip.AddrPort
	pages   []story.Page
	publish func(story.Event) // called for each request for a page
	http    *http.Server
	stop    context.CancelFunc
	served  chan struct{}

	mu       sync.Mutex
	requests map[string]int // by URL
}

// startWeb serves pages on a free loopback port until it is closed, and publishes an event for each request for a page.
func startWeb(pages []story.Page, publish func(story.Event)) (*webServer, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the web server of a story: %w", err)
	}
	w := &webServer{pages: pages, publish: publish, served: make(chan struct{}), requests: map[string]int{}}
	w.addr = ln.Addr().(*net.TCPAddr).AddrPort()
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	w.http = &http.Server{
		Handler: w, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	go func() {
		defer close(w.served)
		_ = w.http.Serve(ln)
	}()
	return w, nil
}

// close stops the server and cancels delayed replies.
func (w *webServer) close() {
	w.stop()
	_ = w.http.Close()
	<-w.served
}

// url is the address of the SearXNG.
func (w *webServer) url() string { return "http://" + w.addr.String() }

// settings returns the sections of the web tools. Fetching is enabled; search only when a page has a snippet to be
// found by.
func (w *webServer) settings() (search, fetch map[string]any) {
	search, fetch = map[string]any{"provider": "none"}, map[string]any{"enabled": true}
	for _, p := range w.pages {
		if p.Snippet != "" {
			search = map[string]any{"provider": "searxng", "searxng": map[string]any{"url": w.url()}}
		}
	}
	return search, fetch
}

// ServeHTTP implements [http.Handler]. A request for the server's own address is a search, any other Host one for a
// page: it is counted and published, also when there is no such page (404).
func (w *webServer) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Host == w.addr.String() {
		w.serveSearch(out)
		return
	}
	address := "http://" + r.Host + r.URL.RequestURI()
	w.mu.Lock()
	w.requests[address]++
	w.mu.Unlock()
	body, err := json.Marshal(map[string]string{"url": address})
	if err == nil {
		w.publish(story.Event{Subject: story.PageRequested, Time: time.Now(), Body: body})
	}
	for _, p := range w.pages {
		if p.URL == address {
			servePage(out, r, p)
			return
		}
	}
	http.NotFound(out, r)
}

// servePage replies with a page after its delay, or not at all when the client disconnects before. The body is sent as
// HTML as it is.
func servePage(out http.ResponseWriter, r *http.Request, p story.Page) {
	select {
	case <-time.After(p.Delay):
	case <-r.Context().Done():
		return
	}
	out.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status != 0 {
		out.WriteHeader(p.Status)
	}
	fmt.Fprintf(out, "<!doctype html><html><head><title>%s</title></head><body>%s</body></html>",
		html.EscapeString(p.Title), p.Body)
}

// serveSearch replies as SearXNG does, with every page that has a snippet, whatever the query is.
func (w *webServer) serveSearch(out http.ResponseWriter) {
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
func (h *Harness) PageRequests() map[string]int {
	if h.web == nil {
		return nil
	}
	h.web.mu.Lock()
	defer h.web.mu.Unlock()
	return maps.Clone(h.web.requests)
}
