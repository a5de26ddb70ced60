package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// instanceID returns the id of an agent of this gateway.
func (g *Gateway) instanceID(agent string) string { return agent + "-" + g.agentID }

// newHeartbeat returns the heartbeat of an agent for the account of a caller, its owner.
func (g *Gateway) newHeartbeat(agent, owner, session string) subjects.AgentsHeartbeat {
	return subjects.AgentsHeartbeat{
		Agent: agent, Owner: owner, Session: session, InstanceID: g.instanceID(agent),
		Time:            g.out.Now().UTC().Format(time.RFC3339),
		IntervalSeconds: max(1, int(g.cfg.Heartbeat/time.Second)), ProtocolVersion: agentProtocolVersion,
	}
}

// sendHeartbeats sends the heartbeats of the agents to each client and the user: at once, at intervals, and when the
// clients change.
func (g *Gateway) sendHeartbeats(ctx context.Context) {
	tick := time.NewTicker(max(g.cfg.Heartbeat, time.Second))
	defer tick.Stop()
	for {
		for _, owner := range append(g.tokens.listNames(), "user") {
			for _, a := range protocolAgents {
				topic, err := subjects.AgentsHeartbeats.With(owner, a.name, agentSession)
				if err == nil {
					err = actor.EmitAsync(ctx, g.out, topic, g.newHeartbeat(a.name, owner, agentSession))
				}
				if err != nil && ctx.Err() == nil {
					g.out.LogError(fmt.Errorf("sending a heartbeat: %w", err))
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-g.tokens.renewed:
		}
	}
}

// onAgentStatus returns the heartbeat of an agent.
func (g *Gateway) onAgentStatus(ctx context.Context, in actor.Msg[[]byte], out actor.Out) ([]byte, error) {
	agent, session := in.Tokens[1], in.Tokens[2]
	if _, err := checkAgent(agent, session); err != nil {
		return nil, err
	}
	if _, err := g.findAgentCaller(ctx, out, in.From); err != nil {
		return nil, err
	}
	return json.Marshal(g.newHeartbeat(agent, in.From, session))
}

// onAgentDiscovery answers PING, INFO and STATS of the micro protocol for the agents of the caller, or for the one
// whose instance the subject names. The owner of each agent is the caller: it sees the subjects that it may use, and
// nothing of other clients.
func (g *Gateway) onAgentDiscovery(ctx context.Context, in actor.Msg[[]byte], send func([]byte) error,
	out actor.Out,
) error {
	caller, err := g.findAgentCaller(ctx, out, in.From)
	if err != nil {
		return err
	}
	for _, a := range protocolAgents {
		id := g.instanceID(a.name)
		if len(in.Tokens) == 3 && in.Tokens[2] != id {
			continue
		}
		reply, err := g.describeAgent(in.Tokens[1], a.name, a.doc, in.From, caller)
		if reply == nil || err != nil {
			return err
		}
		data, err := json.Marshal(reply)
		if err != nil {
			return fmt.Errorf("encoding a discovery reply: %w", err)
		}
		if err := send(data); err != nil {
			return err
		}
	}
	return nil
}

// describeAgent returns the reply to a verb of the micro protocol for an agent of the caller, nil for another verb.
func (g *Gateway) describeAgent(verb, agent, doc, owner string, caller *clientAccess) (any, error) {
	prompt, err := subjects.AgentsPrompt.With(agent, owner, agentSession)
	if err != nil {
		return nil, err
	}
	status, err := subjects.AgentsStatus.With(agent, owner, agentSession)
	if err != nil {
		return nil, err
	}
	id := micro.ServiceIdentity{
		Name: agentServiceName, ID: g.instanceID(agent), Version: actor.DiscoveryVersion(g.Version),
		Metadata: map[string]string{
			"agent": agent, "owner": owner, "session": agentSession,
			"protocol_version": agentProtocolVersion,
		},
	}
	switch verb {
	case "PING":
		return micro.Ping{ServiceIdentity: id, Type: micro.PingResponseType}, nil
	case "INFO":
		limits := map[string]string{
			"max_payload":    fmt.Sprintf("%dKB", subjects.AgentsPrompt.Limit()>>10),
			"attachments_ok": "true",
		}
		return micro.Info{
			ServiceIdentity: id, Type: micro.InfoResponseType, Description: doc,
			Endpoints: []micro.EndpointInfo{
				{Name: "prompt", Subject: prompt.Name, QueueGroup: agentServiceName, Metadata: limits},
				{Name: "status", Subject: status.Name, QueueGroup: agentServiceName},
			},
		}, nil
	case "STATS":
		g.prompts.mu.Lock()
		c := g.prompts.counts[caller.scope+agent]
		g.prompts.mu.Unlock()
		return micro.Stats{
			ServiceIdentity: id, Type: micro.StatsResponseType, Started: g.prompts.started,
			Endpoints: []*micro.EndpointStats{{
				Name: "prompt", Subject: prompt.Name, QueueGroup: agentServiceName, NumRequests: c.requests,
				NumErrors:      c.errors,
				ProcessingTime: c.time, AverageProcessingTime: c.time / time.Duration(max(1, c.requests)),
			}},
		}, nil
	}
	return nil, nil
}
