package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"conclave/pkg/file"
)

// Lifetime and number of login codes. A new one beyond the maximum replaces the oldest.
const (
	codeLifetime = 10 * time.Minute
	maxCodes     = 16
)

// Length limits of a token, in characters.
const (
	minToken = 32
	maxToken = 1024
)

// secretDigest is the SHA-256 of a token, a login code or a cookie. The secrets themselves are not kept.
type secretDigest [sha256.Size]byte

func digestSecret(secret string) secretDigest { return sha256.Sum256([]byte(secret)) }

// equals compares in constant time.
func (d secretDigest) equals(other secretDigest) bool {
	return subtle.ConstantTimeCompare(d[:], other[:]) == 1
}

// newSecret returns 256 random bits as hexadecimal digits.
func newSecret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// timedSecret is a login code.
type timedSecret struct {
	digest  secretDigest
	expires time.Time
}

// credentials are the secrets that authorize requests over TCP: the bearer token of the token file, and the cookies of
// browsers that logged in with a one-time code. Codes exist only in memory.
type credentials struct {
	file   string
	report func(error) // of what is stored beside the request that needs it; nil is no error

	mu     sync.Mutex
	cookie string // its name, see setToken
	secure bool   // browsers send the cookie over TLS only
	token  secretDigest
	codes  []timedSecret   // oldest first
	logins []*browserLogin // oldest first
	// loginsInfo is that of the file which logins were read from or written to; nil = there was none
	loginsInfo fs.FileInfo
	revoked    chan struct{} // closed by replaceToken
}

// setToken sets the token and names the cookie after it: browsers share cookies between the ports of a host, and two
// gateways must not overwrite each other's. Logins that are stored for another token are void. c must be locked.
func (c *credentials) setToken(token secretDigest) {
	name := digestSecret("cookie " + hex.EncodeToString(token[:]))
	c.token, c.cookie = token, "conclave_"+hex.EncodeToString(name[:8])
}

// openCredentials reads the token file, and creates it when it is missing, and the browser logins. It fails without a
// path. Logins that cannot be read are reported and void. Browsers send the cookie over TLS only when users reach the
// gateway over TLS at url.
func openCredentials(path, url string, report func(error)) (*credentials, error) {
	if path == "" {
		return nil, errors.New("opening the credentials of HTTP: gateway.token_file is not set")
	}
	token, err := readTokenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = writeTokenFile(path, newSecret(), file.Create); err == nil || errors.Is(err, fs.ErrExist) {
			token, err = readTokenFile(path) // another gateway may have created it meanwhile
		}
	}
	if err != nil {
		return nil, err
	}
	c := &credentials{
		file: path, secure: strings.HasPrefix(url, "https://"), revoked: make(chan struct{}),
		report: func(err error) {
			if err != nil {
				report(err)
			}
		},
	}
	c.setToken(token)
	c.refreshLogins()
	return c, nil
}

// authorize reports whether r has the token, or the cookie of a browser login and acceptsCookie; revoked is closed when
// that credential is revoked. The caller must reject cross-site requests.
func (c *credentials) authorize(r *http.Request, acceptsCookie func(*http.Request) bool) (revoked <-chan struct{},
	ok bool,
) {
	c.mu.Lock()
	c.refreshLogins()
	revoked, token, login := c.revoked, c.matchToken(r), c.findLogin(r)
	c.mu.Unlock()
	switch {
	case token:
		return revoked, true
	case login == nil || !acceptsCookie(r):
		return nil, false
	}
	c.noteUse(login)
	return login.revoked, true
}

// hasToken reports whether r has the token.
func (c *credentials) hasToken(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.matchToken(r)
}

// matchToken reports whether r has the token in its one Authorization header, with the scheme Bearer; several headers
// are false. Tokens in URLs are not accepted: URLs end up in histories and logs. c must be locked.
func (c *credentials) matchToken(r *http.Request) bool {
	token, ok := bearerToken(r)
	return digestSecret(token).equals(c.token) && ok
}

// bearerToken returns the token of the one Authorization header of r, with the scheme Bearer; several headers are
// false.
func bearerToken(r *http.Request) (token string, ok bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

// newCode returns a login code that is valid once, for codeLifetime.
func (c *credentials) newCode() (code string, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	code, expires = newSecret(), time.Now().Add(codeLifetime)
	c.codes = append(slices.Clone(c.codes[max(0, len(c.codes)-maxCodes+1):]), timedSecret{digestSecret(code), expires})
	return code, expires
}

// redeemCode exchanges a login code for the cookie of a new login of the browser of r. It is false for a code that is
// unknown, expired or used.
func (c *credentials) redeemCode(code string, r *http.Request) (*http.Cookie, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	digest := digestSecret(code)
	i := slices.IndexFunc(c.codes, func(s timedSecret) bool {
		return s.digest.equals(digest) && time.Now().Before(s.expires)
	})
	if i < 0 {
		return nil, false
	}
	c.codes = slices.Delete(c.codes, i, i+1)
	return c.addLogin(r), true
}

// replaceToken writes a new token to the token file and revokes the old one, every browser login and every login code.
// After an error nothing is revoked.
func (c *credentials) replaceToken() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	token := newSecret()
	if err := writeTokenFile(c.file, token, file.Replace); err != nil {
		return err
	}
	c.setToken(digestSecret(token))
	c.codes = nil
	close(c.revoked)
	c.revoked = make(chan struct{})
	c.report(c.changeLogins(func() { c.removeLogins(c.logins...) })) // the earlier ones are void in any case
	return nil
}

