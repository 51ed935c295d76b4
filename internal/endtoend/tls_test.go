package endtoend

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// sign makes a certificate for an IP address.
func (a *authority) sign(name, ip string, until time.Time) (cert, key string) {
	a.t.Helper()
	k := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until, IPAddresses: []net.IP{net.ParseIP(ip)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", kder)
}

func TestTLS(t *testing.T) {
	ca, foreign := newAuthority(t, "ours"), newAuthority(t, "theirs")
	later := time.Now().Add(time.Hour)
	serve := func(a *authority, ip string) *world {
		cert, key := a.sign("node-"+ip, ip, later)
		return open(t, func(c *node.Config) {
			c.Wire.CertFile, c.Wire.KeyFile, c.Wire.CAFile = cert, key, ca.file
		})
	}
	good := func(name string, a *authority, until time.Time) client.Option {
		cert, key := a.sign(name, "127.0.0.1", until)
		return client.TLSFiles(cert, key, ca.file)
	}
	w := serve(ca, "127.0.0.1")
	s := shops(t, dial(t, w.addr, good("me", ca, later))).Named("x")
	if n, err := limpet.Call1(t.Context(), s, Shop.Add, 1); n != 1 || err != nil {
		t.Fatalf("over TLS: %d, %v", n, err)
	}
	v := make([]byte, 5<<20)
	if got, err := limpet.Call1(t.Context(), s, Shop.Echo, v); len(got) != len(v) || err != nil {
		t.Errorf("over TLS: %d bytes, %v", len(got), err)
	}

	refused := func(name, addr string, want string, opts ...client.Option) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c, err := client.Dial(ctx, []string{addr}, opts...)
		if err == nil {
			t.Errorf("%s: connected", name)
			_ = c.Close()
			return
		}
		if e := errorOf(t, err); e.Delivery != limpet.DeliveryNone || !errors.Is(e, limpet.CodeDisconnected) {
			t.Errorf("%s: %+v", name, e)
		}
		wantIn(t, name, err.Error(), want)
	}
	refused("a certificate of another CA", w.addr, "tls", good("stranger", foreign, later))
	refused("an expired certificate", w.addr, "tls", good("old", ca, time.Now().Add(-time.Minute)))
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	refused("no certificate", w.addr, "certificate required", client.TLS(&tls.Config{RootCAs: pool}))
	// TLS 1.2 by hand: the client's configuration can't ask for it.
	cert, key := ca.sign("me5", "127.0.0.1", later)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	//nolint:gosec // that is what must be refused
	if conn, err := tls.Dial("tcp", w.addr, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS12, NextProtos: []string{"limpet"}}); err == nil {
		t.Error("TLS 1.2 is spoken")
		_ = conn.Close()
	} else {
		wantIn(t, "TLS 1.2", err.Error(), "protocol version not supported")
	}
	w.log.wait(t, "client offered only unsupported versions")
	refused("no TLS", w.addr, "connect to "+w.addr)
	refused("a node of another CA", serve(foreign, "127.0.0.1").addr, "unknown authority", good("me2", ca, later))
	refused("a node of another name", serve(ca, "127.0.0.2").addr, "127.0.0.2", good("me3", ca, later))
	refused("a node without TLS", open(t, nil).addr, "TLS handshake", good("me4", ca, later))

	// One line each, and the others go on.
	wantIn(t, "the log", w.log.String(), "a connection was refused", "didn't provide a certificate", "expired", "does not look like a TLS handshake")
	if n, err := limpet.Call1(t.Context(), s, Shop.Add, 1); n != 2 || err != nil {
		t.Errorf("the good client: %d, %v", n, err)
	}
}
