package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// alpn is the protocol's name in TLS.
const alpn = "limpet"

// LoadTLS makes the configuration of a process that proves who it is and asks
// the same of its peers: TLS 1.3, the certificate and key in PEM files, and the
// CA that must have signed the peer's certificate. A dialed peer's certificate
// must also name the host that was dialed. It serves both sides.
func LoadTLS(certFile, keyFile, caFile string) (*tls.Config, error) {
	if certFile == "" || keyFile == "" || caFile == "" {
		return nil, errors.New("TLS needs all of certificate, key and CA")
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load CA: %s has no certificate in PEM", caFile)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{alpn},
	}, nil
}

// strict is cfg with what this protocol insists on.
func strict(cfg *tls.Config, server bool) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion = tls.VersionTLS13
	cfg.NextProtos = []string{alpn}
	if server {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg
}

// isLoopback reports whether a connection with this address never leaves the
// machine.
func isLoopback(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// checkPlaintext refuses to speak without TLS beyond this machine unless that was
// asked for.
func checkPlaintext(a net.Addr, allowed bool) error {
	if allowed || isLoopback(a) {
		return nil
	}
	return fmt.Errorf("address %v is not on this machine, and there is no TLS: give certificate, key and CA, or allow plaintext", a)
}
