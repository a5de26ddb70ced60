//go:build !cgo

package store

import "database/sql/driver"

const haveDuckDB = false

func newConnector(string, func(driver.ExecerContext) error) (driver.Connector, error) {
	return nil, ErrNoDuckDB
}

func newAppender(any, string) (appender, error) { return nil, ErrNoDuckDB }
