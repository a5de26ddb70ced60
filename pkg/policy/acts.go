package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Act is the kind of act that a tool performs, as its facts declare it. The rules about information flow are written
// over acts and argument roles, never over the names of tools and arguments. "" is undeclared: such a tool asks after
// untrusted content.
type Act string

// The acts. The first three need no grant: a fetch and a search are judged by their URL and query, and reading is free.
const (
	ActRead         Act = "read"
	ActSearch       Act = "search"       // sends a query off this machine
	ActFetch        Act = "fetch"        // requests a URL
	ActSend         Act = "send"         // sends content to a recipient
	ActCreate       Act = "create"       // makes a new object
	ActChange       Act = "change"       // changes an existing object
	ActShare        Act = "share"        // gives a recipient access
	ActDelete       Act = "delete"       // removes something
	ActPay          Act = "pay"          // pays, or commits to a payment
	ActAuthenticate Act = "authenticate" // changes passwords, keys or locks
	ActControl      Act = "control"      // moves or switches a device
	ActExecute      Act = "execute"      // runs code
)

// ActNames are the names of all acts.
var ActNames = namesOf(ActRead, ActSearch, ActFetch, ActSend, ActCreate, ActChange, ActShare, ActDelete, ActPay,
	ActAuthenticate, ActControl, ActExecute)

// actEffects lists the effects that an act has at least, for all acts.
var actEffects = map[Act][]Effect{
	ActRead: nil, ActSearch: {Egress}, ActFetch: {Fetch}, ActSend: {Egress}, ActCreate: {Mutate}, ActChange: {Mutate},
	ActShare:  {Egress},
	ActDelete: {Destroy}, ActPay: {Spend, Egress}, ActAuthenticate: {Authenticate}, ActControl: {Physical},
	ActExecute: {Exec},
}

// UsesGrants reports whether a call of the tool may use a grant. Other calls are judged by their query, or not at all;
// a tool that declares no act has no grants.
func (t Tool) UsesGrants() bool { return actEffects[t.Act] != nil && t.Act != ActSearch }

// Role is what an argument of a tool is for. "" is undeclared: the value is a sink, which only the user may choose.
type Role string

// The roles.
const (
	RoleDestination Role = "destination" // who or what receives the content
	RoleContent     Role = "content"     // free text that the destination receives
	RoleID          Role = "id"          // the existing object that is acted on
	RoleAmount      Role = "amount"      // a number with a meaning: money, quantity
	RoleTime        Role = "time"        // a date or time
	RoleQuery       Role = "query"       // a search query that leaves the machine
	RoleURL         Role = "url"         // a URL that is requested
	RoleOption      Role = "option"      // one of a few values that the facts list
	RoleSetting     Role = "setting"     // changes only how this machine handles the result, so it carries nothing out
	// makes a read return more than its other arguments name, so it is never one that the user asked for
	RoleUnasked Role = "unasked"
)

// RoleNames are the names of the roles that facts may name; those of an option list its values instead.
var RoleNames = namesOf(RoleDestination, RoleContent, RoleID, RoleAmount, RoleTime, RoleQuery, RoleURL, RoleSetting,
	RoleUnasked)

// namesOf returns words of a type as strings.
func namesOf[T ~string](words ...T) (out []string) {
	for _, w := range words {
		out = append(out, string(w))
	}
	return out
}

// Arg holds the facts about one argument.
type Arg struct {
	Role   Role
	Values []string // of an option; "" is never one
}

// Args holds the facts about the arguments of a tool by name. A value inside of an object is named by its path, as in
// attachments.file_id; elements of a list have the name of the list.
type Args map[string]Arg

// With returns the name of the argument with this role, the first by name; "" when there is none.
func (a Args) With(r Role) (first string) {
	for name, arg := range a {
		if arg.Role == r && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// ToolFacts are the facts about a tool in a manifest or a declarations file.
type ToolFacts struct {
	Act string `yaml:"act"`
	// names of effects; omitted = those of the act, and reading private and untrusted data
	Effects []string          `yaml:"effects"`
	Args    map[string]string `yaml:"args"`  // name -> role, or the values of an option as in "r | rw"
	About   []string          `yaml:"about"` // words by which users name what the tool reads or lists
	IDs     []string          `yaml:"ids"`   // fields of its JSON results that it assigns itself, such as id
	// fields of its JSON results that hold the people of an object, such as participants
	People []string `yaml:"people"`
}

// Tool returns the facts as a known tool of this name. It rejects unknown acts, effects and roles, an act without its
// effects, and options without values.
func (f ToolFacts) Tool(name, zone string) (Tool, error) {
	act := Act(f.Act)
	if _, ok := actEffects[act]; !ok {
		return Tool{}, fmt.Errorf("unknown act %q; acts: %s", f.Act, strings.Join(ActNames, ", "))
	}
	effects := slices.Clone(actEffects[act])
	if f.Effects == nil {
		effects = append(effects, ReadsPrivate, ReadsUntrusted)
	}
	for _, e := range f.Effects {
		i := slices.Index(EffectNames, e)
		if i < 0 {
			return Tool{}, fmt.Errorf("unknown effect %q; effects: %s", e, strings.Join(EffectNames, ", "))
		}
		effects = append(effects, 1<<i)
	}
	t := Tool{
		Name: name, Zone: zone, Known: true, Foreign: true, Effects: Declare(effects...), Act: act, Args: Args{},
		IDs: slices.Clone(f.IDs), People: slices.Clone(f.People),
	}
	for _, w := range f.About {
		t.About = append(t.About, strings.ToLower(w))
	}
	for arg, v := range f.Args {
		a, err := parseArg(v)
		if err != nil {
			return Tool{}, fmt.Errorf("argument %s: %w", arg, err)
		}
		t.Args[arg] = a
	}
	return t, nil
}

// parseArg parses the facts of one argument: the name of a role, "" for a sink, or the values of an option with |
// between them.
func parseArg(s string) (Arg, error) {
	if strings.Contains(s, "|") {
		a := Arg{Role: RoleOption}
		for v := range strings.SplitSeq(s, "|") {
			a.Values = append(a.Values, strings.TrimSpace(v))
		}
		return a, nil
	}
	if s == "" || slices.Contains(RoleNames, s) {
		return Arg{Role: Role(s)}, nil
	}
	return Arg{}, fmt.Errorf("unknown role %q; write one of %s, or the values of an option as in \"r | rw\"", s,
		strings.Join(RoleNames, ", "))
}