// ReplaceToken writes a new token to the token file at path, with which every login is void. A running gateway does not
// notice it.
func ReplaceToken(path string) error { return writeTokenFile(path, newSecret(), file.Replace) }

// writeTokenFile writes a token to the file at path, with [file.Replace] or [file.Create].
func writeTokenFile(path, token string, write func(path string, data []byte) error) error {
	if err := write(path, []byte(token+"\n")); err != nil {
		return fmt.Errorf("writing the token file: %w", err)
	}
	return nil
}

// CheckTokenFile reports what is wrong with a token file; the error wraps [fs.ErrNotExist] when there is none.
func CheckTokenFile(path string) error {
	_, err := readTokenFile(path)
	return err
}

// readTokenFile reads the bearer token from path and returns its digest. It rejects a file that is not regular, that
// another user owns or that group or others can access, and a token that is not minToken to maxToken visible ASCII
// characters; space around it is ignored. Errors do not contain the token.
func readTokenFile(path string) (digest secretDigest, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would wait for its writer
	if err != nil {
		return digest, fmt.Errorf("reading the token file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return digest, fmt.Errorf("reading the token file: %w", err)
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return digest, fmt.Errorf("reading the token file: %s is not a regular file", path)
	case stat == nil || int(stat.Uid) != os.Geteuid():
		return digest, fmt.Errorf("reading the token file: %s belongs to another user; remove it, and the next start "+
			"creates a new one", path)
	case info.Mode().Perm()&0o077 != 0:
		return digest, fmt.Errorf("reading the token file: %s is accessible to other users; remove it, and the next "+
			"start creates a new one", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxToken+3))
	if err != nil {
		return digest, fmt.Errorf("reading the token file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	invalid := strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
	if len(token) < minToken || len(token) > maxToken || invalid {
		return digest, fmt.Errorf("reading the token file: %s must contain one line of %d to %d visible ASCII "+
			"characters", path, minToken, maxToken)
	}
	return digestSecret(token), nil
}

// errSocketTaken means that another process serves the Unix socket.
var errSocketTaken = errors.New("another process serves this Unix socket")

// isFromSocket reports whether r came over the Unix socket, whose file mode is its credential.
func isFromSocket(r *http.Request) bool {
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return addr != nil && addr.Network() == "unix"
}

// ListenSocket listens on a Unix socket of mode 0600 at path and replaces one that a killed gateway left behind. The
// socket is bound in a folder of mode 0700 and moved to path with its final mode, so that no other user can connect at
// any time. It fails with [errSocketTaken] when a gateway serves path, and when path is not a socket. Closing removes
// the file.
func ListenSocket(ctx context.Context, path string) (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("listening on the Unix socket %s: %w", path, err)
	}
	if conn, err := DialSocket(ctx, path); err == nil {
		conn.Close()
		return fail(errSocketTaken)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fail(errors.New("the file exists and is not a socket"))
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".http-") // with mode 0700
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	private := filepath.Join(dir, "s")
	short, release, err := shortenSocketPath(private)
	if err != nil {
		return fail(err)
	}
	defer release()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", short)
	if err != nil {
		return fail(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // it would remove private
	if err = os.Chmod(private, 0o600); err == nil {
		err = os.Rename(private, path)
	}
	if err != nil {
		ln.Close()
		return fail(err)
	}
	return &socketListener{ln, path}, nil
}

// socketListener removes its socket when it is closed.
type socketListener struct {
	net.Listener
	path string
}

// Close implements [net.Listener].
func (l *socketListener) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(l.Listener.Close(), err)
}

// DialSocket connects to the Unix socket of a gateway.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	short, release, err := shortenSocketPath(path)
	if err != nil {
		return nil, err
	}
	defer release()
	return (&net.Dialer{}).DialContext(ctx, "unix", short)
}

// maxSocketPath is the longest path in a Unix socket address on Linux.
const maxSocketPath = 107

// shortenSocketPath returns a path for path that fits into a socket address, valid until release is called: path
// itself, or one through the open folder in /proc. It fails when the folder cannot be opened.
func shortenSocketPath(path string) (short string, release func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { dir.Close() }, nil
}
