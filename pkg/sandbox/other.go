//go:build !linux || !(amd64 || arm64)

package sandbox

import (
	"context"
	"fmt"
	"runtime"
)

// Run always fails: there is no sandbox on this system.
func Run(ctx context.Context, _ Spec) (Result, error) { return Result{}, SelfTest(ctx) }

// SelfTest reports that there is no sandbox on this system.
func SelfTest(context.Context) error {
	return fmt.Errorf("%w: programs run only on Linux (amd64, arm64) with bubblewrap, and this is %s/%s",
		ErrUnavailable, runtime.GOOS, runtime.GOARCH)
}

// GiveToPrograms fails: programs are run on Linux only.
func GiveToPrograms(string) error { return ErrUnavailable }

// CanWrite reports that no program can write: programs are run on Linux only.
func CanWrite(string) (ok bool, user int) { return false, -1 }

// MakeTemp fails: programs are run on Linux only.
func MakeTemp() (dir string, remove func(), err error) { return "", nil, ErrUnavailable }
