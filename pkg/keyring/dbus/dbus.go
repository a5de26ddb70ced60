// Package dbus replaces github.com/godbus/dbus (see the replace directive in the root go.mod) with the part of its API
// that 99designs/keyring and go-libsecret call, on top of the maintained github.com/godbus/dbus/v5.
//
// The replaced package dials the session bus in [SessionBus], and 99designs/keyring calls that in an init function:
// every process that links it would wait for a silent bus, or start dbus-launch when there is none. Here SessionBus
// never dials. The owner of the connection, conclave/pkg/keyring, dials with a timeout when a keyring is opened and
// passes the connection to [Use].
package dbus

import (
	"errors"
	"sync/atomic"

	dbus "github.com/godbus/dbus/v5"
)

// Types and functions of the D-Bus library that are used unchanged.
type (
	Call       = dbus.Call
	Error      = dbus.Error
	Flags      = dbus.Flags
	ObjectPath = dbus.ObjectPath
	Signal     = dbus.Signal
	Variant    = dbus.Variant
)

// MakeVariant wraps v in a variant. It panics when v has no D-Bus type.
func MakeVariant(v any) Variant { return dbus.MakeVariant(v) }

// ErrNotConnected is the error of every call while no open connection was passed to [Use].
var ErrNotConnected = errors.New("not connected to the session bus")

// Conn is the session bus of this process. It has the connection that was last passed to [Use], or none.
type Conn struct{ current atomic.Pointer[dbus.Conn] }

var sessionBus Conn

// Use makes conn the connection of [SessionBus]. conn must be authenticated and have its unique name.
func Use(conn *dbus.Conn) { sessionBus.current.Store(conn) }

// Connected reports whether the connection that was passed to [Use] is open.
func Connected() bool { return sessionBus.connection() != nil }

// SessionBus returns the session bus of this process. It neither dials nor fails: without a connection the calls fail
// with [ErrNotConnected].
func SessionBus() (*Conn, error) { return &sessionBus, nil }

// connection returns the open connection, nil if there is none.
func (c *Conn) connection() *dbus.Conn {
	if conn := c.current.Load(); conn != nil && conn.Connected() {
		return conn
	}
	return nil
}

// Object returns the object at path of the peer dest.
func (c *Conn) Object(dest string, path ObjectPath) BusObject { return object{c, dest, path} }

// Signal sends the signals that arrive to ch, until [Conn.RemoveSignal].
func (c *Conn) Signal(ch chan<- *Signal) {
	if conn := c.connection(); conn != nil {
		conn.Signal(ch)
	}
}

// RemoveSignal stops sending signals to ch.
func (c *Conn) RemoveSignal(ch chan<- *Signal) {
	if conn := c.connection(); conn != nil {
		conn.RemoveSignal(ch)
	}
}

// BusObject is a remote object.
type BusObject interface {
	// Call calls a method, named with its interface, and waits for the reply.
	Call(method string, flags Flags, args ...any) *Call
	// GetProperty reads a property, named with its interface.
	GetProperty(name string) (Variant, error)
	// Path returns the path of the object.
	Path() ObjectPath
}

// object is a [BusObject]. It finds the connection at each call, so that it outlives a lost one.
type object struct {
	conn *Conn
	dest string
	path ObjectPath
}

// Call implements [BusObject].
func (o object) Call(method string, flags Flags, args ...any) *Call {
	conn := o.conn.connection()
	if conn == nil {
		return &Call{Err: ErrNotConnected}
	}
	return conn.Object(o.dest, o.path).Call(method, flags, args...)
}

// GetProperty implements [BusObject].
func (o object) GetProperty(name string) (Variant, error) {
	conn := o.conn.connection()
	if conn == nil {
		return Variant{}, ErrNotConnected
	}
	return conn.Object(o.dest, o.path).GetProperty(name)
}

// Path implements [BusObject].
func (o object) Path() ObjectPath { return o.path }
