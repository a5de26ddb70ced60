package harness

import (
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
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
	http    *httptest.Server

	mu       sync.Mutex
	requests map[string]int // by URL
}

// startWeb serves pages on a free loopback port until it is closed, and publishes an event for each request for a page.
func startWeb(pages []story.Page, publish func(story.Event)) *webServer {
	w := &webServer{pages: pages, publish: publish, requests: map[string]int{}}
	w.http = httptest.NewUnstartedServer(w)
	w.addr = w.http.Listener.Addr().(*net.TCPAddr).AddrPort()
	w.http.Start()
	return w
}

// close stops the server and cancels delayed replies.
func (w *webServer) close() {
	w.http.CloseClientConnections()
	w.http.Close()
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
