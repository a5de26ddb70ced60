package client

import (
	"context"
	"encoding/json"

	"github.com/nats-io/nats.go/micro"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Ping returns the running instances of an actor, of all actors for "". Empty without an error means that none
// answered.
func (c *Client) Ping(ctx context.Context, actor string) ([]micro.Ping, error) {
	return discover[micro.Ping](ctx, c, "PING", actor)
}

// Stats returns the figures of all actors.
func (c *Client) Stats(ctx context.Context) ([]micro.Stats, error) {
	return discover[micro.Stats](ctx, c, "STATS", "")
}

// decodePing decodes a reply to a ping, and reports false for anything else.
func decodePing(data []byte) (p micro.Ping, ok bool) {
	return p, json.Unmarshal(data, &p) == nil
}

// discover requests verb of the micro protocol from the named actor, "" for all, and returns every reply that decodes,
// in the order of arrival; see [actor.Discover]. When ctx ends, its error comes with the replies so far. A client of an
// actor without a connection gets the replies of all others, if the actor is the directory, see [subjects.Directory].
func discover[T any](ctx context.Context, c *Client, verb, name string) (out []T, err error) {
	add := func(data []byte) {
		var v T
		if json.Unmarshal(data, &v) == nil {
			out = append(out, v)
		}
	}
	if c.nc == nil { // an actor: only the directory may reach all others
		err = actor.DiscoverAll(ctx, c.out, verb, add)
		return out, err
	}
	err = actor.Discover(ctx, c.nc, func(d subjects.Discoverable) string {
		if name != "" && d.Name != name {
			return ""
		}
		return "$SRV." + verb + "." + d.Name
	}, func(_ string, data []byte) { add(data) })
	return out, err
}
