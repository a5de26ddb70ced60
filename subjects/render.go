package subjects

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// confHead is the part of nats.conf that does not depend on the table.
const confHead = `# Generated from the table in subjects/edges.go by "go generate ./subjects". Do not edit.
#
# Nothing here is secret: public keys, the address and the store come from the environment
# ("conclave keys" writes a file for it). Every principal has its own account; the server writes the
# caller's account into the subject that the owner receives (account_token_position); CORE and AUDIT
# hold streams and no clients. An account's imports are its boundary; the permissions of its users
# repeat it. docs/bus.md shows the same as a table. The disk quota of each stream is set when it is
# created; the limits here only have to be above that. The connections of all accounts together stay
# below the server's limit, so that no account takes those of another. max_buffered_size and
# max_pending bound the memory that one publisher or one slow subscriber can take. Leaf nodes are
# the machines that joined: their users have the connection type LEAFNODE, and a reload could not
# add this block.
server_name: $CONCLAVE_NAME
listen: $CONCLAVE_LISTEN
max_payload: 1MB
max_control_line: 4KB
max_connections: %d
max_subscriptions: 4096
max_pending: 32MB
ping_interval: "10s"
ping_max: 2
write_deadline: "5s"
authorization { timeout: 10 }
lame_duck_duration: "30s"
jetstream {
  store_dir: $CONCLAVE_STORE, max_mem: 64MB, max_file: 1TB, sync_interval: $CONCLAVE_SYNC, max_buffered_size: 16MB
}
system_account: SYS
leafnodes {
  listen: $CONCLAVE_LEAF_LISTEN, no_advertise: true
  tls { cert_file: $CONCLAVE_TLS_CERT, key_file: $CONCLAVE_TLS_KEY, handshake_first: true }
}

accounts {
`

// maxServerConns is the largest number of connections of the accounts of the table together.
const maxServerConns = 1024

// Conf returns nats.conf: accounts, exports, imports, users and permissions, all from the table. Keys, address and
// store are variables, listed by EnvVars, that the server needs.
func (l Layout) Conf() string { return l.conf(true) }

// ConfWithoutStreamImports is Conf without the imports that StreamImports lists; the permissions are the same.
func (l Layout) ConfWithoutStreamImports() string { return l.conf(false) }

func (l Layout) conf(streamImports bool) string {
	var b strings.Builder
	conns := maxServerConns
	for _, a := range l.Accounts {
		if a.Principal != "" {
			conns += a.MaxConns
		}
	}
	fmt.Fprintf(&b, confHead, conns)
	for _, a := range l.Accounts {
		l.writeAccount(&b, a, streamImports)
	}
	b.WriteString("}\n")
	return b.String()
}

// EnvVars lists every environment variable that nats.conf needs.
func (l Layout) EnvVars() []string {
	out := []string{
		"CONCLAVE_NAME", "CONCLAVE_LISTEN", "CONCLAVE_LEAF_LISTEN", "CONCLAVE_STORE", "CONCLAVE_SYNC",
		"CONCLAVE_TLS_CERT", "CONCLAVE_TLS_KEY",
	}
	lasting, boot := l.Roles()
	for _, r := range append(lasting, boot...) {
		out = append(out, KeyEnvVar(r))
	}
	return out
}

// KeyEnvVar is the environment variable with the public key of a role.
func KeyEnvVar(role string) string { return "NK_" + role }

