package subjects

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Check reports every rule of the table that l breaks, joined. The rules hold for the table and for every layout that
// [Layout.With] returns.
func (l Layout) Check() error {
	var errs []error
	for _, r := range rules {
		for _, wrong := range r.check(l) {
			errs = append(errs, fmt.Errorf("%s: %s", r.name, wrong))
		}
	}
	return errors.Join(errs...)
}

// namedRule is a rule of a layout. check lists the violations.
type namedRule struct {
	name  string
	check func(l Layout) []string
}

var rules = []namedRule{
	{"no chaining", checkNoChaining},
	{"stream accounts have no clients", checkStreamAccounts},
	{"one owner per name", checkOneOwnerPerName},
	{"every named account exists", checkAccountsExist},
	{"one owner per bucket", checkBucketOwners},
	{"audit records enter by one subject", checkAuditAccess},
	{"no account administers streams", checkNoStreamAdmin},
	{"a puller only pulls", checkPullers},
	{"one key per account", checkOneKey},
	{"control subjects belong to the user", checkUserOnly},
	{"the author is written by the server", checkAuthors},
	{"every live subject has a publisher", checkLiveSubjects},
	{"roles and accounts are unique tokens", checkUniqueNames},
	{"a run-time principal has the edges of its kind", checkPrincipals},
}

// anyCaller stands for every caller in an owner's subject.
func anyCaller(remote string) string { return strings.ReplaceAll(remote, "<who>", "*") }

// hasAccount reports whether an account is in the layout.
func hasAccount(l Layout, name string) bool {
	return slices.ContainsFunc(l.Accounts, func(a Account) bool { return a.Name == name })
}

// checkNoChaining: an import under an exported name would be reachable through the account, without its actor's
// decision.
func checkNoChaining(l Layout) (wrong []string) {
	type imported struct{ local, owner string }
	for _, a := range l.Accounts {
		var imports []imported
		for _, in := range l.Edges {
			if slices.Contains(in.Callers, a.Name) {
				_, local := in.Resolve(a.Name)
				imports = append(imports, imported{local, in.Owner})
			}
		}
		for _, out := range l.Edges {
			if out.Owner != a.Name {
				continue
			}
			exported := anyCaller(out.Remote)
			for _, in := range imports {
				if Overlap(exported, in.local) {
					wrong = append(wrong, fmt.Sprintf("%s exports %s and imports %s from %s", a.Name, out.Remote,
						in.local, in.owner))
				}
			}
		}
	}
	return wrong
}

// checkStreamAccounts: JetStream publishes to any reply subject with the permissions of its account, so no client may
// be in it.
func checkStreamAccounts(l Layout) (wrong []string) {
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			if a.Store != "" && !u.Boot {
				wrong = append(wrong, fmt.Sprintf("%s has streams and a lasting key %s", a.Name, u.Role))
			}
			if a.Store == "" && u.Boot {
				wrong = append(wrong, fmt.Sprintf("%s has no streams and a boot key %s", a.Name, u.Role))
			}
		}
		for _, e := range l.Edges {
			if a.Store != "" && slices.Contains(e.Callers, a.Name) {
				wrong = append(wrong, fmt.Sprintf("%s has streams and publishes to %s", a.Name, e.Owner))
			}
		}
	}
	for _, s := range l.Streams {
		if !slices.ContainsFunc(l.Accounts, func(a Account) bool { return a.Name == s.Account && a.Store != "" }) {
			wrong = append(wrong, fmt.Sprintf("%s is in %s, which is not a stream account", s.Name, s.Account))
		}
	}
	return wrong
}

// checkOneOwnerPerName: two owners behind one name would both get the request. Discovery does so on purpose.
func checkOneOwnerPerName(l Layout) (wrong []string) {
	for _, a := range l.Accounts {
		var seen []string
		for _, e := range l.Edges {
			if e.Kind != ServiceImport || !slices.Contains(e.Callers, a.Name) {
				continue
			}
			_, local := e.Resolve(a.Name)
			for _, s := range seen {
				if Overlap(s, local) {
					wrong = append(wrong, fmt.Sprintf("%s reaches two things by %s and %s", a.Name, s, local))
				}
			}
			seen = append(seen, local)
		}
	}
	return wrong
}

