package dispatch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

func fetchCall(change ...func(*limpet.CallSpec)) *limpet.CallSpec {
	return newCall(append([]func(*limpet.CallSpec){func(c *limpet.CallSpec) {
		c.Kind, c.Method, c.Runner = limpet.KindFetch, "", nil
	}}, change...)...)
}

// body is a request's or response's, and knows whether it was closed.
type body struct {
	io.Reader
	closed atomic.Int32
}

func newBody(s string) *body { return &body{Reader: strings.NewReader(s)} }

func (b *body) Close() error {
	b.closed.Add(1)
	return nil
}

// stream makes a request with a body that can be read only once.
func stream(method, target string, b io.ReadCloser) *http.Request {
	req, err := http.NewRequest(method, target, b)
	if err != nil {
		panic(err)
	}
	return req
}

func response(status int, text string, header ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text))}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

// asked tells a request as the object sees it.
func asked(r *http.Request) string {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(r.Method + " " + r.URL.String() + " " + string(b))
}

func TestFetchURL(t *testing.T) {
	// SPEC B8: must be absolute, and the error names it
	for _, target := range []string{"", "/cart", "cart", "//host/x", "ftp://host/x", "http:", "http:/x", "mailto:a@b"} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine()
			defer e.Close()
			u, err := url.Parse(target)
			if err != nil {
				t.Fatal(err)
			}
			b := newBody("x")
			_, err = e.Fetch(t.Context(), fetchCall(), &http.Request{Method: "POST", URL: u, Body: b}, true)
			got := asLimpet(t, err)
			if got.Code != limpet.CodeInvalidArgument || got.Name != "TypeError" || got.Delivery != limpet.DeliveryNone ||
				!strings.HasPrefix(got.Message, "Invalid URL: ") || !strings.Contains(got.Message, target) {
				t.Errorf("%q: got %+v", target, got)
			}
			if len(w.attempts) != 0 || b.closed.Load() != 1 {
				t.Errorf("%q: %d attempts, body closed %d times", target, len(w.attempts), b.closed.Load())
			}
		})
	}
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine()
		defer e.Close()
		if _, err := e.Fetch(t.Context(), fetchCall(), &http.Request{}, true); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Error(err)
		}
	})
}

func TestFetchPassesServerRequestOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		var got []string
		w.serve = func(r *http.Request) *http.Response {
			got = append(got, asked(r)+" "+r.Host+r.RequestURI)
			return response(200, "")
		}
		e := w.engine()
		defer e.Close()
		in := httptest.NewRequest("POST", "/a?b", strings.NewReader("body"))
		in.Host = "shop.example"
		if _, err := e.Fetch(t.Context(), fetchCall(), in, true); err != nil {
			t.Fatal(err)
		}
		in = httptest.NewRequest("GET", "/a", nil)
		in.Host, in.TLS = "shop.example", &tls.ConnectionState{}
		if _, err := e.Fetch(t.Context(), fetchCall(), in, true); err != nil {
			t.Fatal(err)
		}
		want := []string{"POST http://shop.example/a?b body shop.example", "GET https://shop.example/a shop.example"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFetchBodyOfGet(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", ""} {
		bubble(t, func(t *testing.T) {
			// SPEC B10
			w := newWorld(t)
			e := w.engine()
			defer e.Close()
			b := newBody("x")
			req := stream("POST", "http://x/", b)
			req.Method = method
			_, err := e.Fetch(t.Context(), fetchCall(), req, true)
			if got := asLimpet(t, err); got.Code != limpet.CodeInvalidArgument || got.Name != "TypeError" || b.closed.Load() != 1 {
				t.Errorf("%q: got %+v", method, got)
			}
			for _, none := range []io.ReadCloser{nil, http.NoBody} {
				req.Body = none
				if _, err := e.Fetch(t.Context(), fetchCall(), req, true); err != nil {
					t.Errorf("%q without a body: %v", method, err)
				}
			}
		})
	}
}

