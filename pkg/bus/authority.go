package bus

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
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

// ensureAuthority reads the authority in dir, ca.pem and ca.key, and creates it when neither exists. It denies a key that other
// users may access.
func ensureAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	certFile, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
	a, err := readAuthority(certFile, keyFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	template := newTemplate("conclave cluster", authorityYears)
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	if err := createCertificate(certFile, keyFile, template, nil); err != nil {
		return nil, err
	}
	return readAuthority(certFile, keyFile)
}

// readAuthority reads the authority. The error wraps [fs.ErrNotExist] only when both files are missing.
func readAuthority(certFile, keyFile string) (*authority, error) {
	certPEM, certErr := os.ReadFile(certFile)
	info, keyErr := os.Stat(keyFile)
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return nil, certErr
	case certErr != nil || keyErr != nil:
		return nil, fmt.Errorf("%v, %v: restore the file, or remove both and replace the certificates of all servers", certErr, keyErr)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s is readable by other users (mode %o): run chmod 600 on it", keyFile, info.Mode().Perm())
	}
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", certFile, err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file", keyFile)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", keyFile, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || !ec.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s", keyFile, certFile)
	}
	return &authority{cert, certPEM, ec}, nil
}

// issue writes ca.pem, cert.pem and key.pem for a host, a name or an IP address, into dir. A certificate of this authority for the
// same host that is valid for another year is kept.
func (a *authority) issue(dir, name, host string) error {
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), a.pem, 0o600); err != nil {
		return err
	}
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if data, err := os.ReadFile(certFile); err == nil {
		old, err := parseCertificate(data)
		if _, keyErr := os.Stat(keyFile); err == nil && keyErr == nil && time.Until(old.NotAfter) > renewBefore && old.VerifyHostname(host) == nil && old.CheckSignatureFrom(a.cert) == nil {
			return nil
		}
	}
	template := newTemplate(name, certificateYears)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	return createCertificate(certFile, keyFile, template, a)
}

func newTemplate(name string, years int) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(years, 0, 0)}
}

// createCertificate writes a new ECDSA P-256 key and its certificate, signed by a, or by itself when a is nil, both with mode 0600.
func createCertificate(certFile, keyFile string, template *x509.Certificate, a *authority) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
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
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it is not one PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
