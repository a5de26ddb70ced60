package gateway

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// pageFiles is the page: HTML, styles and ES modules, without a build step.
//
//go:embed page
var pageFiles embed.FS

// pagePolicy is the content security policy of the page. Scripts and styles come from this server only and are never
// built from text (Trusted Types; the policy lit-html is that of the one library, for its constant templates). Nothing
// is loaded from or sent to another host, images included.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"frame-ancestors 'none'; " +
	"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types lit-html"

// pageViews are the first tokens of the addresses of the page.
var pageViews = []string{
	"chat", "runs", "approvals", "tasks", "memory", "agents", "bus", "decisions", "deliberations",
	"models", "machines", "doctor", "context", "settings",
}

// isPageRequest reports whether a browser opens an address of the page, as opposed to a program that uses the same path
// of the API: browsers name HTML first.
func (g *Gateway) isPageRequest(r *http.Request) bool {
	if !g.isBrowser(r) {
		return false
	}
	view, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return view == "" || slices.Contains(pageViews, view)
}

// isBrowser reports whether a browser opens an address, whatever it is.
func (g *Gateway) isBrowser(r *http.Request) bool {
	return g.cfg.Page && r.Method == http.MethodGet && strings.HasPrefix(r.Header.Get("Accept"), "text/html")
}

// writeLoginPage tells a browser without a login how to get one. Other users of the machine can read it.
func (g *Gateway) writeLoginPage(w http.ResponseWriter) {
	b, err := pageFiles.ReadFile("page/login.html")
	if err != nil {
		g.out.LogError(err)
	}
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; "+
		"base-uri 'none'; form-action 'none'")
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write(b)
}

// onPageFile serves a file of the page.
func (g *Gateway) onPageFile(w http.ResponseWriter, r *http.Request) error {
	name := path.Clean(r.PathValue("file"))
	if !g.cfg.Page || !fs.ValidPath(name) || !g.writePageFile(w, r, name) {
		return notFoundf("not found; /openapi.yaml lists the routes")
	}
	return nil
}

// writePageFile writes a file of the page, and reports whether it exists. Text is compressed for a client that accepts
// it: the files are constant, so their size tells nothing about a user.
func (g *Gateway) writePageFile(w http.ResponseWriter, r *http.Request, name string) bool {
	b, err := pageFiles.ReadFile(path.Join("page", name))
	if err != nil {
		return false
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Add("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
		b = compressPageFile(name, b)
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(b))
	return true
}

// compressedPageFiles has the compressed files of the page by name, as far as they were requested.
var compressedPageFiles sync.Map

func compressPageFile(name string, b []byte) []byte {
	if known, ok := compressedPageFiles.Load(name); ok {
		return known.([]byte)
	}
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid, and a buffer does not fail
	_, _ = z.Write(b)
	_ = z.Close()
	compressedPageFiles.Store(name, out.Bytes())
	return out.Bytes()
}