// writeAccount writes one account. Publish and subscribe are denied by default; a user gets its own permissions and
// those that repeat the account's imports, an isolated user and one of boot only its own.
func (l Layout) writeAccount(b *strings.Builder, a Account, streamImports bool) {
	fmt.Fprintf(b, "  # %s\n  %s: {\n", a.Doc, confName(a.Name))
	if a.Store != "" {
		fmt.Fprintf(b, "    jetstream: %s\n", a.Store)
	}
	if a.MaxConns > 0 {
		fmt.Fprintf(b, "    limits: { max_connections: %d, max_leafnodes: %d }\n", a.MaxConns, a.MaxLeafs)
	}
	b.WriteString("    default_permissions: { publish: { deny: \">\" }, subscribe: { deny: \">\" } }\n")
	if exports := l.exportsOf(a.Name); len(exports) > 0 {
		b.WriteString("    exports: [\n")
		for _, e := range exports {
			b.WriteString("      " + e + "\n")
		}
		b.WriteString("    ]\n")
	}
	imports, pub, sub := l.importsOf(a.Name)
	watched := routeAroundWatchers(imports)
	if len(watched) > 0 {
		b.WriteString("    mappings: {\n")
		for _, s := range watched {
			fmt.Fprintf(b, "      %q: %q\n", s, publishPrefix+replaceWildcards(s))
			pub = append(pub, publishPrefix+s)
		}
		b.WriteString("    }\n")
	}
	if !streamImports {
		imports = slices.DeleteFunc(imports, func(i Import) bool { return i.Kind == StreamImport })
	}
	if len(imports) > 0 {
		b.WriteString("    imports: [\n")
		for _, i := range imports {
			b.WriteString("      " + i.conf() + "\n")
		}
		b.WriteString("    ]\n")
	}
	b.WriteString("    users: [\n")
	for _, u := range a.Users {
		p, s := u.Pub, u.Sub
		if !u.Isolated && !u.Boot {
			p, s = slices.Concat(pub, p), slices.Concat([]string{"_INBOX.>"}, sub, s)
			if a.Serves || u.Leaf {
				p = append(p, "_R_.>") // reply subjects of imported requests
			}
		}
		key := "$" + KeyEnvVar(u.Role)
		if u.Key != "" {
			key = strconv.Quote(u.Key)
		}
		if u.Leaf {
			key += ", allowed_connection_types: [LEAFNODE]"
		}
		receives := quoteList(s)
		if len(watched) > 0 { // a subscription to > does not receive them either
			receives = fmt.Sprintf("{ allow: %s, deny: %q }", receives, publishPrefix+">")
		}
		fmt.Fprintf(b, "      { nkey: %s, permissions: {\n          publish:   %s\n          subscribe: %s } }\n", key,
			quoteList(p), receives)
	}
	b.WriteString("    ]\n  }\n")
}

// publishPrefix is the first token of the subject to which the server maps what an account publishes and watches.
const publishPrefix = "publish."

// routeAroundWatchers returns the subjects that an account both publishes to another account and watches, and gives
// their requests in imports the mapped name. Without that a watcher would receive a message of its own account twice:
// as published, and as the copy of the stored one.
func routeAroundWatchers(imports []Import) (watched []string) {
	for i, request := range imports {
		if request.Kind == ServiceImport && slices.ContainsFunc(imports, func(w Import) bool {
			return w.Kind == StreamImport && w.Local == request.Local
		}) {
			watched = append(watched, request.Local)
			imports[i].Local = publishPrefix + request.Local
		}
	}
	return watched
}

// replaceWildcards writes the wildcards of a subject as the destination of a mapping has them.
func replaceWildcards(subject string) string {
	tokens, n := strings.Split(subject, "."), 0
	for i := range tokens {
		if tokens[i] == "*" {
			n++
			tokens[i] = fmt.Sprintf("{{wildcard(%d)}}", n)
		}
	}
	return strings.Join(tokens, ".")
}

// confName returns an account's name for nats.conf. Names of run-time principals are quoted: a bare word like "on"
// would be a boolean.
func confName(account string) string {
	if slices.ContainsFunc(Table().Accounts, func(a Account) bool { return a.Name == account }) {
		return account
	}
	return strconv.Quote(account)
}

