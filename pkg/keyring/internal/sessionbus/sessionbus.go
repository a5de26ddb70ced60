// Package sessionbus keeps the desktop's session bus out of processes that do not need it.
//
// The keyring library dials the session bus while its package is initialized, in every run of a program that links it: it
// waits for ever when nobody answers there, and starts dbus-launch when there is no address. So this package is
// initialized before it and sets the address: to one where somebody answers, or to nothing at all. Afterwards [Restore]
// gives the environment back as it was.
//
// The order is a promise of the language: of the packages whose imports are initialized, the one whose path sorts first
// comes next. This path sorts before that of the library, and the library imports all that is imported here. Whoever
// adds an import looks at the test that holds it to that.
package sessionbus

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	variable = "DBUS_SESSION_BUS_ADDRESS"
	nowhere  = "none:" // no transport of this name: it fails without a single system call
	patience = 100 * time.Millisecond
)

// State is what was found when the process started.
type State struct {
	Address string // "" = no session bus for this process
	Why     string // why there is none
}

var (
	found  State
	before string
	was    bool
)

func init() {
	before, was = os.LookupEnv(variable)
	if Wanted(os.Args[1:]) {
		found = look(before, "/run/user/"+strconv.Itoa(os.Getuid()))
	} else {
		found.Why = "this command does not use the session bus"
	}
	address := found.Address
	if address == "" {
		address = nowhere
	}
	if err := os.Setenv(variable, address); err != nil { // never: name and value are plain
		panic("keyring: setting " + variable + ": " + err.Error())
	}
}

// Found is what this process found.
func Found() State { return found }

// Restore gives children of this process the environment that it was given itself.
func Restore() {
	if was {
		_ = os.Setenv(variable, before)
		return
	}
	_ = os.Unsetenv(variable)
}

// look finds the session bus as the library would, and asks whether somebody is there.
func look(address, runtime string) State {
	if address == "" || address == "autolaunch:" {
		address = discover(runtime)
	}
	if address == "" {
		return State{Why: "there is no session bus: " + variable + " is not set, and " + runtime + "/bus is not there"}
	}
	why := "its address has no unix socket"
	for entry := range strings.SplitSeq(address, ";") {
		socket := socketOf(entry)
		if socket == "" {
			continue
		}
		err := greet(socket, patience)
		if err == nil {
			return State{Address: entry}
		}
		why = "at " + socket + ": " + err.Error()
	}
	return State{Why: "the session bus does not answer: " + why}
}

// discover is the address where desktops put it when they do not say.
func discover(runtime string) string {
	if _, err := os.Stat(runtime + "/bus"); err == nil {
		return "unix:path=" + runtime + "/bus"
	}
	f, err := os.Open(runtime + "/dbus-session")
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	address, _ := strings.CutPrefix(strings.TrimSpace(line), variable+"=")
	return strings.Trim(address, `'"`)
}

// socketOf is the unix socket of one address, "" when it has none. It reads as the library reads.
func socketOf(entry string) string {
	keys, ok := strings.CutPrefix(entry, "unix:")
	if !ok {
		return ""
	}
	var path, abstract string
	for pair := range strings.SplitSeq(keys, ",") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "path":
			path = value
		case "abstract":
			abstract = value
		}
	}
	switch {
	case path != "" && abstract == "":
		return path
	case abstract != "" && path == "":
		return "@" + abstract
	}
	return ""
}

// greet goes as far as the library will: it introduces itself, says hello and waits for the answer. A bus that takes
// connections and is silent fails here and not there.
func greet(socket string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	conn, err := net.DialTimeout("unix", socket, limit)
	if err != nil {
		return plain(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return plain(err)
	}
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := io.WriteString(conn, "\x00AUTH EXTERNAL "+uid+"\r\n"); err != nil {
		return plain(err)
	}
	in := bufio.NewReaderSize(conn, 4096)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return plain(err)
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return errors.New("it does not accept this user")
	}
	if _, err := conn.Write(append([]byte("BEGIN\r\n"), hello()...)); err != nil {
		return plain(err)
	}
	var head [16]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return plain(err)
	}
	const methodReturn = 2
	if (head[0] != 'l' && head[0] != 'B') || head[1] != methodReturn {
		return errors.New("what answers there is no session bus")
	}
	return nil
}

// plain says in short what a connection failed of.
func plain(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errors.New("it took longer than " + patience.String())
	}
	if inner := new(net.OpError); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}

// hello is the first message that a bus expects: org.freedesktop.DBus.Hello, without arguments, little-endian.
func hello() []byte {
	var fields []byte
	for _, f := range []struct {
		code, kind byte
		value      string
	}{
		{1, 'o', "/org/freedesktop/DBus"}, {2, 's', "org.freedesktop.DBus"}, {3, 's', "Hello"}, {6, 's', "org.freedesktop.DBus"},
	} {
		fields = pad(fields, 8)
		fields = append(fields, f.code, 1, f.kind, 0, byte(len(f.value)), 0, 0, 0)
		fields = append(append(fields, f.value...), 0)
	}
	m := []byte{'l', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, byte(len(fields)), 0, 0, 0}
	return pad(append(m, fields...), 8)
}

func pad(b []byte, n int) []byte {
	for len(b)%n != 0 {
		b = append(b, 0)
	}
	return b
}
