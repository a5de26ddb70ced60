package bus_test

import (
	"slices"
	"strings"

	"conclave/subjects"
)

// brokerRows are the subjects of the broker that bypass its layers: listing and revoking approvals, explaining the
// policy, model keys, spawning, and the buckets that the broker decides by.
func brokerRows() []row {
	people := subjects.UserAccounts
	others := rolesExcept(people...)
	var out []row
	for i, s := range []string{
		"approval.list", "approval.revoke.a1", "policy.explain", "session.config", "tool.list", "change.list",
		"change.undo",
	} {
		for j, p := range people {
			other := people[1-j]
			out = append(out, row{
				name: p + " says " + s + ", and nobody else does",
				denied: slices.Concat(publishedByEach(others, s), publishedByEach(others, "ctl."+p+"."+s),
					publishedBy(other, "ctl."+p+"."+s), publishedBy(p, "ctl."+p+"."+s), publishedBy(p, s+".more")),
				control: request(p, s), receivers: []string{"broker ctl." + p + "." + s, replyTo(p)},
			})
		}
		// A reply subject on one service does not reach another.
		services := []string{
			"approval.list", "approval.revoke.a1", "policy.explain", "session.config", "tool.list", "change.list",
			"change.undo",
		}
		next := services[(i+1)%len(services)]
		out = append(out, row{
			name: "through " + s + " to what the user did not say", accepted: true,
			denied: replying("user", s, "{}", "ctl.gateway."+next, "ctl.user."+next, "agent.model.secret.use",
				"secret.get", "tool.call.tools.run_shell", "$KV.rules.x"),
			control: request("user", s), receivers: []string{"broker ctl.user." + s, replyTo("user")},
		})
	}
	out = append(out, row{
		name: "the user accepts the definition of a tool, and nobody else does, not the gateway either",
		denied: slices.Concat(publishedByEach(rolesExcept("user"), "tool.accept"),
			publishedByEach(rolesExcept(), "ctl.user.tool.accept")),
		control: request("user", "tool.accept"), receivers: []string{"broker ctl.user.tool.accept", replyTo("user")},
	})
	for _, a := range subjects.Agents {
		deep, deeper := "agent.spawn.a.b.c", "agent.spawn.a.b.c.d"
		next := subjects.Agents[(slices.Index(subjects.Agents, a)+1)%len(subjects.Agents)]
		out = append(
			out,
			row{
				name: a + " spawns below its own children, and not deeper than any",
				denied: slices.Concat(publishedBy(a, deeper), publishedBy(a, "agent."+next+"."+deep),
					publishedBy(a, "agent."+a+"."+deep), publishedBy(a, "agent.spawned.a")),
				control: request(a, deep), receivers: []string{"broker agent." + a + "." + deep, replyTo(a)},
			},
			row{
				name: a + " looks for its own children, and not deeper than any",
				denied: slices.Concat(publishedBy(a, "broker.discover.a.b.c.d.e"),
					publishedBy(a, "broker.validate.a.b.c.d.e"), publishedBy(a, "agent."+next+".broker.validate.a"),
					publishedBy(a, "agent."+next+".broker.discover.a")),
				control: request(a, "broker.validate.a.b.c.d"), receivers: []string{"broker agent." + a +
					".broker.validate.a.b.c.d", replyTo(a)},
			},
		)
	}
	nobodies := rolesExcept(subjects.Agents...)
	return append(
		out,
		row{
			name: "a child for one who is no agent", denied: slices.Concat(publishedByEach(nobodies, "agent.spawn"),
				publishedByEach(nobodies, "agent.spawn.a"), publishedByEach(nobodies, "broker.discover"),
				publishedByEach(nobodies, "broker.validate.a")), control: request("generator", "agent.spawn.a"),
			receivers: []string{"broker agent.generator.agent.spawn.a", replyTo("generator")},
		},
		row{
			name: "the key of a model for one who is no model",
			denied: slices.Concat(publishedByEach(rolesExcept("model", "mcp"), "secret.use"),
				publishedByEach(rolesExcept(), "agent.model.secret.use"), publishedBy("model", "secret.get"),
				publishedBy("model", "secret.use.more")),
			control: request("model", "secret.use"), receivers: []string{
				"broker agent.model.secret.use",
				replyTo("model"),
			},
		},
		row{
			name: "a credential of an MCP server by another name",
			denied: slices.Concat(publishedByEach(rolesExcept(), "agent.mcp.secret.use"),
				publishedBy("mcp", "secret.get"), publishedBy("mcp", "secret.use.more"), publishedBy("mcp",
					"tool.request.run_shell"), publishedBy("mcp", "principal.change"), publishedBy("mcp",
					"tool.schema.run_shell")),
			control: request("mcp", "secret.use"), receivers: []string{"broker agent.mcp.secret.use", replyTo("mcp")},
		},
		row{
			name: "through the key of a model to everything", accepted: true, denied: replying("model", "secret.use",
				"{}", "secret.get", "ctl.user.approval.decision.a1", "ctl.user.session.config",
				"tool.call.tools.run_shell", "agent.generator.tool.request.run_shell", "_INBOX.generator.x"),
			control: request("model", "secret.use"), receivers: []string{
				"broker agent.model.secret.use",
				replyTo("model"),
			},
		},
		row{
			name:  "a parked result for one who is not a user",
			setup: []publication{{role: "broker", subject: "core.API.$KV.parked.p1"}},
			denied: slices.Concat(publishedByEach(rolesExcept("user", "gateway", "broker"),
				"core.API.DIRECT.GET.KV_parked.$KV.parked.p1"), publishedByEach(rolesExcept("broker"),
				"core.API.DIRECT.GET.KV_parked"), publishedByEach(rolesExcept("broker"),
				"core.API.STREAM.MSG.GET.KV_parked")),
			control:   publication{role: "user", subject: "core.API.DIRECT.GET.KV_parked.$KV.parked.p1", reply: inbox},
			receivers: []string{replyTo("user")},
		},
		row{
			name: "a parked result, written by one who may read it",
			denied: append(publishedByEach(rolesExcept("broker"), "core.API.$KV.parked.p1"),
				publishedByEach(rolesExcept("broker"), "$KV.parked.p1")...),
			control: publication{
				role: "gateway", subject: "core.API.DIRECT.GET.KV_parked.$KV.parked.p1",
				reply: inbox,
			},
			receivers: []string{replyTo("gateway")},
		},
		row{
			name:  "the broker reads turns and questions, and writes and administers neither",
			setup: []publication{{role: "router", subject: "query.session.s1"}},
			denied: slices.Concat(publishedBy("broker", "query.session.s1"), publishedBy("broker", "turn.0.s1"),
				publishedBy("broker", "query.received"), publishedBy("broker", "core.API.STREAM.PURGE.QUERIES"),
				publishedBy("broker", "core.API.STREAM.INFO.QUERIES"), publishedBy("broker",
					"core.API.STREAM.MSG.DELETE.TURNS"), publishedBy("broker", "core.API.STREAM.PURGE.TURNS"),
				publishedBy("broker", "core.API.CONSUMER.CREATE.TURNS.x"), publishedBy("broker",
					"core.API.STREAM.INFO.TURNS")),
			control: publication{
				role: "broker", subject: "core.API.STREAM.MSG.GET.TURNS", reply: inbox,
				body: `{"seq":1}`,
			}, receivers: []string{replyTo("broker")},
		},
		row{name: "what the broker decides by, written by another", denied: onBrokerBuckets("core.API.$KV.%s.x",
			"$KV.%s.x"), control: request("broker", "core.API.$KV.flow.x"), receivers: []string{replyTo("broker")}},
		row{
			name:   "what the broker decides by, read by another",
			denied: onBrokerBuckets("core.API.DIRECT.GET.KV_%s.$KV.%s.x"), control: publication{
				role:    "broker",
				subject: "core.API.DIRECT.GET.KV_flow.$KV.flow.x", reply: inbox,
			},
			receivers: []string{replyTo("broker")},
		},
	)
}

// onBrokerBuckets is everybody but the broker saying each form for each of the broker's own buckets. %s is the bucket.
func onBrokerBuckets(forms ...string) (out []publication) {
	for _, bucket := range []string{"flow", "approvals", "rules", "session_config", "spawns", "ledger", "schemas"} {
		for _, f := range forms {
			out = append(out, publishedByEach(rolesExcept("broker"), strings.ReplaceAll(f, "%s", bucket))...)
		}
	}
	return out
}
