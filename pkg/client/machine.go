package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// InviteMachine stores an invitation on the hub, and returns what its token needs besides the secret.
func (c *Client) InviteMachine(ctx context.Context, q subjects.MachineInvite) (subjects.MachineInvited, error) {
	ctx, cancel := context.WithTimeout(ctx, principalTimeout)
	defer cancel()
	return actor.Ask(ctx, c.out, subjects.MachineInviteService, q)
}

// Machines lists the machines that joined or are invited.
func (c *Client) Machines(ctx context.Context) ([]subjects.MachineStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	l, err := actor.Ask(ctx, c.out, subjects.MachineListService, subjects.Empty{})
	if err != nil {
		return nil, fmt.Errorf("listing the machines: %w", err)
	}
	return l.Machines, nil
}

// DescribeLinks returns a line for each machine that joined and whose link is down, with what to do.
func DescribeLinks(all []subjects.MachineStatus) (out []string) {
	for _, m := range all {
		if !m.Added.IsZero() && m.Connected.IsZero() {
			out = append(out, fmt.Sprintf("machines: the link to %s is down, so its actors do not answer (%s); start conclave join there, or check the network", m.Name, strings.Join(m.Actors, ", ")))
		}
	}
	return out
}

// WitnessHeads returns the heads of the audit log that a machine has copied, and why the log does not continue the copy, "" if it
// does. c must be connected as the auditor.
func (c *Client) WitnessHeads(ctx context.Context, machine string) (heads []audit.KeptHead, conflict string, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	service, err := subjects.WitnessHead.With(machine)
	if err != nil {
		return nil, "", err
	}
	reply, err := actor.Ask(ctx, c.out, service, subjects.Empty{})
	if err != nil {
		return nil, "", err
	}
	for _, text := range reply.Heads {
		h, err := audit.ParseLogHead(text)
		if err != nil {
			return nil, "", errors.New("the witness sent something that is not a head")
		}
		heads = append(heads, audit.KeptHead{LogHead: h, Where: "the witness " + machine})
	}
	return heads, reply.Conflict, nil
}
