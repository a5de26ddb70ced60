package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
)

// logger writes for people on a terminal and JSON for programs elsewhere.
func (a *app) logger(level slog.Level) *slog.Logger {
	if isTerminal(a.stderr) {
		return slog.New(tint.NewTextHandler(a.stderr, &tint.Options{Level: level, TimeFormat: time.TimeOnly, NoColor: !coloured(a.stderr), ReplaceAttr: harmless}))
	}
	return slog.New(slog.NewJSONHandler(a.stderr, &slog.HandlerOptions{Level: level}))
}

// harmless takes out of a log line what could steer the terminal: subjects and errors hold what others wrote.
func harmless(_ []string, at slog.Attr) slog.Attr {
	switch v := at.Value.Any().(type) {
	case string:
		at.Value = slog.StringValue(plainText(v))
	case error:
		at.Value = slog.StringValue(plainText(v.Error()))
	}
	return at
}

// interruptible gives a context that ends with the first SIGINT, SIGTERM or hang-up. The second ends the process at once. A
// broken pipe is an error of the write and not a signal, so that it can end a command in order.
func interruptible(ctx context.Context, stderr io.Writer) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup asks to outlive the terminal
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case <-signals:
			fmt.Fprintln(stderr, "conclave: stopped at once: what was running was cut off")
			os.Exit(exitFailed)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
