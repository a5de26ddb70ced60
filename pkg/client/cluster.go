package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"conclave/subjects"
)

// ClusterStatus is the state of the replicas of all streams that an account can see.
type ClusterStatus struct {
	Name    string   // of the cluster, "" for a single server
	Streams int      // that were examined
	Behind  []string // streams without a leader, or with a replica that is down or lacks messages, each with the reason
}

// CoreCluster returns the state of the replicas of the questions, events and buckets. Only the user's account may read
// it.
func (c *Client) CoreCluster(ctx context.Context) (ClusterStatus, error) {
	return c.clusterStatus(ctx, coreAPI, subjects.Core)
}

// AuditCluster is [Client.CoreCluster] for the audit log, which only the auditor's account may read.
func (c *Client) AuditCluster(ctx context.Context) (ClusterStatus, error) {
	return c.clusterStatus(ctx, auditAPI, subjects.Audit)
}

// clusterStatus examines the streams of account until the first one that is not in a cluster. A stream that does not
// answer is behind, and not an error: it may be electing a leader.
func (c *Client) clusterStatus(ctx context.Context, api, account string) (out ClusterStatus, err error) {
	for _, st := range subjects.Table().Streams {
		if st.Account != account {
			continue
		}
		info, err := c.streamInfo(ctx, api, st.Name)
		var rejected *jetstream.APIError
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case errors.As(err, &rejected):
			return out, err
		case err != nil:
			out.Behind = append(out.Behind, st.Name+" does not answer")
			continue
		case info.Cluster == nil || info.Cluster.Name == "":
			return out, nil
		}
		out.Name = info.Cluster.Name
		out.Streams++
		if info.Cluster.Leader == "" {
			out.Behind = append(out.Behind, st.Name+" has no leader")
		}
		for _, p := range info.Cluster.Replicas {
			switch {
			case p.Offline:
				out.Behind = append(out.Behind, fmt.Sprintf("%s: %s is down", st.Name, p.Name))
			case !p.Current:
				out.Behind = append(out.Behind, fmt.Sprintf("%s: %s lacks %d messages", st.Name, p.Name, p.Lag))
			}
		}
	}
	return out, nil
}
