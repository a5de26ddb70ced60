package webclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strconv"
)

// Failure is why a fetch failed, in a few fixed words. It holds no address, no name server reply and nothing that the
// other side wrote, so that a model learns nothing about the network.
type Failure string

// Error implements error.
func (f Failure) Error() string { return string(f) }

// Why a page could not be had. An answer other than 200 is a [Status].
const (
	ErrAddress   Failure = "not a plain http or https address"
	ErrScheme    Failure = "only http and https are fetched"
	ErrPort      Failure = "refused port"
	ErrForbidden Failure = "refused address"
	ErrName      Failure = "the host was not found"
	ErrConnect   Failure = "the host does not answer"
	ErrSecure    Failure = "no secure connection"
	ErrTimeout   Failure = "timeout"
	ErrLarge     Failure = "too large"
	ErrType      Failure = "not a text page"
	ErrEncoding  Failure = "unreadable encoding"
	ErrRedirects Failure = "too many redirects"
	ErrDowngrade Failure = "redirected from https to http"
	ErrLocation  Failure = "redirected to a refused address"
	ErrBusy      Failure = "too many requests to this host; try later"
	ErrBroken    Failure = "the answer broke off"
)

// Status is an HTTP status other than 200.
type Status int

// Error implements error.
func (s Status) Error() string { return strconv.Itoa(int(s)) }

// failureOf maps err to a Failure or Status that tells a model nothing of this machine, nil for nil. Any error of an
// ended ctx that is neither is [ErrTimeout]. Unknown errors become ErrBroken, which tells least.
func failureOf(ctx context.Context, err error) error {
	var (
		f        Failure
		s        Status
		dns      *net.DNSError
		record   tls.RecordHeaderError
		alert    tls.AlertError
		verify   *tls.CertificateVerificationError
		host     x509.HostnameError
		unknown  x509.UnknownAuthorityError
		netError net.Error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.As(err, &s):
		return s
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &netError) && netError.Timeout():
		return ErrTimeout
	case errors.As(err, &dns):
		return ErrName
	case errors.As(err, &record), errors.As(err, &alert), errors.As(err, &verify), errors.As(err, &host), errors.As(err,
		&unknown):
		return ErrSecure
	}
	var op *net.OpError
	if errors.As(err, &op) {
		switch op.Op {
		case "dial":
			return ErrConnect
		case "remote error", "local error": // alerts of TLS
			return ErrSecure
		}
	}
	return ErrBroken
}
