package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"

	"conclave/actors/gateway"
	"conclave/subjects"
)

// maxReply bounds a reply of [App.RequestHTTP], in bytes.
const maxReply = 1 << 20

// RequestHTTP sends a request without a body to the gateway, over its Unix socket, and decodes the reply into a pointer
// unless it is nil. It never uses TCP: another program may have the port, and would get the token.
// A gateway that does not run is exit code 4, an error response a failure with its text.
func (a *App) RequestHTTP(ctx context.Context, socket, method, path string, into any) error {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return gateway.DialSocket(ctx, socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return Fail(ExitAbsent, "no gateway serves "+socket, "start it with conclave up"+a.FolderFlags())
	case err != nil:
		return Fail(ExitAbsent, "requesting "+path+" over "+socket+": "+err.Error(), "see conclave doctor"+
			a.FolderFlags())
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return fmt.Errorf("reading the reply of %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		var reply struct {
			Error subjects.Fault `json:"error"`
		}
		if err := json.Unmarshal(data, &reply); err != nil || reply.Error.Text == "" {
			reply.Error.Text = res.Status
		}
		return Fail(ExitFailed, path+": "+reply.Error.Text, "see the log of conclave up")
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading the reply of %s: %w", path, err)
	}
	return nil
}
