package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"conclave/pkg/file"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Principals is the file of the run-time principals: names, rights and public keys, nothing secret.
func (h Home) Principals() string { return filepath.Join(h.Data, "principals.json") }

// principalFile is the content of the file of the run-time principals.
type principalFile struct {
	Version    int                  `json:"version"`
	Principals []subjects.Principal `json:"principals"`
}

// principalFileVersion is the version of the format that this build reads and writes.
const principalFileVersion = 1

// ErrPrincipalFile means that the file of the run-time principals cannot be used. The system does not start without it:
// a revoked principal must not come back, and one that was added must not vanish unnoticed.
var ErrPrincipalFile = errors.New("the list of run-time principals is damaged")

// ReadPrincipals reads the run-time principals and checks them against the table. No file means none, and nil; a file
// that is damaged, of another version, or breaks a rule of the table is [ErrPrincipalFile].
func (h Home) ReadPrincipals() ([]subjects.Principal, error) {
	b, err := os.ReadFile(h.Principals())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the run-time principals: %w", err)
	}
	var f principalFile
	err = strict.DecodeJSON(b, &f)
	if err == nil && f.Version != principalFileVersion {
		err = fmt.Errorf("its version is %d, this build reads %d", f.Version, principalFileVersion)
	}
	if err == nil {
		_, err = subjects.Table().With(f.Principals)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w. Restore it from a backup, or move it away and add the principals again",
			ErrPrincipalFile, h.Principals(), err)
	}
	return f.Principals, nil
}

// WritePrincipals replaces the list of run-time principals. It returns when the list is on the disk; after an error the
// earlier list is there. It rejects a list that the table's rules reject.
func (h Home) WritePrincipals(principals []subjects.Principal) error {
	if _, err := subjects.Table().With(principals); err != nil {
		return err
	}
	list := principalFile{principalFileVersion, append([]subjects.Principal{}, principals...)}
	if err := file.ReplaceJSON(h.Principals(), list); err != nil {
		return fmt.Errorf("writing the run-time principals: %w", err)
	}
	return nil
}

// Apply replaces the run-time principals of the running server without a restart. Connections and requests of the
// others continue; connections of a principal whose key is gone are closed before it returns. A list equal to the one
// in force changes nothing. The error wraps [subjects.ErrPrincipal] when the list breaks a rule; then the server was
// not touched. After any other error each principal of the two lists may be connected, and a restart of the server uses
// the earlier list. The next call that succeeds closes the connections of every key that is not in its list, also of
// those that an earlier call left.
func (s *Server) Apply(_ context.Context, principals []subjects.Principal) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.mu.Lock()
	ns, current, unfinished := s.ns, s.principals, len(s.tried) > 0 || s.editConf != nil
	s.mu.Unlock()
	if ns == nil {
		return errors.New("changing the principals: the embedded server is down")
	}
	after, err := s.mergeLayout(principals)
	if err != nil {
		return err
	}
	if slices.EqualFunc(current, principals, samePrincipal) && !unfinished {
		return nil
	}
	s.mu.Lock()
	before := append([]subjects.Layout{s.layout}, s.tried...)
	s.tried = append(s.tried, after)
	s.mu.Unlock()
	// A new account has dead imports after one reload, and live ones after two.
	for _, last := range []bool{false, true} {
		opts, err := s.serverOptions(after, after.ConfWithoutStreamImports())
		if err == nil {
			err = addStreamImports(ns, opts, after.StreamImports(), last)
		}
		if err == nil {
			s.reloads++
			markUsers(opts, s.reloads)
			if s.beforeReload != nil {
				s.beforeReload(ns, opts)
			}
			err = ns.ReloadOptions(opts)
		}
		if err != nil {
			return fmt.Errorf("changing the principals: %w", err)
		}
	}
	var lost []string
	for _, l := range before {
		lost = append(lost, lostLeafKeys(l, after)...)
	}
	if err := disconnectLeafs(ns, lost); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layout, s.principals, s.tried = after, slices.Clone(principals), nil
	return nil
}

