package gateway

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/limpet-dev/limpet"
)

// fetch answers ANY …/fetch/{path…} with what the object answers.
func (d *door) fetch(a *answer, b *limpet.Binding, route route) {
	if isWebSocket(a.r) {
		d.fail(a, b, refusal(limpet.CodeNotSupported, "not supported: WebSocket upgrades"))
		return
	}
	stub, err := d.stub(b, route.object)
	if err != nil {
		d.fail(a, b, notSent(err))
		return
	}
	if a.r.ContentLength > d.maxBody {
		d.fail(a, b, refusal(limpet.CodeTooLarge, "the body of %d bytes is larger than the limit of %d bytes", a.r.ContentLength, d.maxBody))
		return
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { d.rewrite(a, p, route) },
		Transport: transport{a, stub},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("X-Request-Id") // the door's own stand already
			resp.Header.Del("Limpet-Error")
			a.body.rest()
			return nil
		},
		FlushInterval: -1, // every chunk at once
		ErrorLog:      slogLogger(d.log),
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { d.fail(a, b, err) },
	}
	proxy.ServeHTTP(a.w, a.r)
}

// transport brings a request to its object.
type transport struct {
	a    *answer
	stub *limpet.Stub[any]
}

// RoundTrip does not follow redirects.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.a.key != "" {
		r = r.WithContext(t.a.context(r.Context()))
	}
	return t.stub.RoundTrip(r)
}

// rewrite makes the request that the object sees.
func (d *door) rewrite(a *answer, p *httputil.ProxyRequest, route route) {
	u := &url.URL{Scheme: "http", Host: p.In.Host, RawPath: route.path, RawQuery: p.In.URL.RawQuery, ForceQuery: p.In.URL.ForceQuery}
	u.Path, _ = url.PathUnescape(route.path) // splitPath has tried it
	if p.In.TLS != nil {
		u.Scheme = "https"
	}
	if u.Host == "" { // HTTP/1.0
		u.Host = "localhost"
	}
	p.Out.URL, p.Out.Host, p.Out.RequestURI = u, u.Host, ""
	p.Out.Trailer = p.In.Trailer // filled in when the body has been read
	for _, h := range [...]string{"Connection", "Upgrade", "Expect"} {
		p.Out.Header.Del(h)
	}
	if p.Out.Body != nil {
		p.Out.Body = http.MaxBytesReader(a.w, p.Out.Body, d.maxBody)
	}
}

func isWebSocket(r *http.Request) bool {
	for _, v := range r.Header.Values("Upgrade") {
		for proto := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(proto), "websocket") {
				return true
			}
		}
	}
	return false
}

func slogLogger(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
