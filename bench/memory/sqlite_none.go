//go:build !sqlitevec

package main

import "errors"

// sqliteVec says that sqlite-vec is not built in.
const sqliteVec = false

func openLite(job) (engine, error) {
	return nil, errors.New("sqlite-vec is not built in; install SQLite's headers (Debian: libsqlite3-dev) and use go run -tags sqlitevec ./memory")
}