// exportsOf lists the exports of an account, one per subject and kind, however many edges lead to it; timeout and reply
// type are those of the first edge. An export without <who> names its callers; with <who> any account may import it,
// under its own name only, which the server checks by the token position.
func (l Layout) exportsOf(owner string) (out []string) {
	type export struct {
		Edge
		who []string
	}
	var all []*export
	for _, e := range l.Edges {
		if e.Owner != owner {
			continue
		}
		i := slices.IndexFunc(all, func(x *export) bool { return x.Kind == e.Kind && x.Remote == e.Remote })
		if i < 0 {
			all, i = append(all, &export{Edge: e}), len(all)
		}
		all[i].who = append(all[i].who, e.Callers...)
	}
	for _, e := range all {
		s := fmt.Sprintf("{ %s: %q", e.Kind, strings.ReplaceAll(e.Remote, "<who>", "*"))
		if pos := slices.Index(strings.Split(e.Remote, "."), "<who>"); pos >= 0 {
			s += fmt.Sprintf(", account_token_position: %d", pos+1)
		} else {
			who := dedupe(e.who)
			for i := range who {
				who[i] = confName(who[i])
			}
			s += ", accounts: [" + strings.Join(who, ", ") + "]"
		}
		if e.StreamReply {
			s += ", response_type: stream"
		}
		if e.ReplyTimeout != "" {
			s += fmt.Sprintf(", threshold: %q", e.ReplyTimeout)
		}
		out = append(out, s+" }")
	}
	return out
}

// Import is what one account imports by an edge.
type Import struct {
	Account       string // that imports
	Kind          Kind
	Owner         string // the account that exports
	Remote, Local string // the owner's subject and its name in the account
}

// conf returns the import for nats.conf.
func (i Import) conf() string {
	s := fmt.Sprintf("{ %s: { account: %s, subject: %q }", i.Kind, confName(i.Owner), i.Remote)
	if i.Local != i.Remote {
		s += fmt.Sprintf(", to: %q", i.Local)
	}
	return s + " }"
}

// StreamImports lists the subscriptions to other accounts, of all accounts.
func (l Layout) StreamImports() (out []Import) {
	for _, a := range l.Accounts {
		imports, _, _ := l.importsOf(a.Name)
		out = append(out, slices.DeleteFunc(imports, func(i Import) bool { return i.Kind != StreamImport })...)
	}
	return out
}

// importsOf lists the imports of the account who, and the permissions of its users that repeat them, deduped: publish
// for requests, subscribe for watches. [Edge] Permission narrows the local subject.
func (l Layout) importsOf(who string) (imports []Import, pub, sub []string) {
	for _, e := range l.Edges {
		if !slices.Contains(e.Callers, who) {
			continue
		}
		remote, local := e.Resolve(who)
		imports = append(imports, Import{who, e.Kind, e.Owner, remote, local})
		perm := e.Permission
		if perm == nil {
			perm = []string{local}
		}
		if e.Kind == StreamImport {
			sub = append(sub, perm...)
		} else {
			pub = append(pub, perm...)
		}
	}
	return imports, dedupe(pub), dedupe(sub)
}

// Resolve returns the owner's subject and the local name of the edge for one caller.
func (e Edge) Resolve(who string) (remote, local string) {
	remote = strings.ReplaceAll(e.Remote, "<who>", who)
	local = strings.ReplaceAll(e.Local, "<who>", who)
	if local == "" {
		local = remote
	}
	return remote, local
}

// Doc returns docs/bus.md: the same table for readers.
func (l Layout) Doc() string {
	var b strings.Builder
	writeSubjects(&b)
	writePayloads(&b)
	l.writePrincipals(&b)
	l.writeStreams(&b)
	l.writeEdges(&b)
	return b.String()
}

