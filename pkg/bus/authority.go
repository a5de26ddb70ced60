package bus

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"conclave/pkg/file"
)

// authority signs the certificates of the servers of one cluster, and of nothing else.
type authority struct {
	cert *x509.Certificate
	pem  []byte // of cert
	key  *ecdsa.PrivateKey
}

const (
	authorityYears   = 20
	certificateYears = 5
	renewBefore      = 365 * 24 * time.Hour
)

// ensureAuthority reads the authority in dir, ca.pem and ca.key, and creates what is missing. A certificate without its
// key is an error: a new key would not be the one that signed the certificates of the servers. It denies a key that
// other users may access.
func ensureAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c := Certificate{Cert: filepath.Join(dir, "ca.pem"), Key: filepath.Join(dir, "ca.key")}
	if _, err := os.Stat(c.Cert); errors.Is(err, fs.ErrNotExist) {
		template := newTemplate("conclave cluster", authorityYears)
		template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
		template.KeyUsage = x509.KeyUsageCertSign
		if err := c.create(template, nil); err != nil {
			return nil, err
		}
	}
	certPEM, err := os.ReadFile(c.Cert)
	if err != nil {
		return nil, err
	}
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.Cert, err)
	}
	key, err := readKey(c.Key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: restore the file, or remove %s and replace the certificates of all servers", err,
			c.Cert)
	}
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s", c.Key, c.Cert)
	}
	return &authority{cert, certPEM, key}, nil
}

// issue writes ca.pem, cert.pem and key.pem for a host, a name or an IP address, into dir. A certificate of this
// authority for the same host that is valid for another year is kept, and so is the key.
func (a *authority) issue(dir, name, host string) error {
	if err := file.Replace(filepath.Join(dir, "ca.pem"), a.pem); err != nil {
		return err
	}
	c := Certificate{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	if pair, err := c.Load(); err == nil && pair.Leaf != nil && time.Until(pair.Leaf.NotAfter) > renewBefore &&
		pair.Leaf.VerifyHostname(host) == nil && pair.Leaf.CheckSignatureFrom(a.cert) == nil {
		return nil
	}
	template := newTemplate(name, certificateYears)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature,
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	return c.create(template, a)
}

func newTemplate(name string, years int) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.AddDate(years, 0, 0),
	}
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it is not one PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
