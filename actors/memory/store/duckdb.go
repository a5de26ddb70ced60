//go:build cgo

package store

import (
	"database/sql/driver"
	"errors"

	"github.com/duckdb/duckdb-go/v2"
)

// haveDuckDB says whether there is a database in this program.
const haveDuckDB = true

// newConnector starts a DuckDB in memory with nothing in it. settings is a URL-encoded query of DuckDB's options. first
// is called with each new connection; its error fails the connection.
func newConnector(settings string, first func(driver.ExecerContext) error) (driver.Connector, error) {
	return duckdb.NewConnector("?"+settings, first)
}

// newAppender returns an appender that adds many rows to a table at once, inside the transaction of conn. conn is the
// driver's connection, as sql.Conn.Raw passes it; anything else is an error.
func newAppender(conn any, table string) (appender, error) {
	c, ok := conn.(driver.Conn)
	if !ok {
		return nil, errors.New("no connection of DuckDB")
	}
	return duckdb.NewAppenderFromConn(c, "", table)
}
