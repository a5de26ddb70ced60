package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"conclave/pkg/file"
	"conclave/subjects"
)

// clusterConf returns the part of nats.conf of a server in a cluster. The servers have the same accounts and keys, and
// each its own name and store. It listens on listen for the other servers, reaches them at routes, and tells clients to
// reconnect to client. A route needs a certificate of the cluster's own authority in both directions; clients verify
// that of the server, and prove their key as always. All addresses are host:port.
func clusterConf(listen, client string, routes []string) string {
	quoted := make([]string, len(routes))
	for i, r := range routes {
		quoted[i] = strconv.Quote("tls://" + r)
	}
	return fmt.Sprintf(`
# The cluster. A server joins with a certificate of the cluster's own authority. Not part of the generated table.
client_advertise: %q
tls { cert_file: "cert.pem", key_file: "key.pem", min_version: "1.3", timeout: 5 }
cluster {
  name: %q
  listen: %q
  no_advertise: true
  routes: [ %s ]
  tls { ca_file: "ca.pem", cert_file: "cert.pem", key_file: "key.pem", verify: true, min_version: "1.3", timeout: 5 }
}
`, client, ServerName, listen, strings.Join(quoted, ", "))
}

// ClusterServers is the number of servers of a cluster, and of the replicas of each stream in it: one of them may be
// down.
const ClusterServers = 3

const (
	defaultClientPort = 4222
	routePortOffset   = 2000 // the conventional ports are 4222 for clients and 6222 for routes
	leafPortOffset    = 3201 // 7423, as [DefaultLeafPort]
)

// ErrClusterHosts means that a list of hosts describes no cluster.
var ErrClusterHosts = errors.New("invalid servers of a cluster")

// ParseClusterHosts returns the client address host:port of each server in a list of host or host:port; the default
// port is 4222. It rejects another number than [ClusterServers], an address that is listed twice and a port without
// room for those of the routes and leaf nodes above it.
func ParseClusterHosts(list []string) (out []string, err error) {
	for _, s := range list {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), strconv.Itoa(defaultClientPort)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || n+leafPortOffset > 1<<16-1 || host == "" || strings.ContainsAny(host, " /@'\"\\") {
			return nil, fmt.Errorf("%w: %q is not host or host:port with a port up to %d", ErrClusterHosts, s,
				1<<16-1-leafPortOffset)
		}
		address := net.JoinHostPort(host, port)
		if slices.Contains(out, address) {
			return nil, fmt.Errorf("%w: %s is listed twice", ErrClusterHosts, address)
		}
		out = append(out, address)
	}
	if len(out) != ClusterServers {
		return nil, fmt.Errorf("%w: %d given, a cluster has %d", ErrClusterHosts, len(out), ClusterServers)
	}
	return out, nil
}

// addToPort returns the address with another port, for the routes or the leaf nodes of the server with this client
// address.
func addToPort(client string, offset int) string {
	host, port, _ := net.SplitHostPort(client)
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(n+offset))
}

// ClusterFolder is the folder with the files of the servers of a cluster, a folder each, and their authority.
func (h Home) ClusterFolder() string { return filepath.Join(h.Data, "cluster") }

// ClusterCA is the certificate of the cluster's authority, by which clients recognize its servers.
func (h Home) ClusterCA() string { return filepath.Join(h.ClusterFolder(), "ca.pem") }

// ClusterServer is a server whose files [Home.WriteCluster] has written.
type ClusterServer struct {
	Name   string `json:"name"`
	URL    string `json:"url"`    // for clients
	Folder string `json:"folder"` // to be copied to its host; nats-server is started in it
}

// WriteCluster writes a folder for each server of a cluster with the client addresses hosts: nats.conf, nats.env,
// certificate and key, with paths relative to the folder, so that it can be copied to its host. The keys of all roles
// must exist. The authority and valid certificates of the same hosts are kept. The streams are in each folder: the
// store of a single server must not be used, because a cluster deletes streams that it does not know. Commands on h use
// the cluster from then on.
func (h Home) WriteCluster(cfg ServerConfig, hosts []string) (out []ClusterServer, err error) {
	authority, err := ensureAuthority(h.ClusterFolder())
	if err != nil {
		return nil, fmt.Errorf("making the authority of the cluster: %w", err)
	}
	var urls []string
	for i, client := range hosts {
		name := fmt.Sprintf("%s-%d", ServerName, i+1)
		s := ClusterServer{Name: name, URL: "tls://" + client, Folder: filepath.Join(h.ClusterFolder(), name)}
		var routes []string
		for _, other := range hosts {
			if other != client {
				routes = append(routes, addToPort(other, routePortOffset))
			}
		}
		if err := os.MkdirAll(s.Folder, 0o700); err != nil {
			return nil, fmt.Errorf("making %s: %w", s.Folder, err)
		}
		host, port, _ := net.SplitHostPort(client)
		if err := authority.issue(s.Folder, name, host); err != nil {
			return nil, fmt.Errorf("making the certificate of %s: %w", host, err)
		}
		server := cfg
		server.Name, server.Listen, server.Store = name, client, "jetstream"
		server.Certificate = Certificate{Cert: "cert.pem", Key: "key.pem"}
		leaf := "127.0.0.1"
		if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
			leaf = host
		}
		server.LeafListen = addToPort(net.JoinHostPort(leaf, port), leafPortOffset)
		if err := h.writeEnv(filepath.Join(s.Folder, "nats.env"), server); err != nil {
			return nil, err
		}
		conf := filepath.Join(s.Folder, "nats.conf")
		text := subjects.Table().Conf() + clusterConf(addToPort(client, routePortOffset), client, routes)
		if err := file.Replace(conf, []byte(text)); err != nil {
			return nil, fmt.Errorf("writing %s: %w", conf, err)
		}
		out, urls = append(out, s), append(urls, s.URL)
	}
	if err := file.Replace(h.clusterURLFile(), []byte(strings.Join(urls, ",")+"\n")); err != nil {
		return nil, fmt.Errorf("writing %s: %w", h.clusterURLFile(), err)
	}
	return out, nil
}

// clusterURLFile holds the URLs of all servers, as --server takes them.
func (h Home) clusterURLFile() string { return filepath.Join(h.ClusterFolder(), "url") }

// ClusterURL returns the URLs of all servers of the cluster that [Home.WriteCluster] wrote, with commas between them,
// and "" for a data folder of a single server.
func (h Home) ClusterURL() string {
	b, err := os.ReadFile(h.clusterURLFile())
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ClusterHosts returns the client addresses of [Home.ClusterURL], for [ParseClusterHosts].
func (h Home) ClusterHosts() (out []string) {
	if url := h.ClusterURL(); url != "" {
		for u := range strings.SplitSeq(url, ",") {
			out = append(out, strings.TrimPrefix(u, "tls://"))
		}
	}
	return out
}

// Connect returns the bus of the server at url, or of the servers of a cluster, with the keys of h.
func (h Home) Connect(url string, log *slog.Logger) *Bus {
	return &Bus{URL: url, Keys: h.Keys(), CA: h.ClusterCA(), Log: log}
}
