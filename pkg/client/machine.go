package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/audit"
	"conclave/subjects"
)

// InviteMachine stores an invitation on the hub, and returns what its token needs besides the secret.
func (c *Client) InviteMachine(ctx context.Context, q subjects.MachineInvite) (subjects.MachineInvited, error) {
	return request(ctx, c, principalTimeout, subjects.MachineInviteService, q)
}

// Machines lists the machines that joined or are invited.
func (c *Client) Machines(ctx context.Context) ([]subjects.MachineStatus, error) {
	l, err := request(ctx, c, readTimeout, subjects.MachineListService, subjects.Empty{})
	if err != nil {
		return nil, fmt.Errorf("listing the machines: %w", err)
	}
	return l.Machines, nil
}

// DescribeLinks returns a line for each machine that joined and whose link is down, with what to do.
func DescribeLinks(all []subjects.MachineStatus) (out []string) {
	for _, m := range all {
		if !m.Added.IsZero() && m.Connected.IsZero() {
			out = append(out, fmt.Sprintf("machines: the link to %s is down, so its actors do not answer (%s); start "+
				"conclave join there, or check the network", m.Name, strings.Join(m.Actors, ", ")))
		}
	}
	return out
}

// Witnessed is what a witness says of the audit log.
type Witnessed struct {
	Heads    []audit.KeptHead
	Synced   time.Time // its last comparison with the hub, by its own clock
	Conflict string    // why the log does not continue the copy, "" if it does
}

// maxWitnessAge is the age at which the last comparison of a witness is too old. A witness compares when it is asked;
// the rest is for clocks that differ.
const maxWitnessAge = 10 * time.Minute

// witnessAttempts is the number of requests to a witness within readTimeout. A link that breaks loses the requests that
// it carries, and their replies: the caller would wait for the whole time, although the machine is back within seconds.
const witnessAttempts = 3

// WitnessHeads returns the heads of the audit log that a machine has copied. c must be connected as the auditor.
func (c *Client) WitnessHeads(ctx context.Context, machine string) (w Witnessed, err error) {
	service, err := subjects.WitnessHead.With(machine)
	if err != nil {
		return w, err
	}
	var reply subjects.WitnessHeads
	for range witnessAttempts {
		reply, err = request(ctx, c, readTimeout/witnessAttempts, service, subjects.Empty{})
		var fault *subjects.Fault
		if !errors.As(err, &fault) || fault.Code != subjects.CodeTimeout || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return w, err
	}
	for _, text := range reply.Heads {
		h, err := audit.ParseLogHead(text)
		if err != nil {
			return w, errors.New("the witness sent something that is not a head")
		}
		w.Heads = append(w.Heads, audit.KeptHead{LogHead: h, Where: "the witness " + machine})
	}
	w.Synced, w.Conflict = reply.Synced, reply.Conflict
	return w, nil
}

// Problem returns why the log is not confirmed by the witness at the time now, "" when it is as far as the heads tell.
func (w Witnessed) Problem(now time.Time) string {
	switch {
	case w.Conflict != "":
		return "it reports: " + w.Conflict
	case len(w.Heads) == 0:
		return "it has no copy of the log"
	case now.Sub(w.Synced).Abs() > maxWitnessAge:
		return "its last comparison was at " + w.Synced.UTC().Format(time.RFC3339) + ", or its clock is wrong"
	}
	return ""
}
