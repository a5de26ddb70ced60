package bus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"conclave/pkg/file"
)

// Certificate names the files of the TLS certificate of the hub, which other machines connect to.
type Certificate struct{ Cert, Key string }

// ErrCertificate means that a certificate cannot be used; the text says why and what to do.
var ErrCertificate = errors.New("unusable TLS certificate")

// EnsureCertificate returns the certificate in dir, see [Certificate.ensure].
func EnsureCertificate(dir string) (Certificate, error) {
	c := Certificate{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	return c, c.ensure()
}

// ensure creates a missing certificate: self-signed, ECDSA P-256, mode 0600. A key without a certificate, which a crash
// may leave, gets one; a certificate without a key is an error. Machines compare the public key with the pin of their
// invitation, so the names and the end date mean nothing. It rejects a certificate that cannot be used.
func (c Certificate) ensure() error {
	if _, err := os.Stat(c.Cert); errors.Is(err, fs.ErrNotExist) {
		for _, dir := range []string{filepath.Dir(c.Key), filepath.Dir(c.Cert)} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("making %s: %w", dir, err)
			}
		}
		template := &x509.Certificate{
			Subject: pkix.Name{CommonName: "conclave"}, DNSNames: []string{"conclave"},
			NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(100, 0, 0),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		if err := c.create(template, nil); err != nil {
			return fmt.Errorf("creating the TLS certificate: %w", err)
		}
	}
	_, err := c.Load()
	return err
}

// create writes a certificate, signed by a, or by itself when a is nil, both files with mode 0600. An existing key is
// kept, and another process that creates the certificate too uses the same key.
func (c Certificate) create(template *x509.Certificate, a *authority) error {
	key, err := ensureKey(c.Key)
	if err != nil {
		return err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return err
	}
	parent, signer := template, key
	if a != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return err
	}
	return file.Replace(c.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// ensureKey reads an ECDSA key, and creates it when it is missing. It denies a key that other users may access.
func ensureKey(path string) (*ecdsa.PrivateKey, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		if err := file.Create(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return readKey(path)
}

// readKey reads an ECDSA key. It denies one that other users may access.
func readKey(path string) (*ecdsa.PrivateKey, error) {
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s is not a PEM file", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key", path)
	}
	return ec, nil
}

// checkPrivate denies a file that other users may access.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("%s is readable by other users (mode %o): run chmod 600 on it", path, info.Mode().Perm())
	}
	return err
}

// Load reads certificate and key. The error wraps [ErrCertificate] when a file is missing or damaged, the key does not
// belong to the certificate, or other users may read the key.
func (c Certificate) Load() (tls.Certificate, error) {
	if err := checkPrivate(c.Key); err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: the key: %w", ErrCertificate, err)
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: %s and %s: %w: both must be PEM files, and the key that of the "+
			"certificate", ErrCertificate, c.Cert, c.Key, err)
	}
	return pair, nil
}

// Pin is the SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate, by which a machine recognizes its hub.
type Pin [sha256.Size]byte

// PinOf returns the pin of a certificate.
func PinOf(c tls.Certificate) (Pin, error) {
	if len(c.Certificate) == 0 {
		return Pin{}, fmt.Errorf("%w: it is empty", ErrCertificate)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		return Pin{}, fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	return sha256.Sum256(leaf.RawSubjectPublicKeyInfo), nil
}

// ParsePin is the inverse of [Pin.String].
func ParsePin(s string) (p Pin, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(p) {
		return Pin{}, errors.New("invalid pin: it has 64 hex digits")
	}
	copy(p[:], b)
	return p, nil
}

// String returns 64 hex digits.
func (p Pin) String() string { return hex.EncodeToString(p[:]) }

// ErrPin means that a server has another TLS key than the pinned one: it is not the hub of the invitation.
var ErrPin = errors.New("the server has another TLS key than the hub of the invitation: another program answers at " +
	"this address, or the hub's certificate was replaced; if you replaced it or restored the hub without its keys, " +
	"run conclave machines rotate there and conclave join --new-hub-key here")

// ClientTLS returns the TLS settings of a connection to the hub with this pin. The pin replaces the chain of trust:
// names and dates are not verified. The zero pin accepts no server.
func (p Pin) ClientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         "conclave",
		InsecureSkipVerify: true, // VerifyConnection compares the key itself
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || p == (Pin{}) {
				return ErrPin
			}
			got := sha256.Sum256(s.PeerCertificates[0].RawSubjectPublicKeyInfo)
			if subtle.ConstantTimeCompare(got[:], p[:]) != 1 {
				return ErrPin
			}
			return nil
		},
	}
}
