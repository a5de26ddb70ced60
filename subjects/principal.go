package subjects

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// PrincipalKind is the kind of a run-time principal. It determines the edges of its accounts.
type PrincipalKind string

const (
	// ToolPrincipal serves tools of the user to the broker, and reaches nothing.
	ToolPrincipal PrincipalKind = "tool"
	// ClientPrincipal asks questions with query.ask and the agent protocol, and reaches nothing else.
	ClientPrincipal PrincipalKind = "client"
	// MachinePrincipal is another machine, which runs actors and connects as a leaf node.
	MachinePrincipal PrincipalKind = "machine"
)

// Principal is an account, or the accounts of a machine, that was added while the system runs. [Layout.With] merges it
// into the table.
type Principal struct {
	// a to z, 0 to 9 and "-", at most 24 characters; unique over accounts and machines
	Name  string        `json:"name"`
	Kind  PrincipalKind `json:"kind"`
	Tools []string      `json:"tools,omitempty"` // kind tool: the tools it serves, as the zone Name
	// Declared is what the user declared about the tools of a tool principal, by name. It comes from the user's command
	// alone.
	Declared map[string]ToolDeclaration `json:"declared,omitempty"`
	Actors   []string                   `json:"actors,omitempty"` // kind machine: what it runs, see [MachineActors]
	Keys     map[string]string          `json:"keys"`             // public key by account, one for each of Accounts
	Added    time.Time                  `json:"added"`
	// Allow lists the tools of MCP that a client may use beyond questions, of [ClientTools]; or [ClientMetrics] alone.
	Allow []string `json:"allow,omitempty"`
	// TokenHash is the SHA-256 of the HTTP token of a client, hexadecimal; "" = no access over HTTP.
	TokenHash string `json:"token_hash,omitempty"`
}

// ClientTools are the tools of MCP that a client may be given beyond questions.
var ClientTools = []string{"search_memory", "add_memory", "audit_status"}

// ClientMetrics in Allow makes a client one that reads the metrics over HTTP and does nothing else: it cannot ask.
const ClientMetrics = "metrics"

// Actions of [PrincipalChange].
const (
	PrincipalAdd    = "add"
	PrincipalRevoke = "revoke"
	PrincipalRotate = "rotate"
	PrincipalUpdate = "update"
)

// PrincipalChange is a change of the run-time principals. A revocation has the name only, a rotation name and keys, an
// update of a tool principal name, tools and what is declared about them.
type PrincipalChange struct {
	Action    string    `json:"action"`
	Principal Principal `json:"principal"`
}

// PrincipalList is the list of the run-time principals, by name. Public keys are not secret.
type PrincipalList struct {
	Principals []Principal `json:"principals"`
}

// PrincipalNotice says which principal changed; without a name, that the registry started.
type PrincipalNotice struct {
	Name   string `json:"name"`
	Action string `json:"action"`
}

// Limits of the list of run-time principals.
const (
	MaxPrincipals     = 200
	MaxPrincipalTools = 64
	// maxDeclaredBytes bounds what is declared about the tools of all principals, as JSON: the list fits into one
	// message.
	maxDeclaredBytes = 256 << 10
	// maxPrincipalConns is the largest number of connections of an account of a run-time principal.
	maxPrincipalConns = 8
)

// Actors of a machine that have accounts of their own there, named <actor>_<machine>.
const (
	modelActor   = "model"
	witnessActor = "witness"
)

