package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"conclave/pkg/file"
	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Browser logins survive a restart of the gateway: they are in a file beside the token file, with the digests of their
// cookies. A login is of use only to the browser that has it: see [browserLogin.isOf].

const (
	loginLifetime = 30 * 24 * time.Hour
	maxLogins     = 64        // a new one beyond them replaces the oldest
	usedEvery     = time.Hour // how exact the last use of a login is stored
	maxBrowser    = 300       // bytes of a User-Agent
	maxLoginsFile = 256 << 10

	loginsLockTimeout = 2 * time.Second
)

// browserLogin is a browser that logged in with a one-time code.
type browserLogin struct {
	ID      string    `json:"id"`
	Digest  string    `json:"digest"`  // of the cookie, hexadecimal
	Host    string    `json:"host"`    // name under which the browser reaches the gateway
	Browser string    `json:"browser"` // its User-Agent
	Created time.Time `json:"created"`
	Used    time.Time `json:"used"` // at most usedEvery before the last use
	Expires time.Time `json:"expires"`

	revoked chan struct{} // closed when the login is revoked
}

// storedLogins is the file of the logins.
type storedLogins struct {
	Cookie string          `json:"cookie"` // name of the cookie; another token has another one
	Logins []*browserLogin `json:"logins"` // oldest first
}

// isOf reports whether r comes from the browser of the login: by the same name of this machine, and with the same
// User-Agent except for its version, which changes with each update. A program on another port, to which the browser
// sends the cookie too, cannot use it for a name in gateway.hosts.
func (l *browserLogin) isOf(r *http.Request) bool {
	return time.Now().Before(l.Expires) && strings.EqualFold(l.Host, trimPort(r.Host)) &&
		removeVersion(l.Browser) == removeVersion(browserOf(r))
}

func browserOf(r *http.Request) string { return text.Clip(r.UserAgent(), maxBrowser) }

func removeVersion(userAgent string) string {
	return strings.Join(strings.FieldsFunc(userAgent, func(r rune) bool { return unicode.IsDigit(r) || r == '.' }), "")
}

// loginsFile is the file of the logins, beside the token file.
func (c *credentials) loginsFile() string { return filepath.Join(filepath.Dir(c.file), "http.logins") }

// refreshLogins reads the logins when their file is another one than the last time, as after a change by another
// gateway with the same token file. Requests in progress with a login that is gone end. A file that cannot be read is
// reported, and has no logins. c must be locked.
func (c *credentials) refreshLogins() {
	info, _ := os.Lstat(c.loginsFile()) // nil = there is none
	seen := c.loginsInfo
	if info == nil && seen == nil || info != nil && seen != nil && os.SameFile(info, seen) &&
		info.Size() == seen.Size() && info.ModTime().Equal(seen.ModTime()) {
		return
	}
	c.loginsInfo = info
	stored, err := c.readLogins()
	c.report(err)
	var gone []*browserLogin
	for _, l := range c.logins {
		i := slices.IndexFunc(stored, func(s *browserLogin) bool { return s.ID == l.ID && s.Digest == l.Digest })
		if i < 0 {
			gone = append(gone, l)
		} else {
			stored[i].revoked = l.revoked
		}
	}
	c.removeLogins(gone...)
	c.logins = stored
}

// readLogins returns the logins that are stored for the token. Without a file there are none. c must be locked.
func (c *credentials) readLogins() (logins []*browserLogin, err error) {
	data, err := file.ReadPrivate(c.loginsFile(), maxLoginsFile)
	var stored storedLogins
	if err == nil {
		err = strict.DecodeStored(data, &stored)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the browser logins, so that every browser has to log in again: %w", err)
	case stored.Cookie != c.cookie:
		return nil, nil
	}
	for _, l := range stored.Logins {
		if l != nil {
			l.revoked = make(chan struct{})
			logins = append(logins, l)
		}
	}
	return logins, nil
}

// changeLogins lets change modify the logins as they are stored, and stores them. Gateways that share the file do so
// one after the other. When a revocation cannot be stored, as on a full disk, the file is removed: no login that it had
// is valid after a restart or at another gateway. c must be locked.
func (c *credentials) changeLogins(change func()) error {
	unlock, err := file.LockFolder(filepath.Dir(c.file), loginsLockTimeout)
	if err == nil {
		defer unlock()
	}
	c.refreshLogins()
	before := c.logins
	change()
	if err == nil {
		err = file.ReplaceJSON(c.loginsFile(), storedLogins{c.cookie, c.logins})
	}
	isGone := func(l *browserLogin) bool { return !slices.Contains(c.logins, l) }
	switch {
	case err == nil:
		c.loginsInfo, _ = os.Lstat(c.loginsFile())
		return nil
	case !slices.ContainsFunc(before, isGone):
		return fmt.Errorf("storing the browser logins: %w", err)
	}
	if removeErr := os.Remove(c.loginsFile()); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		return fmt.Errorf("storing that a browser login is revoked, which is valid again after a restart: remove %s: "+
			"%w, %w", c.loginsFile(), err, removeErr)
	}
	c.loginsInfo = nil
	return fmt.Errorf("storing that a browser login is revoked, so that all were removed from the disk, and every "+
		"browser has to log in again after a restart: %w", err)
}

