package programtest_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"conclave/pkg/programtest"
)

// outcome records how a test ends.
type outcome struct {
	testing.TB
	how, text string
}

func (o *outcome) Helper() {}

func (o *outcome) Name() string { return "TestX" }

func (o *outcome) Skipf(format string, v ...any) { o.end("skipped", format, v) }

func (o *outcome) Fatalf(format string, v ...any) { o.end("failed", format, v) }

func (o *outcome) end(how, format string, v []any) {
	o.how, o.text = how, fmt.Sprintf(format, v...)
	runtime.Goexit()
}

// endOf returns how a test with this body ends.
func endOf(body func(testing.TB)) outcome {
	o := outcome{how: "went on"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		body(&o)
	}()
	<-done
	return o
}

// TestMissingProgram: a missing program skips a test with how to install it, and fails it in CI only. A program that is
// there does neither.
func TestMissingProgram(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tt := range map[string]struct {
		ci   string
		body func(testing.TB)
		how  string
	}{
		"missing": {"", func(t testing.TB) { programtest.Require(t, "install it", missing) }, "skipped"},
		"missing, CI=false": {"false", func(t testing.TB) {
			programtest.Require(t, "install it", missing)
		}, "skipped"},
		"missing in CI": {"true", func(t testing.TB) { programtest.Require(t, "install it", missing) }, "failed"},
		"does not work": {"", func(t testing.TB) { programtest.SkipIf(t, errors.New("install it")) }, "skipped"},
		"does not work, CI": {"true", func(t testing.TB) {
			programtest.SkipIf(t, errors.New("install it"))
		}, "failed"},
		"works in CI": {"true", func(t testing.TB) { programtest.SkipIf(t, nil) }, "went on"},
		"the second, in CI": {"true", func(t testing.TB) {
			programtest.Require(t, "", missing, "/bin/sh")
		}, "went on"},
		"in the PATH, in CI": {"true", func(t testing.TB) { programtest.Require(t, "", "sh") }, "went on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CI", tt.ci)
			o := endOf(tt.body)
			if o.how != tt.how || o.how != "went on" && !strings.Contains(o.text, "install it") {
				t.Errorf("%s: %q, want %s", o.how, o.text, tt.how)
			}
		})
	}
}
