//go:build !sqlitevec

package main

import "errors"

// hasSQLite reports that sqlite-vec is not built in.
const hasSQLite = false

func openSQLite(bool) (engine, error) {
	return nil, errors.New("sqlite-vec is not built in; install SQLite's headers (Debian: libsqlite3-dev) and use go " +
		"run -tags sqlitevec,sqlite_fts5 ./memory")
}