// findLogin returns the login of a cookie of r, nil when there is none. Another server of the same host can add cookies
// of the same name, so each is compared. c must be locked.
func (c *credentials) findLogin(r *http.Request) *browserLogin {
	for _, cookie := range r.CookiesNamed(c.cookie) {
		digest := digestSecret(cookie.Value)
		for _, l := range c.logins {
			var known secretDigest
			if n, err := hex.Decode(known[:], []byte(l.Digest)); err == nil && n == len(known) &&
				known.equals(digest) && l.isOf(r) {
				return l
			}
		}
	}
	return nil
}

// noteUse stores that a login is used now, every usedEvery.
func (c *credentials) noteUse(l *browserLogin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now().UTC(); now.Sub(l.Used) >= usedEvery {
		c.report(c.changeLogins(func() {
			for _, stored := range c.logins {
				if stored.ID == l.ID {
					stored.Used = now
				}
			}
		}))
	}
}

// addLogin returns the cookie of a new login of the browser of r, in place of the one that it has. c must be locked.
func (c *credentials) addLogin(r *http.Request) *http.Cookie {
	value, now := newSecret(), time.Now().UTC()
	digest := digestSecret(value)
	err := c.changeLogins(func() {
		if old := c.findLogin(r); old != nil {
			c.removeLogins(old)
		}
		c.removeLogins(c.logins[:max(0, len(c.logins)-maxLogins+1)]...)
		c.logins = append(c.logins, &browserLogin{
			ID: newSecret()[:16], Digest: hex.EncodeToString(digest[:]), Host: trimPort(r.Host), Browser: browserOf(r),
			Created: now, Used: now, Expires: now.Add(loginLifetime), revoked: make(chan struct{}),
		})
	})
	c.report(err) // without it the browser is logged in until the restart
	return &http.Cookie{
		Name: c.cookie, Value: value, Path: "/", Expires: now.Add(loginLifetime), HttpOnly: true, Secure: c.secure,
		SameSite: http.SameSiteStrictMode,
	}
}

// removeLogins revokes logins; requests in progress with them end. c must be locked.
func (c *credentials) removeLogins(which ...*browserLogin) {
	for _, l := range which {
		close(l.revoked)
	}
	c.logins = slices.DeleteFunc(slices.Clone(c.logins), func(l *browserLogin) bool {
		return slices.Contains(which, l)
	})
}

// BrowserLogin is a browser that is logged in.
type BrowserLogin struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`    // name under which it reaches the gateway
	Browser string    `json:"browser"` // its User-Agent
	Created time.Time `json:"created"`
	Used    time.Time `json:"used"` // at most an hour before its last use
	Expires time.Time `json:"expires"`
	Current bool      `json:"current"` // it sent this request
}

// onLogins lists the browsers that are logged in, last used first.
func (g *Gateway) onLogins(_ context.Context, r *http.Request) (any, error) {
	c := g.credentials
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLogins()
	list, own := []BrowserLogin{}, c.findLogin(r)
	for _, l := range c.logins {
		if time.Now().Before(l.Expires) {
			list = append(list, BrowserLogin{l.ID, l.Host, l.Browser, l.Created, l.Used, l.Expires, l == own})
		}
	}
	slices.SortStableFunc(list, func(a, b BrowserLogin) int { return b.Used.Compare(a.Used) })
	return object{{"logins", list}}, nil
}

// onLogout revokes a browser login, also that of the browser which asks for it. Its requests in progress end, except
// this one.
func (g *Gateway) onLogout(_ context.Context, r *http.Request) (any, error) {
	id, c, i := r.PathValue("id"), g.credentials, -1
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.changeLogins(func() {
		i = slices.IndexFunc(c.logins, func(l *browserLogin) bool { return l.ID == id })
		if i >= 0 {
			c.removeLogins(c.logins[i])
		}
	})
	if i < 0 {
		return nil, notFoundf("login %s not found; GET /logins lists the browsers that are logged in", id)
	}
	return object{{"id", id}, {"revoked", true}}, err
}
