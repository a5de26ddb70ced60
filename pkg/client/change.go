package client

import (
	"context"
	"time"

	"conclave/subjects"
)

// changeTimeout is the timeout of requests about changes: an undo writes and syncs each file.
const changeTimeout = 110 * time.Second

// Changes lists what calls changed and can be undone, newest first; a single one with the differences.
func (c *Client) Changes(ctx context.Context, q subjects.ChangeQuery) (subjects.ChangeList, error) {
	return request(ctx, c, changeTimeout, subjects.ChangeListService, q)
}

// Undo plans an undo, does it or removes what is kept of changes, as the action of q says. A refusal is part of the
// reply.
func (c *Client) Undo(ctx context.Context, q subjects.UndoRequest) (subjects.UndoReply, error) {
	return request(ctx, c, changeTimeout, subjects.ChangeUndoService, q)
}
