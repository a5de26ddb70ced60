//go:build cgo

package store

import (
	"database/sql/driver"
	"errors"

	"github.com/duckdb/duckdb-go/v2"
)

// haveDuckDB says whether there is a database in this program.
const haveDuckDB = true

// newConnector starts a DuckDB with nothing in it. Each new connection goes through first.
func newConnector(settings string, first func(driver.ExecerContext) error) (driver.Connector, error) {
	return duckdb.NewConnector("?"+settings, first)
}

// newAppender adds many rows to a table at once, inside the transaction of the connection.
func newAppender(conn any, table string) (appender, error) {
	c, ok := conn.(driver.Conn)
	if !ok {
		return nil, errors.New("no connection of DuckDB")
	}
	return duckdb.NewAppenderFromConn(c, "", table)
}
