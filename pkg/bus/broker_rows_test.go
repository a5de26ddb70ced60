package bus_test

import (
	"slices"
	"strings"

	"conclave/subjects"
)

// brokerRows are the doors of the broker that lead past the layers: what the user lists, revokes and has explained, the
// keys of models, the family of an agent, and the stores that the broker decides by.
func brokerRows() []row {
	people := subjects.UserAccounts
	strangers := without(people...)
	var out []row
	for i, s := range []string{"approval.list", "approval.revoke.a1", "policy.explain", "session.config"} {
		for j, p := range people {
			other := people[1-j]
			out = append(out, row{
				name: p + " says " + s + ", and nobody else does",
				bad:  slices.Concat(all(strangers, s), all(strangers, "ctl."+p+"."+s), one(other, "ctl."+p+"."+s), one(p, "ctl."+p+"."+s), one(p, s+".more")),
				good: ask(p, s), sees: []string{"broker ctl." + p + "." + s, back(p)},
			})
		}
		// The reply of one door is no key to another.
		doors := []string{"approval.list", "approval.revoke.a1", "policy.explain", "session.config"}
		next := doors[(i+1)%len(doors)]
		out = append(out, row{
			name: "through " + s + " to what the user did not say", silent: true,
			bad:  replying("user", s, "{}", "ctl.gateway."+next, "ctl.user."+next, "agent.model.secret.use", "secret.get", "tool.call.tools.run_shell", "$KV.rules.x"),
			good: ask("user", s), sees: []string{"broker ctl.user." + s, back("user")},
		})
	}
	for _, a := range subjects.Agents {
		deep, deeper := "agent.spawn.a.b.c", "agent.spawn.a.b.c.d"
		next := subjects.Agents[(slices.Index(subjects.Agents, a)+1)%len(subjects.Agents)]
		out = append(
			out,
			row{
				name: a + " spawns below its own children, and not deeper than any",
				bad:  slices.Concat(one(a, deeper), one(a, "agent."+next+"."+deep), one(a, "agent."+a+"."+deep), one(a, "agent.spawned.a")),
				good: ask(a, deep), sees: []string{"broker agent." + a + "." + deep, back(a)},
			},
			row{
				name: a + " looks for its own children, and not deeper than any",
				bad:  slices.Concat(one(a, "broker.discover.a.b.c.d.e"), one(a, "broker.validate.a.b.c.d.e"), one(a, "agent."+next+".broker.validate.a"), one(a, "agent."+next+".broker.discover.a")),
				good: ask(a, "broker.validate.a.b.c.d"), sees: []string{"broker agent." + a + ".broker.validate.a.b.c.d", back(a)},
			},
		)
	}
	nobodies := without(subjects.Agents...)
	return append(
		out,
		row{name: "a child for one who is no agent", bad: slices.Concat(all(nobodies, "agent.spawn"), all(nobodies, "agent.spawn.a"), all(nobodies, "broker.discover"), all(nobodies, "broker.validate.a")), good: ask("generator", "agent.spawn.a"), sees: []string{"broker agent.generator.agent.spawn.a", back("generator")}},
		row{
			name: "the key of a model for one who is no model", bad: slices.Concat(all(without("model"), "secret.use"), all(without(), "agent.model.secret.use"), one("model", "secret.get"), one("model", "secret.use.more")),
			good: ask("model", "secret.use"), sees: []string{"broker agent.model.secret.use", back("model")},
		},
		row{
			name: "through the key of a model to everything", silent: true, bad: replying("model", "secret.use", "{}", "secret.get", "ctl.user.approval.decision.a1", "ctl.user.session.config", "tool.call.tools.run_shell", "agent.generator.tool.request.run_shell", "_INBOX.generator.x"),
			good: ask("model", "secret.use"), sees: []string{"broker agent.model.secret.use", back("model")},
		},
		row{
			name: "a parked result for one who is no person", pre: []act{{as: "broker", subject: "core.API.$KV.parked.p1"}},
			bad:  slices.Concat(all(without("user", "gateway", "broker"), "core.API.DIRECT.GET.KV_parked.$KV.parked.p1"), all(without("broker"), "core.API.DIRECT.GET.KV_parked"), all(without("broker"), "core.API.STREAM.MSG.GET.KV_parked")),
			good: act{as: "user", subject: "core.API.DIRECT.GET.KV_parked.$KV.parked.p1", reply: inbox}, sees: []string{back("user")},
		},
		row{
			name: "a parked result, written by one who may read it", bad: append(all(without("broker"), "core.API.$KV.parked.p1"), all(without("broker"), "$KV.parked.p1")...),
			good: act{as: "gateway", subject: "core.API.DIRECT.GET.KV_parked.$KV.parked.p1", reply: inbox}, sees: []string{back("gateway")},
		},
		row{
			name: "the broker reads turns and nothing else of the questions", pre: []act{{as: "router", subject: "query.session.s1"}},
			bad:  slices.Concat(one("broker", "query.session.s1"), one("broker", "turn.0.s1"), one("broker", "core.API.STREAM.MSG.GET.QUERIES"), one("broker", "core.API.STREAM.MSG.DELETE.TURNS"), one("broker", "core.API.STREAM.PURGE.TURNS"), one("broker", "core.API.CONSUMER.CREATE.TURNS.x"), one("broker", "core.API.STREAM.INFO.TURNS")),
			good: act{as: "broker", subject: "core.API.STREAM.MSG.GET.TURNS", reply: inbox, body: `{"seq":1}`}, sees: []string{back("broker")},
		},
		row{name: "what the broker decides by, written by another", bad: decidedBy("core.API.$KV.%s.x", "$KV.%s.x"), good: ask("broker", "core.API.$KV.flow.x"), sees: []string{back("broker")}},
		row{name: "what the broker decides by, read by another", bad: decidedBy("core.API.DIRECT.GET.KV_%s.$KV.%s.x"), good: act{as: "broker", subject: "core.API.DIRECT.GET.KV_flow.$KV.flow.x", reply: inbox}, sees: []string{back("broker")}},
	)
}

// decidedBy is everybody but the broker saying each form for each of the broker's own buckets. %s is the bucket.
func decidedBy(forms ...string) (out []act) {
	for _, bucket := range []string{"flow", "approvals", "rules", "session_config", "spawns", "ledger", "schemas"} {
		for _, f := range forms {
			out = append(out, all(without("broker"), strings.ReplaceAll(f, "%s", bucket))...)
		}
	}
	return out
}