func TestFetchReplay(t *testing.T) {
	long := strings.Repeat("0123456789", 10_000)
	again := stream("PUT", "http://x/", newBody("rewound"))
	again.GetBody = func() (io.ReadCloser, error) { return newBody("rewound"), nil }
	tests := []struct {
		name     string
		req      *http.Request
		attempts int
		want     string
	}{
		// SPEC G1, E2: the table of SPEC G.1 in the words of net/http
		{"none", httptest.NewRequest("GET", "http://x/", nil), 3, ""},
		{"string", must(http.NewRequest("POST", "http://x/", strings.NewReader(long))), 3, long},
		{"empty string", must(http.NewRequest("POST", "http://x/", strings.NewReader(""))), 3, ""},
		{"GetBody", again, 3, "rewound"},
		{"stream", stream("POST", "http://x/", newBody("once")), 1, "once"},
		{"passed on", httptest.NewRequest("POST", "http://x/", strings.NewReader("once")), 1, "once"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t)
				w.marked = true
				w.faults = func(int) fault { return fault{kind: lostReply} }
				var got []string
				w.serve = func(r *http.Request) *http.Response {
					b, _ := io.ReadAll(r.Body)
					got = append(got, string(b)+" "+r.Header.Get("X-A"))
					r.Header.Set("X-A", "changed by the handler")
					r.URL.Path = "/changed"
					return response(200, "")
				}
				e := w.engine()
				defer e.Close()
				test.req.Header.Set("X-A", "a")
				_, err := e.Fetch(t.Context(), fetchCall(policy(2, 10*time.Second)), test.req, true)
				if asLimpet(t, err).Attempts != test.attempts {
					t.Errorf("%d attempts, want %d", asLimpet(t, err).Attempts, test.attempts)
				}
				// SPEC E46: byte for byte, headers too
				if want := slices.Repeat([]string{test.want + " a"}, test.attempts); !slices.Equal(got, want) {
					t.Errorf("the object saw %.80q, want %.80q", got, want)
				}
				// SPEC F2: a request that can't be sent again has no identity
				if a := w.attempts[0]; a.Identity.IsZero() != (test.attempts == 1) || a.WillRetry != (test.attempts > 1) {
					t.Errorf("attempt %+v", a)
				}
			})
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestFetchHeadersOfTheCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E46: what the caller does to its request meanwhile changes nothing
		w := newWorld(t, fault{kind: refused})
		var got string
		w.serve = func(r *http.Request) *http.Response {
			got = r.Header.Get("X-A")
			return response(200, "")
		}
		req := must(http.NewRequest("GET", "http://x/", nil))
		req.Header.Set("X-A", "a")
		w.onRetry = func() { req.Header.Set("X-A", "b") }
		e := w.engine()
		defer e.Close()
		if _, err := e.Fetch(t.Context(), fetchCall(), req, true); err != nil || got != "a" {
			t.Errorf("%v, header %q", err, got)
		}
	})
}

func TestFetchGetBodyFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E33
		w := newWorld(t, fault{kind: refused})
		e := w.engine()
		defer e.Close()
		req := stream("PUT", "http://x/", newBody("x"))
		gone := errors.New("file is gone")
		req.GetBody = func() (io.ReadCloser, error) { return nil, gone }
		_, err := e.Fetch(t.Context(), fetchCall(), req, true)
		if !errors.Is(err, gone) || !strings.Contains(err.Error(), "GetBody") || len(w.attempts) != 1 {
			t.Errorf("%v after %d attempts", err, len(w.attempts))
		}
		if diff := cmp.Diff([]string{"fetch other 100ms"}, w.outcomes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFetchEndsWithHeaders(t *testing.T) {
	for _, cancellable := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			// SPEC E40: what happens to the body later is not retried, and the retry
			// timeout does not touch it
			w := newWorld(t, fault{kind: refused})
			b := newBody("")
			broken := errors.New("stream broke")
			var attempt context.Context
			b.Reader = readerFunc(func([]byte) (int, error) {
				time.Sleep(time.Hour)
				return 0, broken
			})
			w.serve = func(r *http.Request) *http.Response {
				attempt = r.Context()
				return &http.Response{StatusCode: 200, Body: b, ContentLength: -1}
			}
			e := w.engine()
			defer e.Close()
			ctx := context.Background()
			if cancellable {
				ctx = t.Context()
			}
			resp, err := e.Fetch(ctx, fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); !errors.Is(err, broken) || len(w.attempts) != 2 {
				t.Errorf("%v after %d attempts", err, len(w.attempts))
			}
			if attempt.Err() != nil {
				t.Errorf("the attempt's context ended with %v before the body was closed", context.Cause(attempt))
			}
			resp.Body.Close()
			if attempt.Err() == nil || b.closed.Load() != 1 {
				t.Errorf("body closed %d times, the attempt's context still runs: %v", b.closed.Load(), attempt.Err() == nil)
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestFetchLateResponseIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC F39: the result of an attempt that nobody waits for is given up
		w := newWorld(t)
		b := newBody("late")
		w.routes = func(int) Transport { return lateTransport{w, b} }
		e := w.engine()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := e.Fetch(ctx, fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		e.Close()
		if got := b.closed.Load(); got != 1 || time.Since(w.start) != time.Minute {
			t.Errorf("the late response was closed %d times after %v", got, time.Since(w.start))
		}
	})
}

type lateTransport struct {
	*world
	body io.ReadCloser
}

func (l lateTransport) Fetch(_ context.Context, a Attempt) (*http.Response, error) {
	time.Sleep(time.Minute)
	a.Request.Body.Close()
	return &http.Response{StatusCode: 200, Body: l.body}, nil
}

// hops serves one answer per request and keeps what was asked.
func (w *world) hops(answers ...*http.Response) *[]string {
	var got []string
	w.serve = func(r *http.Request) *http.Response {
		got = append(got, asked(r))
		if len(got) > len(answers) {
			return response(200, "end")
		}
		return answers[len(got)-1]
	}
	return &got
}

func TestRedirectMethods(t *testing.T) {
	ofBody := []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Location"}
	tests := []struct {
		method string
		status int
		want   string // second request
	}{
		// SPEC B11
		{"POST", 301, "GET http://x/b"},
		{"POST", 302, "GET http://x/b"},
		{"POST", 303, "GET http://x/b"},
		{"POST", 307, "POST http://x/b data"},
		{"POST", 308, "POST http://x/b data"},
		{"PUT", 301, "PUT http://x/b data"},
		{"PUT", 302, "PUT http://x/b data"},
		{"PUT", 303, "GET http://x/b"},
		{"PUT", 307, "PUT http://x/b data"},
		{"DELETE", 303, "GET http://x/b"},
		{"HEAD", 303, "HEAD http://x/b"},
		{"HEAD", 302, "HEAD http://x/b"},
		{"GET", 303, "GET http://x/b"},
		{"GET", 301, "GET http://x/b"},
		{"GET", 300, ""},
		{"GET", 304, ""},
		{"GET", 200, ""},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.method, test.status), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t)
				got := w.hops(response(test.status, "", "Location", "/b"))
				var types []string
				serve := w.serve
				w.serve = func(r *http.Request) *http.Response {
					said := ""
					for _, h := range ofBody {
						said += r.Header.Get(h)
					}
					types = append(types, fmt.Sprint(said, r.ContentLength))
					return serve(r)
				}
				e := w.engine()
				defer e.Close()
				var data io.Reader
				if test.method != "GET" && test.method != "HEAD" {
					data = strings.NewReader("data")
				}
				req := must(http.NewRequest(test.method, "http://x/a", data))
				for _, h := range ofBody {
					req.Header.Set(h, h)
				}
				resp, err := e.Fetch(t.Context(), fetchCall(), req, true)
				if err != nil {
					t.Fatal(err)
				}
				if test.want == "" {
					if len(*got) != 1 || resp.StatusCode != test.status || resp.Request.Response != nil {
						t.Errorf("asked %q, answer %d", *got, resp.StatusCode)
					}
					return
				}
				if (*got)[1] != test.want {
					t.Errorf("asked %q, want %q", (*got)[1], test.want)
				}
				dropped := data != nil && !strings.HasSuffix(test.want, "data")
				if want := types[0]; (types[1] == want) == dropped || dropped && types[1] != "0" {
					t.Errorf("headers of the body and its length %q, then %q", types[0], types[1])
				}
				// SPEC B11: redirected, and the final URL
				if resp.Request.URL.String() != "http://x/b" || resp.Request.Response == nil ||
					resp.Request.Response.StatusCode != test.status || resp.Request.Response.Request.URL.Path != "/a" {
					t.Errorf("final request %v, redirected by %v", resp.Request.URL, resp.Request.Response)
				}
				if b, _ := io.ReadAll(resp.Body); string(b) != "end" {
					t.Errorf("body %q", b)
				}
			})
		})
	}
}

