// Package conclavetool serves a tool for Conclave over a plain NATS connection. It needs nothing of Conclave: conclave
// tool add --lang go copies this file into your folder. docs/tools.md has the contract that it implements.
package conclavetool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Config says how to connect. It is the content of conclave.json, which conclave tool add writes.
type Config struct {
	Server    string `json:"server"`       // URL of the NATS server, or several with commas between them
	Key       string `json:"key"`          // path of the file with the key of the tool
	CA        string `json:"ca,omitempty"` // path of the certificate authority of a server at a tls:// URL
	Principal string `json:"principal"`    // account of the tool
}

// ReadConfig reads conclave.json.
func ReadConfig(path string) (Config, error) {
	var c Config
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("reading the settings of the tool: %w", err)
	}
	return c, nil
}

// Definition is what the model reads about the tool. The user accepts it: after a change the tool waits for conclave
// tool accept.
type Definition struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // JSON Schema of the arguments
	Version     string          `json:"version"`
}

// Handler runs one call. args is a JSON object that fits the parameters. ctx ends at the deadline of the call. The
// result is text for the model; the text of an error too, so it must hold no secret.
type Handler func(ctx context.Context, args json.RawMessage) (string, error)

const (
	// maxRunning bounds the calls that run at once; further ones wait.
	maxRunning = 8
	// defaultTimeout is the timeout of a call without a deadline.
	defaultTimeout = time.Minute
)

// Serve connects, announces the tool, again after each reconnect, and runs handle for each call until ctx ends. Then it
// takes no further call and waits for those that run, which only their deadline ends. Of several instances one gets
// each call. It returns nil when ctx ended, and an error when the key is revoked or the connection cannot be made.
func Serve(ctx context.Context, c Config, d Definition, handle Handler) error {
	definition, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encoding the definition of %s: %w", d.Name, err)
	}
	key, err := nats.NkeyOptionFromSeed(c.Key)
	if err != nil {
		return fmt.Errorf("reading the key of %s: %w", d.Name, err)
	}
	closed := make(chan struct{})
	announce := func(nc *nats.Conn) { _ = nc.Publish("tool.schema."+d.Name, definition) }
	opts := []nats.Option{
		key, nats.Name(c.Principal), nats.MaxReconnects(-1), nats.ReconnectHandler(announce),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
	}
	if c.CA != "" && strings.Contains(c.Server, "tls://") {
		opts = append(opts, nats.RootCAs(c.CA))
	}
	nc, err := nats.Connect(c.Server, opts...)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", c.Server, err)
	}
	defer nc.Close()
	calls, err := subscribe(nc, c, d, definition, handle)
	if err != nil {
		return err
	}
	announce(nc)
	if err := nc.Flush(); err != nil {
		return fmt.Errorf("announcing %s: %w", d.Name, err)
	}
	select {
	case <-ctx.Done():
		calls.wait()
		if err := nc.Drain(); err == nil {
			<-closed
		}
		return nil
	case <-closed: // the server rejected the key: it was revoked or replaced
		return errors.Join(fmt.Errorf("the connection of %s was closed", d.Name), nc.LastError())
	}
}

// calls are the calls that run, and the subscription that they come from.
type calls struct {
	sub     *nats.Subscription
	drained chan struct{} // closed when no further call comes
	running sync.WaitGroup
}

// wait ends the subscription and returns when every call was answered.
func (c *calls) wait() {
	if err := c.sub.Drain(); err == nil {
		<-c.drained
	}
	c.running.Wait()
}

// subscribe serves the calls and the requests for the definition.
func subscribe(nc *nats.Conn, c Config, d Definition, definition []byte, handle Handler) (*calls, error) {
	calls, slots := &calls{drained: make(chan struct{})}, make(chan struct{}, maxRunning)
	var err error
	calls.sub, err = nc.QueueSubscribe("tool.request."+d.Name, c.Principal, func(m *nats.Msg) {
		slots <- struct{}{}
		calls.running.Go(func() {
			defer func() { <-slots }()
			_ = m.Respond(answerCall(m, handle))
		})
	})
	if err != nil {
		return nil, fmt.Errorf("serving %s: %w", d.Name, err)
	}
	calls.sub.SetClosedHandler(func(string) { close(calls.drained) })
	info, err := json.Marshal(map[string]any{
		"type": "io.nats.micro.v1.info_response", "name": c.Principal, "id": nats.NewInbox()[7:], "version": "1.0.0",
		"metadata": map[string]string{"definition." + d.Name: string(definition)},
	})
	if err != nil {
		return nil, err
	}
	if _, err := nc.Subscribe("$SRV.INFO."+c.Principal, func(m *nats.Msg) { _ = m.Respond(info) }); err != nil {
		return nil, fmt.Errorf("serving the definition of %s: %w", d.Name, err)
	}
	return calls, nil
}

// answerCall runs a call and returns the reply.
func answerCall(m *nats.Msg, handle Handler) []byte {
	var order struct {
		Args json.RawMessage `json:"args"`
	}
	var reply struct {
		Result string            `json:"result,omitempty"`
		Error  map[string]string `json:"error,omitempty"`
	}
	deadline := time.Now().Add(defaultTimeout)
	if ms, err := strconv.ParseInt(m.Header.Get("Conclave-Deadline"), 10, 64); err == nil {
		deadline = time.UnixMilli(ms)
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := json.Unmarshal(m.Data, &order)
	if err == nil {
		reply.Result, err = handle(ctx, order.Args)
	}
	if err != nil {
		reply.Result, reply.Error = "", map[string]string{"code": "tool_failed", "text": err.Error()}
	}
	data, err := json.Marshal(reply)
	if err != nil { // strings always encode
		return nil
	}
	return data
}
