package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/limpet-dev/limpet"
)

// guard refuses requests that a web page of another site may have sent.
type guard struct {
	crossOrigin *http.CrossOriginProtection
	hosts       map[string]bool // lower case, without port; "*" is any
}

func newGuard(hosts []string) *guard {
	g := &guard{crossOrigin: http.NewCrossOriginProtection(), hosts: map[string]bool{}}
	for _, h := range hosts {
		g.hosts[hostOnly(h)] = true
	}
	return g
}

func (g *guard) check(r *http.Request) *limpet.Error {
	if local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); local != nil && isLoopback(local.String()) {
		host := hostOnly(r.Host)
		if !g.hosts["*"] && !g.hosts[host] && host != "" && host != "localhost" && !isLoopback(host) {
			return refusal(codeForbidden, "the Host %.200q is not one of this machine's loopback interface: use http://localhost or http://127.0.0.1, or list the host in the server's configuration", r.Host)
		}
	}
	if err := g.crossOrigin.Check(r); err != nil {
		return refusal(codeForbidden, "refused: %w", err)
	}
	return nil
}

// checkAsking is check for a question for an outcome: a GET that bars what was not
// received, so that it is no safe one.
func (g *guard) checkAsking(r *http.Request) *limpet.Error {
	writing := *r
	writing.Method = http.MethodPost
	return g.check(&writing)
}

// hostOnly takes the port, the brackets of an IPv6 address and a final dot away.
func hostOnly(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isLoopback tells it of an IP address, with or without a port. A name is not
// looked up: it is none.
func isLoopback(addr string) bool {
	ip, err := netip.ParseAddr(hostOnly(addr))
	return err == nil && ip.Unmap().IsLoopback()
}