var (
	// movableActors are actors of the table that a machine may run in their own account, besides this machine or
	// instead of it.
	movableActors = []string{Generator, RespondentB, Committee, "critic", "reward"}
	// movableTools are tools of the table that another machine may serve. Not those with folders or programs: the
	// broker checks their paths on this machine.
	movableTools = []string{"get_datetime", "web_search", "web_fetch"}

	principalName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,23}$`)
	userTool      = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	sha256Hash    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	publicUserKey = regexp.MustCompile(`^U[A-Z2-7]{55}$`)
)

// ErrPrincipal means that a run-time principal is malformed or conflicts with another account.
var ErrPrincipal = errors.New("invalid principal")

// MachineActors lists what a machine may run: actors, and tools of this build without folders.
func MachineActors() []string {
	return slices.Concat([]string{modelActor, witnessActor}, movableTools, movableActors)
}

// Accounts lists the accounts of p on this machine: its own, and for a machine those of the table whose actor it runs.
func (p Principal) Accounts() (out []string) {
	if p.Kind != MachinePrincipal {
		return []string{p.Name}
	}
	for _, a := range p.Actors {
		switch {
		case a == modelActor || a == witnessActor:
			out = append(out, a+"_"+p.Name)
		case slices.Contains(movableTools, a):
			out = append(out, toolsZone+"_"+p.Name)
		case slices.Contains(movableActors, a):
			out = append(out, a, a+"_in")
		}
	}
	return dedupe(out)
}

// Zone returns the account by which p serves tools to the broker, and the tools. It reports false when p serves none.
func (p Principal) Zone() (account string, tools []string, ok bool) {
	switch p.Kind {
	case ToolPrincipal:
		account, tools = p.Name, p.Tools
	case MachinePrincipal:
		account = toolsZone + "_" + p.Name
		for _, a := range p.Actors {
			if slices.Contains(movableTools, a) {
				tools = append(tools, a)
			}
		}
	}
	return account, tools, len(tools) > 0
}

// Validate rejects a malformed principal, with an error that wraps [ErrPrincipal] and says what to change. Each of its
// accounts must have a key.
func (p Principal) Validate() error {
	if err := p.CheckRights(); err != nil {
		return err
	}
	accounts := p.Accounts()
	if len(p.Keys) != len(accounts) {
		return fmt.Errorf("%w %s: %d keys for %d accounts", ErrPrincipal, p.Name, len(p.Keys), len(accounts))
	}
	if p.TokenHash != "" && (p.Kind != ClientPrincipal || !sha256Hash.MatchString(p.TokenHash)) {
		return fmt.Errorf("%w %s: token_hash: only of a client, 64 hexadecimal digits", ErrPrincipal, p.Name)
	}
	for account, key := range p.Keys {
		if !slices.Contains(accounts, account) || !publicUserKey.MatchString(key) {
			return fmt.Errorf("%w %s: the key of account %q is not a public user key of one of its accounts",
				ErrPrincipal, p.Name, clipForError(account))
		}
	}
	return nil
}

// WithPlaceholderKeys returns p with keys that nobody has, for a machine that is invited: its own are made when it
// joins.
func (p Principal) WithPlaceholderKeys() Principal {
	p.Keys = map[string]string{}
	for i, a := range p.Accounts() {
		p.Keys[a] = "U" + strings.Repeat(string(rune('A'+i)), 55)
	}
	return p
}

// CheckRights is [Principal.Validate] without the keys: name, kind, tools and actors.
func (p Principal) CheckRights() error {
	if err := p.CheckName(); err != nil {
		return err
	}
	reject := func(format string, args ...any) error {
		return fmt.Errorf("%w %s: "+format, append([]any{ErrPrincipal, p.Name}, args...)...)
	}
	if (len(p.Tools) > 0) != (p.Kind == ToolPrincipal) || (len(p.Actors) > 0) != (p.Kind == MachinePrincipal) {
		return reject("kind %q: a tool needs tools, a machine needs actors, a client has neither",
			clipForError(string(p.Kind)))
	}
	if len(p.Tools) > MaxPrincipalTools {
		return reject("%d tools, at most %d", len(p.Tools), MaxPrincipalTools)
	}
	for i, t := range p.Tools {
		switch {
		case !userTool.MatchString(t):
			return reject("tool %q: use a to z, 0 to 9 and \"_\", at most 64 characters, a letter first",
				clipForError(t))
		case ZoneOf(t) != "":
			return reject("tool %s is a tool of conclave; choose another name", t)
		case slices.Contains(p.Tools[:i], t):
			return reject("tool %s is named twice", t)
		}
	}
	for t, d := range p.Declared {
		if !slices.Contains(p.Tools, t) {
			return reject("a declaration about %q, which is not one of its tools", clipForError(t))
		}
		for _, a := range d.Agents {
			if CheckToken(a) != nil {
				return reject("tool %s: %q is not a valid agent type", t, clipForError(a))
			}
		}
		if d.Pin != "" && !sha256Hash.MatchString(d.Pin) {
			return reject("tool %s: pin: 64 hexadecimal digits", t)
		}
	}
	for _, a := range p.Allow {
		switch isMetrics := a == ClientMetrics; {
		case p.Kind != ClientPrincipal || !isMetrics && !slices.Contains(ClientTools, a):
			return reject("allow %q: a client may be given %s, or %s alone", clipForError(a),
				strings.Join(ClientTools, ", "), ClientMetrics)
		case isMetrics && len(p.Allow) > 1:
			return reject("allow %s excludes every other one: such a client reads metrics and nothing else",
				ClientMetrics)
		}
	}
	for i, a := range p.Actors {
		switch {
		case !slices.Contains(MachineActors(), a):
			return reject("a machine cannot run %q; it can run: %s", clipForError(a),
				strings.Join(MachineActors(), ", "))
		case slices.Contains(p.Actors[:i], a):
			return reject("actor %s is named twice", a)
		}
	}
	return nil
}

// CheckName rejects a name that no principal can have: malformed, or of an account, a zone or a key of the table.
func (p Principal) CheckName() error {
	if !principalName.MatchString(p.Name) {
		return fmt.Errorf("%w: name %q: use a to z, 0 to 9 and \"-\", at most 24 characters, a letter first",
			ErrPrincipal, clipForError(p.Name))
	}
	if reservedNames()[p.Name] {
		return fmt.Errorf("%w: the name %s is in use by conclave; choose another", ErrPrincipal, p.Name)
	}
	return nil
}

// reservedNames are the names of the table: accounts, zones and the keys, which are files.
var reservedNames = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	for _, a := range Table().Accounts {
		names[strings.ToLower(a.Name)] = true
		for _, u := range a.Users {
			names[u.Role] = true
		}
	}
	for z := range Zones {
		names[z] = true
	}
	names[APIClient] = true
	names[strings.TrimPrefix(WitnessStore, witnessActor+"_")] = true // its witness would have the account of the copies
	return names
})

// With returns the layout with the accounts and edges of run-time principals added, for exports, imports and
// permissions by the same code as the table. It rejects principals that [Principal.Validate] rejects, a name, a key or
// a tool that another one has, more than [MaxPrincipals], and a result that breaks a rule of the table
// ([Layout.Check]); nothing is left out silently. l is not changed.
func (l Layout) With(principals []Principal) (Layout, error) {
	if len(principals) == 0 {
		return l, nil
	}
	if len(principals) > MaxPrincipals {
		return Layout{}, fmt.Errorf("%w: %d of them, at most %d; revoke some", ErrPrincipal, len(principals),
			MaxPrincipals)
	}
	out := Layout{
		Accounts: slices.Clone(l.Accounts), Edges: slices.Clone(l.Edges), Streams: l.Streams,
		Consumers: l.Consumers,
	}
	names, keys, tools := map[string]bool{}, map[string]bool{}, map[string]string{}
	declared := 0
	for _, p := range principals {
		if err := p.Validate(); err != nil {
			return Layout{}, err
		}
		if names[p.Name] {
			return Layout{}, fmt.Errorf("%w: the name %s is in use; choose another, or revoke it first", ErrPrincipal,
				p.Name)
		}
		names[p.Name] = true
		data, err := json.Marshal(p.Declared)
		if declared += len(data); err != nil || declared > maxDeclaredBytes {
			return Layout{}, fmt.Errorf("%w %s: what is declared about tools is longer than %d bytes; shorten it, or "+
				"revoke some", ErrPrincipal, p.Name, maxDeclaredBytes)
		}
		for _, t := range p.Tools { // the facts of the manifest are by the name of the tool
			if tools[t] != "" {
				return Layout{}, fmt.Errorf("%w %s: %s serves a tool %s; choose another name, or revoke %[3]s first",
					ErrPrincipal, p.Name, tools[t], t)
			}
			tools[t] = p.Name
		}
		for _, k := range p.Keys {
			if keys[k] {
				return Layout{}, fmt.Errorf("%w %s: its key is the key of another account; make a new one",
					ErrPrincipal, p.Name)
			}
			keys[k] = true
		}
		out.addPrincipal(p)
	}
	if err := out.Check(); err != nil {
		return Layout{}, fmt.Errorf("%w: %w", ErrPrincipal, err)
	}
	return out, nil
}

// addPrincipal adds the accounts, keys and edges of p, which must be valid.
func (l *Layout) addPrincipal(p Principal) {
	if zone, tools, ok := p.Zone(); ok {
		u := User{Role: zone, Key: p.Keys[zone], Sub: discoverySubjects(zone)}
		for _, t := range tools {
			u.Sub = append(u.Sub, discoverySubjects(t)...)
		}
		u.serveTools(tools)
		l.addAccount(p, zone, "serves tools: "+strings.Join(tools, ", "), u)
		l.Edges = append(l.Edges, toolEdges(zone, zone, tools)...)
	}
	if p.Kind == ClientPrincipal {
		l.addAccount(p, p.Name, "asks questions with query.ask and the agent protocol",
			User{Role: p.Name, Key: p.Keys[p.Name]})
		l.Edges = append(l.Edges, Edge{
			Callers: []string{p.Name}, Kind: ServiceImport, Owner: "gateway",
			Remote: askRemote, Local: QueryAsk.Name, StreamReply: true, ReplyTimeout: "30m",
		})
		l.Edges = append(l.Edges, agentProtocolEdges([]string{p.Name})...)
	}
	for _, actor := range p.Actors {
		account := actor + "_" + p.Name
		u := User{Role: account, Key: p.Keys[account]}
		switch {
		case actor == modelActor:
			u.Sub = []string{"agent.*.model.>"}
			l.addAccount(p, account, "inference on "+p.Name, u)
			l.Edges = append(l.Edges, Edge{
				Callers: []string{"model"}, Kind: ServiceImport, Owner: account,
				Remote: "agent.<who>.model.>", Local: "machine." + p.Name + ".model.>", StreamReply: true,
				ReplyTimeout: "30m",
			})
		case actor == witnessActor:
			u.Sub = []string{"witness.*"}
			l.addAccount(p, account, "copies the audit log to "+p.Name, u)
			l.Edges = append(l.Edges, auditReadEdges(account)...)
			l.Edges = append(l.Edges, Edge{
				Callers: []string{"auditor"}, Kind: ServiceImport, Owner: account,
				Remote: "witness.*", Local: "witness." + p.Name + ".*", ReplyTimeout: "30s",
			})
		case slices.Contains(movableActors, actor):
			l.addMachineKey(p, actor)
			l.addMachineKey(p, actor+"_in")
		}
	}
}

// addAccount adds an account of p with one user. An account of a machine admits one leaf node and nothing else.
func (l *Layout) addAccount(p Principal, name, doc string, u User) {
	a := Account{
		Name: name, Doc: doc, Principal: p.Kind, Serves: p.Kind != ClientPrincipal,
		MaxConns: maxPrincipalConns,
	}
	if p.Kind == MachinePrincipal {
		u.Leaf, a.MaxLeafs = true, 1
	}
	a.Users = []User{u}
	l.Accounts = append(l.Accounts, a)
}

// addMachineKey gives the machine p the permissions of an existing account, for a leaf node only.
func (l *Layout) addMachineKey(p Principal, account string) {
	i := slices.IndexFunc(l.Accounts, func(a Account) bool { return a.Name == account })
	a := &l.Accounts[i]
	u := a.Users[0]
	u.Role, u.Key, u.Leaf = account+"_"+p.Name, p.Keys[account], true
	a.Users = append(slices.Clip(a.Users), u)
	a.MaxLeafs++
}