// checkAccountsExist: an edge to or from an account that does not exist would not load, or would have no effect.
func checkAccountsExist(l Layout) (wrong []string) {
	for _, e := range l.Edges {
		if !hasAccount(l, e.Owner) {
			wrong = append(wrong, fmt.Sprintf("%s is owned by %q, which does not exist", e.Remote, e.Owner))
		}
		if len(e.Callers) == 0 || e.Remote == "" || (e.Kind != ServiceImport && e.Kind != StreamImport) {
			wrong = append(wrong, fmt.Sprintf("incomplete edge: %+v", e))
		}
		for i, w := range e.Callers {
			if !hasAccount(l, w) || w == e.Owner || slices.Contains(e.Callers[:i], w) {
				wrong = append(wrong, fmt.Sprintf("%s is reached by %q, which does not exist, is its owner, or is "+
					"there twice", e.Remote, w))
			}
		}
	}
	for _, p := range l.Consumers {
		if !hasAccount(l, p.Actor) || !hasAccount(l, p.Actor+"_in") ||
			!slices.ContainsFunc(l.Streams, func(s Stream) bool { return s.Name == p.Stream && s.Account == Core }) {
			wrong = append(wrong, fmt.Sprintf("consumer %s of %s for %s has no stream or no account", p.Name, p.Stream,
				p.Actor))
		}
	}
	for _, s := range l.Streams {
		if s.Bucket != "" && !hasAccount(l, s.Owner) {
			wrong = append(wrong, fmt.Sprintf("bucket %s is owned by %q", s.Bucket, s.Owner))
		}
	}
	return wrong
}

// checkBucketOwners: a roll-up of any writable key empties the whole bucket.
func checkBucketOwners(l Layout) (wrong []string) {
	seen := map[string]bool{}
	for _, s := range l.Streams {
		if seen[s.Name] {
			wrong = append(wrong, s.Name+" is there twice")
		}
		seen[s.Name] = true
		if s.Bucket == "" {
			continue
		}
		keys := "$KV." + s.Bucket + ".>"
		if s.Name != "KV_"+s.Bucket || len(s.Subjects) != 1 || s.Subjects[0] != keys {
			wrong = append(wrong, fmt.Sprintf("bucket %s is called %s and holds %v", s.Bucket, s.Name, s.Subjects))
		}
		var writers []string
		for _, e := range l.Edges {
			if e.Owner == s.Account && Overlap(anyCaller(e.Remote), keys) {
				writers = append(writers, e.Callers...)
			}
		}
		if len(writers) != 1 || writers[0] != s.Owner {
			wrong = append(wrong, fmt.Sprintf("bucket %s of %q is written by %v", s.Bucket, s.Owner, writers))
		}
	}
	return wrong
}

// checkAuditAccess: records are stored under the writer's account, and writers cannot read.
func checkAuditAccess(l Layout) (wrong []string) {
	reads := []string{"$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.INFO"}
	for _, w := range AuditWriters {
		reads = append(reads, "$JS.API.STREAM.INFO."+AuditStream(w), "$JS.API.STREAM.MSG.GET."+AuditStream(w))
	}
	for _, e := range l.Edges {
		switch {
		case e.Owner != Audit:
		case e.Kind == ServiceImport && (e.Remote == "audit.<who>.*" || e.Remote == "append.<who>.*") &&
			e.Local == "audit.*":
			for _, w := range e.Callers {
				if !slices.Contains(AuditWriters, w) {
					wrong = append(wrong, "the "+w+" appends")
				}
				if shared := e.Remote == "audit.<who>.*"; shared != (AuditStream(w) == Audit) {
					wrong = append(wrong, w+" does not append to its own stream")
				}
			}
		case e.Kind == ServiceImport && slices.Contains(reads, e.Remote):
			if slices.ContainsFunc(e.Callers, func(w string) bool {
				return w != "auditor" && principalAccountPart(l, w) != witnessActor
			}) {
				wrong = append(wrong, fmt.Sprintf("%v read %s", e.Callers, e.Remote))
			}
		default:
			wrong = append(wrong, fmt.Sprintf("%v reach %s of the audit", e.Callers, e.Remote))
		}
	}
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			for _, p := range u.Pub {
				if a.Name == Audit && p != "audit.AUDIT.genesis" && (Overlap(p, "audit.>") || Overlap(p, "append.>")) {
					wrong = append(wrong, fmt.Sprintf("%s may write %s", u.Role, p))
				}
			}
		}
	}
	return wrong
}