// writeSubjects writes the head of docs/bus.md and its table of subjects.
func writeSubjects(b *strings.Builder) {
	b.WriteString(`# The bus

Generated from the tables in ` + "`subjects/`" + ` by ` + "`go generate ./subjects`" + `. Do not edit.

## Subjects

Each subject as its publisher and watchers see it. The owner receives it under another name where
the server has written the publisher's account into it:
` + "`agent.generator.tool.request.get_datetime`" + `. Only live tokens *may drop*; any other message
arrives, or its publisher gets an error. A subject *not served yet* reaches the router from the
user's account only: a request gets an error at once, a publication becomes a dead letter.

| subject | received as | payload | stored in | may drop | meaning |
|---|---|---|---|---|---|
`)
	for _, s := range AllSpecs() {
		received, drop := "", ""
		if s.Received != "" {
			received = "`" + s.Received + "`"
		}
		if s.Lossy {
			drop = "yes"
		}
		doc := s.Doc
		if s.Unserved != "" {
			doc += "; not served yet"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s | %s |\n", s.Name, received,
			strings.TrimPrefix(s.Codec.String(), "application/"), s.Stream, drop, doc)
	}
}

// writePrincipals writes the table of accounts and their keys for docs/bus.md.
func (l Layout) writePrincipals(b *strings.Builder) {
	b.WriteString("\n## Principals\n\nEvery actor has its own account. Stream accounts hold streams and have no " +
		"clients after boot.\n\n| account | keys | purpose |\n|---|---|---|\n")
	for _, a := range l.Accounts {
		var roles []string
		for _, u := range a.Users {
			r := u.Role
			if u.Boot {
				r += " (boot only)"
			}
			roles = append(roles, r)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", a.Name, strings.Join(roles, ", "), a.Doc)
	}
}

// writeStreams writes the tables of streams, buckets and consumers for docs/bus.md.
func (l Layout) writeStreams(b *strings.Builder) {
	b.WriteString("\n## Streams and buckets\n\n| name | account | subjects | owner | contents " +
		"|\n|---|---|---|---|---|\n")
	for _, s := range l.Streams {
		fmt.Fprintf(b, "| `%s` | %s | `%s` | %s | %s |\n", s.Name, s.Account, strings.Join(s.Subjects, "`, `"), s.Owner,
			s.Doc)
	}
	b.WriteString("\n## Consumers\n\n| stream | consumer | pulled through | filter |\n|---|---|---|---|\n")
	for _, p := range l.Consumers {
		fmt.Fprintf(b, "| %s | `%s` | `%s_in` | %s |\n", p.Stream, p.Name, p.Actor, strings.Join(p.Filter, ", "))
	}
}

// writeEdges writes the table of edges for docs/bus.md.
func (l Layout) writeEdges(b *strings.Builder) {
	b.WriteString(`
## Edges

Which account reaches which subject of which owner, under which local name. *request*: the caller
publishes and the owner replies. *watch*: the owner publishes and the caller subscribes. What an
account both requests and watches, such as ` + "`query.received`" + `, the server maps to
` + "`publish.<subject>`" + ` on its way to the owner, so that a watcher receives the copy of the stored
message and not the published one too.

| callers | kind | local subject | owner | owner's subject | replies | reply timeout |
|---|---|---|---|---|---|---|
`)
	for _, e := range l.Edges {
		kind, replies := "request", "one"
		if e.Kind == StreamImport {
			kind, replies = "watch", ""
		}
		if e.StreamReply {
			replies = "many"
		}
		fmt.Fprintf(b, "| %s | %s | `%s` | %s | `%s` | %s | %s |\n", strings.Join(e.Callers, ", "), kind,
			cmp.Or(e.Local, e.Remote), e.Owner, e.Remote, replies, e.ReplyTimeout)
	}
}

// quoteList formats v without duplicates as a list of nats.conf.
func quoteList(v []string) string {
	v = dedupe(v)
	q := make([]string, len(v))
	for i, s := range v {
		q[i] = `"` + s + `"`
	}
	return "[ " + strings.Join(q, ", ") + " ]"
}

func dedupe(v []string) (out []string) {
	for _, s := range v {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
