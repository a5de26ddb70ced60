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

// ensure creates a missing certificate, and nothing if a file of it exists: self-signed, ECDSA P-256, mode 0600. Machines compare
// its public key with the pin of their invitation, so its names and its end date mean nothing. It rejects one that cannot be used.
func (c Certificate) ensure() error {
	_, certErr := os.Stat(c.Cert)
	_, keyErr := os.Stat(c.Key)
	if errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		for _, dir := range []string{filepath.Dir(c.Key), filepath.Dir(c.Cert)} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("making %s: %w", dir, err)
			}
		}
		if err := c.create(); err != nil {
			return fmt.Errorf("creating the TLS certificate: %w", err)
		}
	}
	_, err := c.Load()
	return err
}

// create writes a new key and its certificate.
func (c Certificate) create() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "conclave"}, DNSNames: []string{"conclave"},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(100, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeNewFile(c.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})); err != nil {
		return err
	}
	return writeNewFile(c.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// writeNewFile writes a file of mode 0600 aside and links it into place; an existing file is kept and no error.
func writeNewFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new.*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, werr := tmp.Write(data)
	if err := errors.Join(werr, tmp.Chmod(0o600), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Load reads certificate and key. The error wraps [ErrCertificate] when a file is missing or damaged, the key does not belong to the
// certificate, or other users may read the key.
func (c Certificate) Load() (tls.Certificate, error) {
	info, err := os.Stat(c.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: the key: %w", ErrCertificate, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return tls.Certificate{}, fmt.Errorf("%w: %s is readable by other users (mode %o): run chmod 600 on it", ErrCertificate, c.Key, info.Mode().Perm())
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%w: %s and %s: %w: both must be PEM files, and the key that of the certificate", ErrCertificate, c.Cert, c.Key, err)
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
var ErrPin = errors.New("the server has another TLS key than the hub of the invitation: another program answers at this address, or the hub's certificate was replaced; if you replaced it or restored the hub without its keys, run conclave machines rotate there and conclave join --new-hub-key here")

// ClientTLS returns the TLS settings of a connection to the hub with this pin. The pin replaces the chain of trust: names and
// dates are not verified. The zero pin accepts no server.
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