// addStreamImports adds stream imports to a configuration that the running server ns will load. They refer to the
// accounts of ns and not to those of the configuration, as the parser's would: these have no subscriptions, so that a
// client that subscribes while the server loads them makes it panic. What a running account does not export yet is left
// to the last reload, except for new accounts, which have no clients.
func addStreamImports(ns *server.Server, opts *server.Options, imports []subjects.Import, last bool) error {
	parsed := map[string]*server.Account{}
	for _, a := range opts.Accounts {
		parsed[a.Name] = a
	}
	for _, i := range imports {
		if parsed[i.Account] == nil {
			return fmt.Errorf("the configuration has no account %s", i.Account)
		}
		owner, err := ns.LookupAccount(i.Owner)
		if err == nil {
			err = parsed[i.Account].AddMappedStreamImport(owner, i.Remote, i.Local)
		}
		if err == nil {
			continue
		}
		if last {
			return fmt.Errorf("importing %s of %s into %s: %w", i.Remote, i.Owner, i.Account, err)
		}
		if _, err := ns.LookupAccount(i.Account); err == nil {
			continue
		}
		if err := parsed[i.Account].AddMappedStreamImport(parsed[i.Owner], i.Remote, i.Local); err != nil {
			return fmt.Errorf("importing %s of %s into %s: %w", i.Remote, i.Owner, i.Account, err)
		}
	}
	return nil
}

// markUsers makes the users of a configuration differ from those of the one in force. To find what changed, the server
// compares users with reflect.DeepEqual; between equal users it would go on into their accounts and read their counters
// and maps, which clients change meanwhile, without locks. Issued is compared before the account and has a meaning only
// for users with a JWT.
func markUsers(opts *server.Options, reload int64) {
	for _, u := range opts.Nkeys {
		u.Issued = reload
	}
}

// samePrincipal reports whether two principals have the same accounts, keys and rights.
func samePrincipal(a, b subjects.Principal) bool {
	a.Added, b.Added = time.Time{}, time.Time{}
	return reflect.DeepEqual(a, b)
}

// mergeLayout merges the table with run-time principals. It rejects a key that is a key of the table: the server would
// let it connect as either.
func (s *Server) mergeLayout(principals []subjects.Principal) (subjects.Layout, error) {
	for _, p := range principals {
		for _, k := range p.Keys {
			for _, v := range s.vars {
				if v == strconv.Quote(k) {
					return subjects.Layout{}, fmt.Errorf("%w %s: its key is a key of conclave; make a new one",
						subjects.ErrPrincipal, p.Name)
				}
			}
		}
	}
	return subjects.Table().With(principals)
}

// lostLeafKeys lists the accounts in which a key for leaf nodes is gone.
func lostLeafKeys(before, after subjects.Layout) (accounts []string) {
	keys := func(l subjects.Layout, account string) (out []string) {
		for _, a := range l.Accounts {
			for _, u := range a.Users {
				if a.Name == account && u.Leaf {
					out = append(out, u.Key)
				}
			}
		}
		return out
	}
	for _, a := range before.Accounts {
		left := keys(after, a.Name)
		if slices.ContainsFunc(keys(before, a.Name), func(k string) bool { return !slices.Contains(left, k) }) {
			accounts = append(accounts, a.Name)
		}
	}
	return accounts
}

// disconnectLeafs closes the leaf node connections of accounts: a reload does not look at them. The server does not
// tell which key a connection used, so that machines whose key stays are closed too and reconnect.
func disconnectLeafs(ns *server.Server, accounts []string) error {
	if len(accounts) == 0 {
		return nil
	}
	leafs, err := ns.Leafz(nil)
	if err != nil {
		return fmt.Errorf("disconnecting machines: %w", err)
	}
	var errs []error
	for _, l := range leafs.Leafs {
		if !slices.Contains(accounts, l.Account) || ns.GetLeafNode(l.ID) == nil {
			continue
		}
		// it may have ended meanwhile
		if err := ns.DisconnectClientByID(l.ID); err != nil && ns.GetLeafNode(l.ID) != nil {
			errs = append(errs, fmt.Errorf("disconnecting a machine of account %s: %w", l.Account, err))
		}
	}
	return errors.Join(errs...)
}
