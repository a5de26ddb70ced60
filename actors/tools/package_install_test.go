package tools_test

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"conclave/actors/tools"
	"conclave/pkg/programtest"
	"conclave/subjects"
)

// packageIndex is a package index on loopback, with files by name.
type packageIndex struct {
	*httptest.Server
	files map[string][]byte
}

func newPackageIndex(t *testing.T) *packageIndex {
	i := &packageIndex{files: map[string][]byte{}}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
			w.Write(i.files[name])
			return
		}
		project := strings.ReplaceAll(strings.Trim(strings.TrimPrefix(r.URL.Path, "/simple/"), "/"), "-", "_")
		w.Header().Set("Content-Type", "text/html")
		for name, data := range i.files {
			if strings.HasPrefix(name, project+"-") {
				fmt.Fprintf(w, "<a href=\"/files/%s#sha256=%x\">%s</a>\n", name, sha256.Sum256(data), name)
			}
		}
	}))
	t.Cleanup(i.Close)
	return i
}

// addWheel adds a wheel of one module. requires are lines of its metadata.
func (i *packageIndex) addWheel(t *testing.T, name, version, code string, requires ...string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	info := name + "-" + version + ".dist-info/"
	metadata := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	for _, r := range requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	record := ""
	for _, f := range [][2]string{
		{name + ".py", code},
		{info + "METADATA", metadata},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", ""},
	} {
		record += f[0] + ",,\n"
		if f[0] == info+"RECORD" {
			f[1] = record
		}
		w, err := z.Create(f[0])
		must(t, err)
		_, err = io.WriteString(w, f[1])
		must(t, err)
	}
	must(t, z.Close())
	i.files[name+"-"+version+"-py3-none-any.whl"] = b.Bytes()
}

// addSource adds a source archive whose setup.py is code.
func (i *packageIndex) addSource(t *testing.T, name, code string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	must(t, w.WriteHeader(&tar.Header{Name: name + "-1.0/setup.py", Mode: 0o644, Size: int64(len(code))}))
	_, err := io.WriteString(w, code)
	must(t, err)
	must(t, w.Close())
	must(t, z.Close())
	i.files[name+"-1.0.tar.gz"] = b.Bytes()
}

// requirePip skips a test on a machine without pip below /usr.
func requirePip(t *testing.T) {
	t.Helper()
	requireSandbox(t)
	if why := tools.PipState(); why != "" {
		programtest.SkipIf(t, errors.New(why))
	}
}

// TestPackageInstallDryRunThenInstall previews and installs a package with a dependency, then imports it. The preview
// names the versions and changes nothing; files that a program of the task wrote do not configure pip.
func TestPackageInstallDryRunThenInstall(t *testing.T) {
	t.Parallel()
	requirePip(t)
	index := newPackageIndex(t)
	index.addWheel(t, "conclave_demo", "1.2", "import conclave_part\ngreeting = 'hello from ' + conclave_part.name\n",
		"conclave_part")
	index.addWheel(t, "conclave_demo", "1.3", "raise Exception('the wrong version')\n")
	index.addWheel(t, "conclave_part", "0.4", "name = 'part'\n")
	f := newProgramFixture(t)
	f.config.Sandbox.Time = 10 * time.Minute // a slow machine
	args := map[string]any{"manager": "pip", "packages": []string{"conclave-demo==1.2"}}
	if got := f.run(t, "package_install", args); got.Error == nil ||
		!strings.Contains(got.Error.Text, "set registries in tools.yaml") {
		t.Errorf("without registries: %v %s", got.Error, got.Result)
	}
	f.config.Registries = []string{index.URL + "/simple"}
	must(t, f.config.Validate())
	expect := func(got subjects.ToolResult, want ...string) {
		t.Helper()
		if got.Error != nil {
			t.Fatal(got.Error)
		}
		for _, w := range want {
			if !strings.Contains(got.Result, w) {
				t.Errorf("no %q in %s", w, got.Result)
			}
		}
	}
	f.mode = subjects.ModePreview
	host := fmt.Sprintf("hosts: allowed %q\n", strings.TrimPrefix(index.URL, "http://"))
	expect(f.run(t, "package_install", args), host, "exit code: 0", "would install conclave_demo==1.2 (sha256=",
		"would install conclave_part==0.4 (sha256=")
	if _, err := os.Stat(f.rules.Work); err == nil {
		t.Error("the preview made the working folder")
	}
	f.mode = ""
	expect(f.run(t, "run_shell", map[string]any{"command": "mkdir -p .config/pip pip && touch pip/__init__.py && " +
		"echo 'open(\"ran\", \"w\")' | tee pip/__main__.py sitecustomize.py && " +
		"printf '[global]\\nindex-url = http://127.0.0.1:9/simple\\n' > .config/pip/pip.conf && cp " +
		".config/pip/pip.conf pip.conf"}), "exit code: 0")
	got := f.run(t, "package_install", args)
	expect(got, host, "exit code: 0", "installed conclave_demo==1.2 (sha256=", `"packages/conclave_part.py"`)
	for _, a := range got.Artifacts {
		if !strings.HasPrefix(a, f.rules.Work+"/packages/") {
			t.Errorf("%s was written outside of the folder packages", a)
		}
	}
	must(t, os.Remove(f.rules.Work+"/sitecustomize.py"))
	expect(
		f.run(t, "run_code",
			map[string]any{"language": "python", "code": "import conclave_demo\nprint(conclave_demo.greeting)\n"}),
		"hello from part")
}

