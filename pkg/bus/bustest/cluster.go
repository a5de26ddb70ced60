package bustest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/bus"
	"conclave/subjects"
)

// ClusterServer is one server of a cluster of one test.
type ClusterServer struct {
	opts *server.Options
	ns   *server.Server
}

// StartCluster runs the three servers of a cluster in this process, with the files that conclave keys --cluster writes
// into the data folder, on addresses of the loopback network that no other test uses. It creates no streams.
func StartCluster(t testing.TB, home bus.Home) []*ClusterServer {
	t.Helper()
	lasting, boot := subjects.Table().Roles()
	if _, err := home.Keys().Ensure(append(lasting, boot...)); err != nil {
		t.Fatal(err)
	}
	hosts, err := bus.ParseClusterHosts(LoopbackHosts())
	if err != nil {
		t.Fatal(err)
	}
	files, err := home.WriteCluster(bus.ServerConfig{}, hosts)
	if err != nil {
		t.Fatal(err)
	}
	var servers []*ClusterServer
	for _, f := range files {
		opts, err := readClusterFiles(f.Folder)
		if err != nil {
			t.Fatal(err)
		}
		s := &ClusterServer{opts: opts}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		servers = append(servers, s)
	}
	return servers
}

// readClusterFiles reads nats.conf with the variables of nats.env, as nats-server does that is started in the folder:
// paths are relative to it.
func readClusterFiles(folder string) (*server.Options, error) {
	env, err := os.ReadFile(filepath.Join(folder, "nats.env"))
	if err != nil {
		return nil, err
	}
	conf, err := os.ReadFile(filepath.Join(folder, "nats.conf"))
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for line := range strings.Lines(string(env)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			fmt.Fprintf(&text, "%s: %s\n", name, strings.Trim(value, "'"))
		}
	}
	text.Write(conf)
	absolute := text.String()
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem", "jetstream"} {
		absolute = strings.ReplaceAll(absolute, strconv.Quote(name), strconv.Quote(filepath.Join(folder, name)))
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(absolute); err != nil {
		return nil, fmt.Errorf("reading the files of %s: %w", folder, err)
	}
	opts.NoLog, opts.NoSigs = true, true
	return opts, nil
}

func (s *ClusterServer) start() error {
	ns, err := server.NewServer(s.opts.Clone())
	if err != nil {
		return err
	}
	ns.Start()
	s.ns = ns
	if !ns.ReadyForConnections(time.Minute) {
		return errors.New("the server of the cluster is not ready after a minute")
	}
	return nil
}

// Restart stops the server and starts it again on the same store and addresses.
func (s *ClusterServer) Restart() error {
	s.Stop()
	return s.start()
}

// Stop stops the server and waits until its files are closed.
func (s *ClusterServer) Stop() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

// LoopbackHosts returns three addresses of the loopback network that no other test uses, so that the default ports are
// free there.
func LoopbackHosts() []string {
	base, n := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250)), rand.IntN(240)
	return []string{fmt.Sprint(base, n+1), fmt.Sprint(base, n+2), fmt.Sprint(base, n+3)}
}

// AwaitReplicas waits until every replica of every stream of a cluster is up to date, as an operator does before the
// next server is restarted, at most three minutes.
func AwaitReplicas(t testing.TB, b *bus.Bus) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for account, api := range map[string][2]string{
		subjects.Core:  {"user", bus.CoreAPI},
		subjects.Audit: {"auditor", bus.AuditAPI},
	} {
		nc, err := b.Dial(api[0])
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for _, st := range subjects.Table().Streams {
			for st.Account == account && !isUpToDate(nc, api[1]+".STREAM.INFO."+st.Name) {
				if time.Now().After(deadline) {
					t.Fatalf("the replicas of %s are not up to date", st.Name)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
}

// isUpToDate reports whether a stream has a leader and all its replicas run and lack nothing. info is the subject of
// its description.
func isUpToDate(nc *nats.Conn, info string) bool {
	m, err := nc.Request(info, nil, 5*time.Second)
	if err != nil {
		return false
	}
	var reply struct {
		Cluster *jetstream.ClusterInfo `json:"cluster"`
	}
	if json.Unmarshal(m.Data, &reply) != nil || reply.Cluster == nil || reply.Cluster.Leader == "" {
		return false
	}
	return !slices.ContainsFunc(reply.Cluster.Replicas, func(p *jetstream.PeerInfo) bool {
		return !p.Current || p.Offline
	})
}