func TestRedirectNotFollowed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		got := w.hops(response(302, "moved", "Location", "/b"))
		e := w.engine()
		defer e.Close()
		resp, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/a", nil)), false)
		if err != nil || resp.StatusCode != 302 || len(*got) != 1 || resp.Header.Get("Location") != "/b" {
			t.Errorf("%v, %v, asked %q", resp, err, *got)
		}
		if b, _ := io.ReadAll(resp.Body); string(b) != "moved" {
			t.Errorf("body %q", b)
		}
	})
}

func TestRedirectNeedsBodyAgain(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		bubble(t, func(t *testing.T) {
			// SPEC B12
			w := newWorld(t)
			between := newBody("moved")
			moved := response(status, "", "Location", "/b")
			moved.Body = between
			got := w.hops(moved)
			e := w.engine()
			defer e.Close()
			b := newBody("data")
			resp, err := e.Fetch(t.Context(), fetchCall(), stream("POST", "http://x/a", b), true)
			if between.closed.Load() != 1 || b.closed.Load() == 0 {
				t.Errorf("%d: redirect's body closed %d times, request's %d times", status, between.closed.Load(), b.closed.Load())
			}
			if status == 303 {
				if err != nil || (*got)[1] != "GET http://x/b" || resp.StatusCode != 200 {
					t.Errorf("%d: %v, asked %q", status, err, *got)
				}
				// SPEC E44
				if a := w.attempts[1]; !a.WillRetry || a.Identity.IsZero() {
					t.Errorf("second hop's attempt %+v", a)
				}
				return
			}
			e2 := asLimpet(t, err)
			if e2.Name != "TypeError" || e2.Delivery != limpet.DeliveryReceived || len(*got) != 1 || !strings.Contains(e2.Message, "GetBody") {
				t.Errorf("%d: %+v after %q", status, e2, *got)
			}
		})
	}
}

func TestTooManyRedirects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC B13
		w := newWorld(t)
		n := 0
		var bodies []*body
		w.serve = func(r *http.Request) *http.Response {
			n++
			resp := response(302, "", "Location", fmt.Sprintf("/%d", n))
			b := newBody(strings.Repeat("x", 100))
			bodies = append(bodies, b)
			resp.Body = b
			return resp
		}
		e := w.engine()
		defer e.Close()
		_, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/0", nil)), true)
		got := asLimpet(t, err)
		if n != 21 || got.Name != "TypeError" || got.Delivery != limpet.DeliveryReceived || got.Attempts != 21 {
			t.Errorf("handler ran %d times, got %+v", n, got)
		}
		var urls []string
		for i := range 21 {
			urls = append(urls, fmt.Sprintf("http://x/%d", i))
		}
		if want := "Too many redirects. " + strings.Join(urls, ", "); got.Message != want {
			t.Errorf("got  %s\nwant %s", got.Message, want)
		}
		for i, b := range bodies {
			if b.closed.Load() != 1 {
				t.Errorf("body %d closed %d times", i, b.closed.Load())
			}
		}
		// Twenty are followed.
		n = 0
		serve := w.serve
		w.serve = func(r *http.Request) *http.Response {
			if n == 20 {
				return response(200, "")
			}
			return serve(r)
		}
		if _, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/0", nil)), true); err != nil {
			t.Error(err)
		}
	})
}