// checkNoStreamAdmin: an account that may change a stream may empty it, whatever else is denied.
func checkNoStreamAdmin(l Layout) (wrong []string) {
	var bad []string
	for _, s := range []string{
		"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.SNAPSHOT",
		"STREAM.RESTORE", "STREAM.MSG.DELETE", "STREAM.PEER.REMOVE", "STREAM.LEADER.STEPDOWN", "CONSUMER.CREATE",
		"CONSUMER.DURABLE.CREATE", "CONSUMER.DELETE", "CONSUMER.PAUSE", "CONSUMER.RESET", "CONSUMER.UNPIN",
		"ACCOUNT.PURGE", "META", "SERVER",
	} {
		bad = append(bad, "$JS.API."+s, "$JS.API."+s+".>")
	}
	for _, s := range []string{"CLAIMS", "SERVER.PING.LDM", "ACCOUNT"} {
		bad = append(bad, "$SYS.REQ."+s, "$SYS.REQ."+s+".>")
	}
	hits := func(subject string) bool {
		return slices.ContainsFunc(bad, func(b string) bool { return Overlap(b, subject) })
	}
	for _, e := range l.Edges {
		if hits(anyCaller(e.Remote)) {
			wrong = append(wrong, fmt.Sprintf("%v may publish %s", e.Callers, e.Remote))
		}
	}
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			if !u.Boot && slices.ContainsFunc(u.Pub, hits) {
				wrong = append(wrong, fmt.Sprintf("%s may publish %v", u.Role, u.Pub))
			}
		}
	}
	return wrong
}

// checkPullers: a pulled message keeps its author's subject, and its puller could publish there.
func checkPullers(l Layout) (wrong []string) {
	own := map[string][]string{}
	for _, p := range l.Consumers {
		c := p.Stream + "." + p.Name
		own[p.Actor+"_in"] = append(own[p.Actor+"_in"], "$JS.API.CONSUMER.INFO."+c, "$JS.API.CONSUMER.MSG.NEXT."+c,
			"$JS.ACK."+c+".>")
	}
	for _, e := range l.Edges {
		if strings.HasSuffix(e.Owner, "_in") {
			wrong = append(wrong, fmt.Sprintf("%s serves %s", e.Owner, e.Remote))
		}
		for _, w := range e.Callers {
			pulls := strings.HasPrefix(e.Remote, "$JS.API.CONSUMER.") || strings.HasPrefix(e.Remote, "$JS.ACK.")
			if strings.HasSuffix(w, "_in") != pulls ||
				(pulls && (e.Kind != ServiceImport || !slices.Contains(own[w], e.Remote))) {
				wrong = append(wrong, fmt.Sprintf("%s reaches %s", w, e.Remote))
			}
		}
	}
	for _, a := range l.Accounts {
		for _, u := range a.Users {
			if strings.HasSuffix(a.Name, "_in") && (len(u.Pub)+len(u.Sub) > 0 || a.Serves) {
				wrong = append(wrong, fmt.Sprintf("%s may do more than pull", u.Role))
			}
		}
	}
	return wrong
}

// checkOneKey: the server checks no reply subject, so one key of a shared account could direct a reply to the subjects
// of another. The key of a machine is the same actor, with the rights of the account.
func checkOneKey(l Layout) (wrong []string) {
	for _, a := range l.Accounts {
		n := 0
		for _, u := range a.Users {
			if !u.Leaf {
				n++
			}
		}
		if n > 1 || n == 0 && a.Principal != MachinePrincipal {
			wrong = append(wrong, fmt.Sprintf("%s has %d keys", a.Name, n))
		}
	}
	return wrong
}

// checkUserOnly: decisions, overrides, settings and questions come from the user's two accounts.
func checkUserOnly(l Layout) (wrong []string) {
	for _, e := range l.Edges {
		ctl := strings.HasPrefix(e.Remote, "ctl.")
		if ctl && !strings.HasPrefix(e.Remote, "ctl.<who>.") {
			wrong = append(wrong, fmt.Sprintf("%s has no caller token", e.Remote))
		}
		if !ctl &&
			(e.Kind != ServiceImport ||
				!slices.ContainsFunc([]string{"query.received", "query.committee", "query.task"}, func(q string) bool {
					return Overlap(q, e.Remote)
				})) {
			continue
		}
		for _, w := range e.Callers {
			if !slices.Contains(UserAccounts, w) {
				wrong = append(wrong, fmt.Sprintf("%s may publish %s", w, e.Remote))
			}
		}
	}
	return wrong
}

// checkAuthors: the second token of a received subject is the account, written by the server.
func checkAuthors(l Layout) (wrong []string) {
	for _, e := range l.Edges {
		first, _, _ := strings.Cut(e.Remote, ".")
		attested := slices.Contains([]string{"from", "agent", "ctl", "client", "audit", "append"}, first)
		if attested != strings.HasPrefix(e.Remote, first+".<who>.") || strings.Count(e.Remote, "<who>") > 1 &&
			!strings.HasPrefix(e.Remote, "from.<who>.agent.state.<who>") && e.Remote != "from.<who>.dead.<who>" {
			wrong = append(wrong, fmt.Sprintf("%v reach %s", e.Callers, e.Remote))
		}
	}
	return wrong
}