// TestPackageInstallRunsNoPackageCode installs packages that exist as source only: from the index, and as the URL of a
// dependency.
func TestPackageInstallRunsNoPackageCode(t *testing.T) {
	t.Parallel()
	requirePip(t)
	index := newPackageIndex(t)
	f := newProgramFixture(t)
	f.config.Sandbox.Time = 10 * time.Minute
	f.config.Registries = []string{index.URL + "/simple"}
	index.addSource(t, "conclave_source", "open("+fmt.Sprintf("%q", f.rules.Work+"/ran")+", 'w').write('x')\nfrom "+
		"setuptools import setup\nsetup(name='conclave_source', version='1.0')\n")
	index.addWheel(t, "conclave_trick", "1.0", "", "conclave_source @ "+index.URL+"/files/conclave_source-1.0.tar.gz")
	for _, name := range []string{"conclave-source", "conclave-trick"} {
		got := f.run(t, "package_install", map[string]any{"manager": "pip", "packages": []string{name}})
		if got.Error != nil || strings.Contains(got.Result, "exit code: 0\n") {
			t.Errorf("%s: %v %s", name, got.Error, got.Result)
		}
		if _, err := os.Stat(f.rules.Work + "/ran"); err == nil {
			t.Errorf("%s: code of the package ran: %s", name, got.Result)
		}
	}
}

// TestPackageInstallRejectsOptions has values that pip or a shell would take for more than a name.
func TestPackageInstallRejectsOptions(t *testing.T) {
	t.Parallel()
	requirePip(t)
	var requests atomic.Int64
	index := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(index.Close)
	f := newProgramFixture(t)
	f.config.Registries = []string{index.URL}
	for _, f.mode = range []string{"", subjects.ModePreview} {
		for _, bad := range []string{
			"-r x", "-r", "--index-url=http://127.0.0.1", "-e.", "git+https://example.org/x",
			"https://example.org/x.whl", "x @ https://example.org/x.whl", "file:///etc/passwd",
			"../x", "./x", "/x", "a/b", ".", "..", "a;rm", "a; python_version>'3'", "a b", "a\n-r x", "a\n", "a[b]",
			"a>=1", "a==1 --pre", "a==*", "a==", "$(id)", "", "ä", strings.Repeat("a", 180),
		} {
			got := f.run(t, "package_install", map[string]any{"manager": "pip", "packages": []string{"good", bad}})
			if got.Error == nil || got.Error.Code != subjects.CodeTool ||
				!strings.Contains(got.Error.Text, "is not a package") {
				t.Errorf("%q: %v %s", bad, got.Error, got.Result)
			}
		}
		for _, args := range []map[string]any{
			{"manager": "npm", "packages": []string{"good"}},
			{"manager": "pip", "packages": []string{}},
			{"manager": "pip"},
		} {
			if got := f.run(t, "package_install", args); got.Error == nil || got.Error.Code != subjects.CodeTool {
				t.Errorf("%v: %v %s", args, got.Error, got.Result)
			}
		}
	}
	if n := requests.Load(); n > 0 {
		t.Errorf("the index received %d requests", n)
	}
	for _, bad := range []string{
		"http://index.example.org/simple", "https://user:pass@index.example.org",
		"ftp://localhost", "index.example.org", "https://index.example.org/?x=1",
	} {
		f.config.Registries = []string{bad}
		if f.config.Validate() == nil {
			t.Errorf("the registry %q was accepted", bad)
		}
	}
}