func TestRedirectHeaders(t *testing.T) {
	tests := []struct {
		location, url, host string
		auth                bool
	}{
		// SPEC B14
		{"/b", "http://x/b", "custom", true},
		{"http://x/b", "http://x/b", "custom", true},
		{"http://x:80/b", "http://x:80/b", "", true},
		{"http://X/b", "http://X/b", "", true},
		{"http://y/b", "http://y/b", "", false},
		{"https://x/b", "https://x/b", "custom", false},
		{"http://x:81/b", "http://x:81/b", "", false},
		{"//y/b", "http://y/b", "", false},
		{"?q", "http://x/a/a?q", "custom", true},
		{"../b#new", "http://x/b#new", "custom", true},
		{"", "http://x/a/a", "custom", true},
	}
	for _, test := range tests {
		bubble(t, func(t *testing.T) {
			w := newWorld(t)
			w.hops(response(307, "", "Location", test.location))
			e := w.engine()
			defer e.Close()
			req := must(http.NewRequest("GET", "http://x/a/a#old", nil))
			req.Header.Set("Authorization", "secret")
			req.Header.Set("X-A", "a")
			req.Host = "custom"
			resp, err := e.Fetch(t.Context(), fetchCall(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			want := test.url
			if !strings.Contains(want, "#") {
				want += "#old" // as browsers do
			}
			r := w.attempts[1].Request
			if r.URL.String() != want || r.Host != test.host || (r.Header.Get("Authorization") != "") != test.auth || r.Header.Get("X-A") != "a" {
				t.Errorf("to %q: %v, Host %q, Authorization %q; want %q, %q, %v",
					test.location, r.URL, r.Host, r.Header.Get("Authorization"), want, test.host, test.auth)
			}
			if req.Header.Get("Authorization") == "" || resp.Request == req {
				t.Error("the caller's request was changed")
			}
		})
	}
}

func TestRedirectLocation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC B15
		w := newWorld(t)
		w.hops(response(302, "as it is"))
		e := w.engine()
		defer e.Close()
		resp, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
		if err != nil || resp.StatusCode != 302 {
			t.Errorf("no Location: %v, %v", resp, err)
		}
		for _, bad := range []string{"http://[", "http://a b/", "ftp://x/", "javascript:alert(1)", "http:", "\x7f"} {
			b := newBody("moved")
			moved := response(302, "", "Location", bad)
			moved.Body = b
			w.hops(moved)
			_, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
			got := asLimpet(t, err)
			if got.Name != "TypeError" || got.Message != "Invalid Location header; unable to follow redirect." ||
				got.Delivery != limpet.DeliveryReceived || b.closed.Load() != 1 {
				t.Errorf("%q: got %+v", bad, got)
			}
		}
	})
}

func TestRedirectsAndRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC T8, E42, E43: hop 2 is a new call under the old timeout
		w := newWorld(t,
			fault{after: 6 * time.Second, kind: lostRequest}, fault{after: 3100 * ms},
			fault{after: 3500 * ms})
		got := w.hops(response(302, "", "Location", "/b"))
		e := w.engine(400 * ms)
		defer e.Close()
		resp, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/a", nil)), true)
		if err != nil || resp.StatusCode != 200 || time.Since(w.start) != 13*time.Second {
			t.Errorf("%v, %v after %v", resp, err, time.Since(w.start))
		}
		want := []string{"0s #1 (N1,0)", "6.4s #2 (N1,1)", "9.5s #1 (N2,0)"}
		if diff := cmp.Diff(want, w.flags()); diff != "" || len(*got) != 2 {
			t.Errorf("asked %q\n%s", *got, diff)
		}
		if len(w.attempts[1].Uncertain) != 1 || len(w.attempts[2].Uncertain) != 0 {
			t.Errorf("uncertain processes %v, then %v", w.attempts[1].Uncertain, w.attempts[2].Uncertain)
		}
		if diff := cmp.Diff([]string{"fetch recovered 3.5s"}, w.outcomes); diff != "" { // SPEC I1
			t.Error(diff)
		}
	})
	bubble(t, func(t *testing.T) {
		// SPEC T8: hop 2 disconnects at 9.9 s
		w := newWorld(t,
			fault{after: 6 * time.Second, kind: lostRequest}, fault{after: 3100 * ms},
			fault{after: 400 * ms, kind: refused})
		w.hops(response(302, "", "Location", "/b"))
		e := w.engine()
		delays := []time.Duration{400 * ms, 100 * ms} // both before a first retry
		e.draw = func() uint64 {
			d := must(drawFor(1, delays[0]))
			delays = delays[1:]
			return d
		}
		defer e.Close()
		_, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/a", nil)), true)
		got := asLimpet(t, err)
		if got.Code != limpet.CodeDisconnected || got.Attempts != 3 || time.Since(w.start) != 9900*ms {
			t.Errorf("%+v after %v", got, time.Since(w.start))
		}
		// The first hop ran, so the call as a whole did not stay undelivered.
		if got.Delivery != limpet.DeliveryReceived || got.Identity != "" {
			t.Errorf("delivery %v, identity %q", got.Delivery, got.Identity)
		}
	})
}

func TestRedirectsPassTheGateOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E45
		w := newWorld(t, fault{}, fault{kind: refused})
		w.hops(response(302, "", "Location", "/b"), response(302, "", "Location", "/c"))
		o := &object{w: w}
		e := w.engine()
		defer e.Close()
		_, err := e.Fetch(limpet.WithOrigin(t.Context(), o), fetchCall(), must(http.NewRequest("GET", "http://x/a", nil)), true)
		if err != nil || len(w.attempts) != 4 {
			t.Errorf("%v after %d attempts", err, len(w.attempts))
		}
		if diff := cmp.Diff([]string{"left 0s", "returned 100ms"}, o.story); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFetchRouteFailsOnLaterHop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, fault{}, fault{kind: noRoute, err: lost(limpet.DeliveryNone)})
		w.hops(response(302, "", "Location", "/b"))
		e := w.engine()
		defer e.Close()
		_, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/a", nil)), true)
		if got := asLimpet(t, err); got.Attempts != 1 || got.Delivery != limpet.DeliveryReceived || len(w.attempts) != 1 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestFetchWithoutAttemptClosesBody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, fault{kind: noRoute, err: lost(limpet.DeliveryNone)})
		e := w.engine()
		b := newBody("x")
		if _, err := e.Fetch(t.Context(), fetchCall(), stream("POST", "http://x/", b), true); err == nil || b.closed.Load() != 1 {
			t.Errorf("%v, body closed %d times", err, b.closed.Load())
		}
		e.Close()
		b = newBody("x")
		if _, err := e.Fetch(t.Context(), fetchCall(), stream("POST", "http://x/", b), true); err == nil || b.closed.Load() != 1 {
			t.Errorf("%v, body closed %d times", err, b.closed.Load())
		}
	})
}