// checkLiveSubjects: a subscription without a publisher is a mistake in a name.
func checkLiveSubjects(l Layout) (wrong []string) {
	for _, e := range l.Edges {
		s, ok := strings.CutPrefix(e.Remote, "live.")
		if e.Kind != StreamImport || !ok {
			continue
		}
		if e.Local != s {
			wrong = append(wrong, fmt.Sprintf("%s is received as %s", e.Remote, e.Local))
		}
		written := slices.ContainsFunc(l.Edges, func(w Edge) bool {
			if w.Kind != ServiceImport || w.Owner != Core {
				return false
			}
			return slices.ContainsFunc(l.Streams, func(st Stream) bool {
				return st.RepublishFrom != "" && ((st.Name == "EVENTS" && Overlap(anyCaller(w.Remote), "from.*."+s)) ||
					(st.Name == "QUERIES" && Overlap(w.Remote, s) && slices.Contains(st.Subjects, s)))
			})
		})
		if !written {
			wrong = append(wrong, fmt.Sprintf("no publisher of what %v receive as %s", e.Callers, s))
		}
	}
	return wrong
}

// checkUniqueNames: a role is a file name, a variable and a token.
func checkUniqueNames(l Layout) (wrong []string) {
	accounts, roles := map[string]bool{}, map[string]bool{}
	for _, a := range l.Accounts {
		if CheckToken(a.Name) != nil || accounts[a.Name] || len(a.Users) == 0 || a.Doc == "" {
			wrong = append(wrong, fmt.Sprintf("account %q: not a token, there twice, without a key or without "+
				"documentation", a.Name))
		}
		accounts[a.Name] = true
		for _, u := range a.Users {
			if CheckToken(u.Role) != nil || u.Key == "" && strings.Contains(u.Role, "-") || roles[u.Role] {
				wrong = append(wrong, fmt.Sprintf("role %q: not a token, no variable name or there twice", u.Role))
			}
			roles[u.Role] = true
			if l.AccountOf(u.Role) == "" {
				wrong = append(wrong, fmt.Sprintf("role %q has no account", u.Role))
			}
		}
	}
	return wrong
}

// checkPrincipals: a run-time principal has the edges of its kind and no other, and a key for leaf nodes belongs to a
// machine.
func checkPrincipals(l Layout) (wrong []string) {
	kinds := map[string]PrincipalKind{}
	for _, a := range l.Accounts {
		kinds[a.Name] = a.Principal
		leafs := 0
		for _, u := range a.Users {
			if u.Leaf {
				leafs++
			}
			if u.Leaf && u.Key == "" || a.Principal != "" && u.Leaf != (a.Principal == MachinePrincipal) ||
				a.Principal != "" && u.Key == "" {
				wrong = append(wrong, fmt.Sprintf("%s of %s is not a key of a %s", u.Role, a.Name,
					cmp.Or(a.Principal, MachinePrincipal)))
			}
		}
		if leafs != a.MaxLeafs {
			wrong = append(wrong, fmt.Sprintf("%s has %d keys for leaf nodes and admits %d", a.Name, leafs, a.MaxLeafs))
		}
	}
	for _, e := range l.Edges {
		for _, w := range e.Callers {
			caller, owner := kinds[w], kinds[e.Owner]
			part := principalAccountPart(l, e.Owner)
			ok := true
			switch {
			case caller == ClientPrincipal:
				ok = isClientEdge(e)
			case caller == MachinePrincipal:
				ok = principalAccountPart(l, w) == witnessActor && e.Owner == Audit
			case caller == ToolPrincipal:
				ok = false
			case owner == ToolPrincipal, owner == MachinePrincipal && part == toolsZone:
				ok = w == "broker" || w == "secrets" && e.Remote == SealKeyService.Received
			case owner == MachinePrincipal && part == modelActor:
				ok = w == "model"
			case owner == MachinePrincipal && part == witnessActor:
				ok = w == "auditor"
			case owner != "":
				ok = false
			}
			if !ok {
				wrong = append(wrong, fmt.Sprintf("%s reaches %s of %s", w, e.Remote, e.Owner))
			}
		}
	}
	return wrong
}

// principalAccountPart returns "model", "tools" or "witness" for an account of a machine, "" for any other account.
func principalAccountPart(l Layout, account string) string {
	for _, a := range l.Accounts {
		if a.Name == account && a.Principal == MachinePrincipal {
			part, _, _ := strings.Cut(account, "_")
			return part
		}
	}
	return ""
}