// TestEgressProxyDeniesOtherHosts sends requests to the proxy as a program would. Only the hosts, ports and schemes of
// the registries are reached.
func TestEgressProxyDeniesOtherHosts(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	var reached atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(other.Close)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, other.URL, http.StatusFound)
			return
		}
		w.Write(bytes.Repeat([]byte("x"), 100_000))
	}))
	t.Cleanup(plain.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	_, port, err := net.SplitHostPort(secure.Listener.Addr().String())
	must(t, err)
	_, plainPort, err := net.SplitHostPort(plain.Listener.Addr().String())
	must(t, err)
	start := func(limit int64) string {
		socket, stop, err := tools.StartEgress([]string{
			"https://localhost:" + port + "/simple", plain.URL,
			"https://index.example.org/simple",
		}, limit)
		must(t, err)
		t.Cleanup(stop)
		return socket
	}
	send := func(socket, request string) (*http.Response, error) {
		t.Helper()
		c, err := net.Dial("unix", socket)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(c, request+"\r\nHost: x\r\n\r\n")
		must(t, err)
		method, _, _ := strings.Cut(request, " ")
		return http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	}
	otherAt := other.Listener.Addr().String()
	socket := start(1 << 20)
	for _, tt := range []struct {
		request string
		want    int
	}{
		{"GET " + plain.URL + "/ HTTP/1.1", 200},
		{"HEAD " + plain.URL + "/ HTTP/1.1", 200},
		{"GET " + plain.URL + "/redirect HTTP/1.1", 302},
		{"CONNECT localhost:" + port + " HTTP/1.1", 200},
		{"CONNECT LOCALHOST:" + port + " HTTP/1.1", 200},
		{"GET " + other.URL + "/ HTTP/1.1", 403},
		{"GET " + other.URL + "/ HTTP/1.1\r\nX-Forwarded-Host: localhost:" + port, 403},
		{"CONNECT " + otherAt + " HTTP/1.1", 403},
		{"CONNECT localhost:22 HTTP/1.1", 403},
		{"CONNECT localhost HTTP/1.1", 403},
		{"CONNECT 127.0.0.1:" + port + " HTTP/1.1", 403},
		{"CONNECT localhost.:" + port + " HTTP/1.1", 403},
		{"CONNECT user@localhost:" + port + " HTTP/1.1", 403},
		{"CONNECT index.example.org:80 HTTP/1.1", 403},
		{"CONNECT index.example.org.evil.example:443 HTTP/1.1", 403},
		{"CONNECT " + strings.TrimPrefix(plain.URL, "http://") + " HTTP/1.1", 403},
		{"GET http://localhost:" + plainPort + "/ HTTP/1.1", 403},
		{"GET http://localhost:" + port + "/ HTTP/1.1", 403},
		{"GET https://localhost:" + port + "/ HTTP/1.1", 403},
		{"GET http://user:pass@127.0.0.1:" + plainPort + "/ HTTP/1.1", 403},
		{"GET http://127.0.0.1:" + plainPort + "@" + otherAt + "/ HTTP/1.1", 403},
		{"GET /etc/passwd HTTP/1.1", 403},
		{"GET file:///etc/passwd HTTP/1.1", 403},
		{"POST " + plain.URL + "/ HTTP/1.1", 403},
		{"PUT " + plain.URL + "/ HTTP/1.1", 403},
		{"GET " + plain.URL + "/ HTTP/1.1\r\nContent-Length: 5", 403},
	} {
		resp, err := send(socket, tt.request)
		if err != nil {
			t.Errorf("%q: %v", tt.request, err)
			continue
		}
		if resp.StatusCode != tt.want {
			t.Errorf("%q: %d, want %d", tt.request, resp.StatusCode, tt.want)
		}
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("a host that is no registry received %d requests", n)
	}
	resp, err := send(start(10_000), "GET "+plain.URL+"/ HTTP/1.1")
	if err == nil {
		body, failed := io.ReadAll(resp.Body)
		if failed == nil || len(body) > 10_000 {
			t.Errorf("%d bytes beyond the limit, error %v", len(body), failed)
		}
	}
}