func TestFetchWhileClosing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// The engine is closed after the call was admitted, before its attempt.
		w := newWorld(t)
		e := w.engine()
		w.routes = func(int) Transport {
			e.Close()
			return w
		}
		b := newBody("x")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := e.Fetch(ctx, fetchCall(), stream("POST", "http://x/", b), true)
		got := asLimpet(t, err)
		if got.Code != limpet.CodeDraining || got.Delivery != limpet.DeliveryNone || b.closed.Load() != 1 || len(w.attempts) != 0 {
			t.Errorf("got %+v, body closed %d times", got, b.closed.Load())
		}
	})
}

func TestFetchResponseWithoutHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// The object that called is gone: nobody will close the response.
		w := newWorld(t)
		b := newBody("answer")
		w.serve = func(*http.Request) *http.Response { return &http.Response{StatusCode: 200, Body: b} }
		e := w.engine()
		defer e.Close()
		o := &object{w: w, backErr: code(limpet.CodeReset, 0)}
		_, err := e.Fetch(limpet.WithOrigin(t.Context(), o), fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
		if limpet.CodeOf(err) != limpet.CodeReset || b.closed.Load() != 1 {
			t.Errorf("%v, response closed %d times", err, b.closed.Load())
		}
	})
}

func TestFetchUpgrade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E41, E1: a handshake is retried like any request, and what it brings
		// can be written to
		w := newWorld(t, fault{kind: refused})
		near, far := net.Pipe()
		w.serve = func(r *http.Request) *http.Response {
			return &http.Response{StatusCode: 101, Header: http.Header{"Upgrade": r.Header["Upgrade"]}, Body: near}
		}
		e := w.engine()
		defer e.Close()
		req := must(http.NewRequest("GET", "http://x/", nil))
		req.Header.Set("Upgrade", "websocket")
		resp, err := e.Fetch(t.Context(), fetchCall(), req, true)
		if err != nil || resp.StatusCode != 101 || len(w.attempts) != 2 {
			t.Fatalf("%v, %v after %d attempts", resp, err, len(w.attempts))
		}
		go func() {
			_, _ = io.WriteString(resp.Body.(io.Writer), "ping") // what did not arrive is seen below
		}()
		b := make([]byte, 4)
		if _, err := io.ReadFull(far, b); err != nil || string(b) != "ping" {
			t.Errorf("%q, %v", b, err)
		}
		resp.Body.Close()
		if _, err := far.Read(b); !errors.Is(err, io.EOF) {
			t.Errorf("the connection is still open: %v", err)
		}
	})
}

func TestFetchUnretryable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC D11, E1
		w := newWorld(t, fault{kind: refused})
		e := w.engine()
		defer e.Close()
		c := fetchCall(func(c *limpet.CallSpec) { c.Unretryable = "the stub was received" })
		_, err := e.Fetch(t.Context(), c, must(http.NewRequest("GET", "http://x/", nil)), true)
		if err == nil || len(w.attempts) != 1 || !w.attempts[0].Identity.IsZero() {
			t.Errorf("%v after %q", err, w.flags())
		}
	})
}

func TestFetchOddResponses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve = func(*http.Request) *http.Response { return nil }
		e := w.engine()
		defer e.Close()
		_, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
		if got := asLimpet(t, err); got.Code != limpet.CodeInternal || got.Delivery != limpet.DeliveryUncertain {
			t.Errorf("no response: got %+v", got)
		}
		w.serve = func(*http.Request) *http.Response { return &http.Response{StatusCode: 204} }
		resp, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
		if err != nil || resp.Body == nil {
			t.Errorf("no body: %v, %v", resp, err)
		}
	})
}

func TestFetchStatusIsAResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC B17, C29
		for _, status := range []int{404, 500, 503} {
			w := newWorld(t)
			w.hops(response(status, "no"))
			e := w.engine()
			resp, err := e.Fetch(t.Context(), fetchCall(), must(http.NewRequest("GET", "http://x/", nil)), true)
			if err != nil || resp.StatusCode != status || len(w.attempts) != 1 {
				t.Errorf("%v, %v", resp, err)
			}
			e.Close()
		}
	})
}
