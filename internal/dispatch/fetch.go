package dispatch

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/limpet-dev/limpet"
)

const (
	// maxRedirects is how many redirects one fetch follows (SPEC B13).
	maxRedirects = 20
	// maxDrain is how much of a redirect's body is read before it is closed.
	maxDrain = 2 << 10
)

// fetch is the request of one hop.
type fetch struct {
	req     *http.Request // without body; nobody else holds it or its headers
	follow  bool
	body    io.ReadCloser                 // the caller's, until the first attempt takes it
	getBody func() (io.ReadCloser, error) // another copy of it, or nil
	once    bool                          // there is a body and it can be read only once
	long    string                        // and it is known to be too long to be kept
	buffer  *bodyBuffer                   // keeps such a body, or nil
	trailer http.Header                   // the caller's, who fills them in while the body is read
	urls    []string                      // of all hops so far, this one the last
}

// newFetch takes req apart. The errors are those of SPEC B8 and B10; then the
// body is the caller's to close.
func newFetch(ctx context.Context, req *http.Request, follow bool) (*fetch, error) {
	u, err := absolute(req)
	if err != nil {
		return nil, err
	}
	f := &fetch{req: req.Clone(ctx), follow: follow, urls: []string{u.String()}}
	f.req.URL, f.req.RequestURI = u, ""
	f.req.Body, f.req.GetBody, f.req.Response = nil, nil, nil
	if f.req.Method == "" {
		f.req.Method = http.MethodGet
	}
	if req.Body != nil && req.Body != http.NoBody {
		if f.req.Method == http.MethodGet || f.req.Method == http.MethodHead {
			return nil, invalid("a request with method %s can't have a body (%s)", f.req.Method, u)
		}
		f.body, f.getBody = req.Body, req.GetBody
		f.once = f.getBody == nil
		f.trailer = req.Trailer
	}
	return f, nil
}

// absolute is the URL of a request, which must be absolute.
func absolute(req *http.Request) (*url.URL, error) {
	if req.URL == nil {
		return nil, invalid("Invalid URL: the request has none")
	}
	u := *req.URL
	if req.RequestURI != "" && u.Host == "" && req.Host != "" { // as a server received it
		u.Scheme, u.Host = "http", req.Host
		if req.TLS != nil {
			u.Scheme = "https"
		}
	}
	if !isHTTP(&u) {
		return nil, invalid("Invalid URL: %.200q must be an absolute http or https URL", u.String())
	}
	return &u, nil
}

func isHTTP(u *url.URL) bool {
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func invalid(format string, args ...any) error {
	e := limpet.Errorf(limpet.CodeInvalidArgument, format, args...)
	e.Name, e.Delivery = "TypeError", limpet.DeliveryNone
	return e
}

// badRedirect is the failure of a call whose object answered with a redirect
// that can't be followed.
func badRedirect(code limpet.Code, format string, args ...any) error {
	e := limpet.Errorf(code, format, args...)
	e.Name, e.Delivery = "TypeError", limpet.DeliveryReceived
	return e
}

// keep lets a body that can be read only once be sent again, up to a limit.
func (f *fetch) keep(pool *replayPool, limit int64, refused func()) {
	f.buffer = newBodyBuffer(pool, limit, f.body, refused)
	f.body, f.once = nil, false
}

const onceOnly = "the request body can be read only once (set Request.GetBody, or use limpet.BufferBody)"

// spent says why the request can't be sent again (SPEC E2, G1), or is empty.
func (f *fetch) spent() string {
	switch {
	case f.once:
		return cmp.Or(f.long, onceOnly)
	case f.buffer != nil:
		return f.buffer.spent()
	default:
		return ""
	}
}

// takeBody is the body of the next attempt.
func (f *fetch) takeBody() bodySource {
	switch b := f.body; {
	case f.buffer != nil:
		return bodySource{again: f.buffer.open}
	case b != nil:
		f.body = nil
		return bodySource{once: b}
	}
	return bodySource{again: f.getBody}
}

// closeBody closes the caller's body if no attempt took it. Nothing of the
// request is sent again afterwards.
func (f *fetch) closeBody() {
	if f.buffer != nil {
		f.buffer.settle()
	}
	if f.body != nil {
		_ = f.body.Close() // nothing was read from it
	}
}

// bodySource makes the body of one attempt.
type bodySource struct {
	once  io.ReadCloser
	again func() (io.ReadCloser, error)
}

func (s bodySource) open() (io.ReadCloser, error) {
	switch {
	case s.once != nil:
		return s.once, nil
	case s.again != nil:
		return s.again()
	default:
		return http.NoBody, nil
	}
}

// redirect is the request that follows resp, or nil if resp is the answer
// (SPEC B11 to B15, in the order of the Fetch standard's "HTTP-redirect fetch").
func (f *fetch) redirect(ctx context.Context, resp *http.Response) (*fetch, error) {
	location, is := resp.Header["Location"]
	if !f.follow || !isRedirect(resp.StatusCode) || !is || len(location) == 0 { // B15
		return nil, nil
	}
	here := f.req.URL
	to, err := here.Parse(location[0])
	if err != nil || !isHTTP(to) {
		return nil, badRedirect(limpet.CodeApplication, "Invalid Location header; unable to follow redirect.")
	}
	if to.Fragment == "" {
		to.Fragment, to.RawFragment = here.Fragment, here.RawFragment
	}
	if len(f.urls) > maxRedirects {
		return nil, badRedirect(limpet.CodeApplication, "Too many redirects. %s", strings.Join(f.urls, ", "))
	}
	if why := f.spent(); why != "" && resp.StatusCode != http.StatusSeeOther { // B12
		return nil, badRedirect(limpet.CodeInvalidArgument,
			"a redirect (%d to %.200s) needs the request body again: %s", resp.StatusCode, to, why)
	}
	next := &fetch{
		req: f.req.Clone(ctx), follow: true, getBody: f.getBody, buffer: f.buffer, trailer: f.trailer,
		urls: append(f.urls, to.String()),
	}
	next.req.URL, next.req.Response = to, resp
	if to.Host != here.Host {
		next.req.Host = ""
	}
	method := f.req.Method
	switch s := resp.StatusCode; {
	case (s == http.StatusMovedPermanently || s == http.StatusFound) && method == http.MethodPost,
		s == http.StatusSeeOther && method != http.MethodHead && method != http.MethodGet:
		next.req.Method = http.MethodGet
		next.dropBody()
	}
	if origin(to) != origin(here) { // B14
		next.req.Header.Del("Authorization")
	}
	return next, nil
}

func (f *fetch) dropBody() {
	if f.buffer != nil {
		f.buffer.settle()
	}
	f.getBody, f.once, f.buffer, f.trailer = nil, false, nil, nil
	f.req.ContentLength, f.req.TransferEncoding, f.req.Trailer = 0, nil, nil
	for _, h := range [...]string{
		"Content-Encoding", "Content-Language", "Content-Location", "Content-Type", "Content-Length", "Transfer-Encoding",
	} {
		f.req.Header.Del(h)
	}
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// origin is scheme, host and port, the port always named.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// drain reads a short body to its end, so that the handler that writes it
// finishes undisturbed, and closes it.
func drain(resp *http.Response) {
	if 0 <= resp.ContentLength && resp.ContentLength <= maxDrain {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // a failure is of no interest
	}
	discard(resp)
}

// discard gives up a response, if there is one.
func discard(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close() // nobody wants it
	}
}
