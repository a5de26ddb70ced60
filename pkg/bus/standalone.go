package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/file"
	"conclave/subjects"
)

// Conf is the file of the configuration of a stand-alone nats-server.
func (h Home) Conf() string { return filepath.Join(h.Data, "nats.conf") }

// WriteConf writes the configuration of a stand-alone nats-server for the table and run-time principals. Nothing in it
// is secret.
func (h Home) WriteConf(principals []subjects.Principal) error {
	l, err := subjects.Table().With(principals)
	if err != nil {
		return err
	}
	if err := file.Replace(h.Conf(), []byte(l.Conf())); err != nil {
		return fmt.Errorf("writing %s: %w", h.Conf(), err)
	}
	return nil
}

// Standalone changes the run-time principals of a server in another process that reads the configuration of this data
// folder. It uses the key of the monitoring account, which may reload a server and list and close its connections.
type Standalone struct {
	home Home
	url  string

	mu     sync.Mutex
	before *subjects.Layout // as applied last; nil = unknown
}

// NewStandalone returns the server that answers at url. It does not connect.
func NewStandalone(home Home, url string) *Standalone { return &Standalone{home: home, url: url} }

// Apply writes the configuration and has the server load it twice: a new account has dead imports after one reload.
// Then it closes the leaf node connections of accounts that lost a key. It rejects a cluster. A server that rejects the
// file keeps the earlier configuration, and the error says why.
func (s *Standalone) Apply(ctx context.Context, principals []subjects.Principal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	after, err := subjects.Table().With(principals)
	if err != nil {
		return err
	}
	nc, err := (&Bus{URL: s.url, Keys: s.home.Keys()}).Dial("sys")
	if err != nil {
		return fmt.Errorf("changing the principals: %w", err)
	}
	defer nc.Close()
	ids, err := listServers(ctx, nc)
	if err != nil {
		return fmt.Errorf("changing the principals: %w", err)
	}
	if len(ids) > 1 {
		return fmt.Errorf("changing the principals: %d servers answer, and each reads a configuration of its own; "+
			"run-time principals need a single server", len(ids))
	}
	if err := s.home.WriteConf(principals); err != nil {
		return err
	}
	lost := func(string) bool { return true } // a machine revoked just before a crash may still be connected
	if s.before != nil {
		accounts := lostLeafKeys(*s.before, after)
		lost = func(account string) bool { return slices.Contains(accounts, account) }
	}
	s.before = nil // after an error either list may be in force: the next call closes every connection of a machine
	for _, id := range ids {
		for range 2 {
			if err := requestServer(ctx, nc, id, "RELOAD", nil, nil); err != nil {
				return fmt.Errorf("reloading the server with %s: %w", s.home.Conf(), err)
			}
		}
		if err := kickLeafs(ctx, nc, id, lost); err != nil {
			return fmt.Errorf("disconnecting machines: %w", err)
		}
	}
	s.before = &after
	return nil
}

// listServers returns the ids of the servers of the system: those that answer within half a second of the one before.
func listServers(ctx context.Context, nc *nats.Conn) (ids []string, err error) {
	inbox := nc.NewInbox()
	replies, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer replies.Unsubscribe()
	if err := nc.PublishRequest("$SYS.REQ.SERVER.PING", inbox, nil); err != nil {
		return nil, err
	}
	wait := 5 * time.Second
	for {
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := replies.NextMsgWithContext(next)
		cancel()
		if err != nil {
			break
		}
		var r struct {
			Server struct {
				ID string `json:"id"`
			} `json:"server"`
		}
		if json.Unmarshal(m.Data, &r) == nil && subjects.CheckToken(r.Server.ID) == nil {
			ids = append(ids, r.Server.ID)
		}
		wait = 500 * time.Millisecond
	}
	if len(ids) == 0 {
		return nil, errors.New("no server answers the monitoring account; check that it runs with the configuration " +
			"of this data folder")
	}
	return ids, nil
}

// requestServer sends a request of the system account to one server and decodes the data of the reply into into, unless
// it is nil. An error in the reply is returned.
func requestServer(ctx context.Context, nc *nats.Conn, id, verb string, body, into any) error {
	data := []byte("{}")
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$SYS.REQ.SERVER."+id+"."+verb, data)
	if err != nil {
		return err
	}
	var r struct {
		Data  json.RawMessage `json:"data"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return fmt.Errorf("malformed reply of the server: %w", err)
	}
	if r.Error != nil {
		return errors.New(r.Error.Description)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(r.Data, into)
}

// kickLeafs closes the leaf node connections of a server to accounts that lost reports true for.
func kickLeafs(ctx context.Context, nc *nats.Conn, id string, lost func(account string) bool) error {
	var leafs struct {
		Leafs []struct {
			ID      uint64 `json:"id"`
			Account string `json:"account"`
		} `json:"leafs"`
	}
	if err := requestServer(ctx, nc, id, "LEAFZ", nil, &leafs); err != nil {
		return err
	}
	for _, l := range leafs.Leafs {
		if !lost(l.Account) {
			continue
		}
		if err := requestServer(ctx, nc, id, "KICK", map[string]uint64{"cid": l.ID}, nil); err != nil {
			return err
		}
	}
	return nil
}
