package bustest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/bus"
	"conclave/subjects"
)

// StartCluster runs the three servers of a cluster in this process, with the files that conclave keys --cluster writes into the data
// folder, on addresses of the loopback network that no other test uses. It creates no streams.
func StartCluster(t testing.TB, home bus.Home) []*bus.Server {
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
	route := func(client string) string {
		host, _, _ := net.SplitHostPort(client)
		return net.JoinHostPort(host, "6222")
	}
	var servers []*bus.Server
	for i, f := range files {
		c := &bus.Cluster{
			Name: "conclave", Listen: route(hosts[i]), Advertise: hosts[i],
			CA: filepath.Join(f.Folder, "ca.pem"), Cert: filepath.Join(f.Folder, "cert.pem"), Key: filepath.Join(f.Folder, "key.pem"),
		}
		for j := range hosts {
			if j != i {
				c.Routes = append(c.Routes, route(hosts[j]))
			}
		}
		s, err := bus.StartServer(bus.ServerConfig{Name: f.Name, Listen: hosts[i], Store: filepath.Join(f.Folder, "jetstream"), Cluster: c}, home.Keys(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Stop(context.Background()) })
		servers = append(servers, s)
	}
	return servers
}

// LoopbackHosts returns three addresses of the loopback network that no other test uses, so that the default ports are free there.
func LoopbackHosts() []string {
	base, n := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250)), rand.IntN(240)
	return []string{fmt.Sprint(base, n+1), fmt.Sprint(base, n+2), fmt.Sprint(base, n+3)}
}

// AwaitReplicas waits until every replica of every stream of a cluster is up to date, as an operator does before the next server
// is restarted, at most three minutes.
func AwaitReplicas(t testing.TB, b *bus.Bus) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for account, api := range map[string][2]string{subjects.Core: {"user", bus.CoreAPI}, subjects.Audit: {"auditor", bus.AuditAPI}} {
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

// isUpToDate reports whether a stream has a leader and all its replicas run and lack nothing. info is the subject of its
// description.
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
	return !slices.ContainsFunc(reply.Cluster.Replicas, func(p *jetstream.PeerInfo) bool { return !p.Current || p.Offline })
}
