package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

func (w *world) fetch(ctx context.Context, method, url string, body io.Reader) (*http.Response, error) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		w.t.Fatal(err)
	}
	return stubOf[*servingThing](w, "Thing", "o").RoundTrip(req)
}

func fetchBubble(t *testing.T, limits Limits, serve func(th *thing, w http.ResponseWriter, r *http.Request), f func(t *testing.T, w *world)) {
	t.Helper()
	b := new(box).standard()
	b.serve = serve
	inBubble(t, limits, func() []*limpet.Class { return []*limpet.Class{b.servingClass("Thing")} }, f)
}

func readAll(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	_ = r.Body.Close()
	return string(b)
}

func TestFetch(t *testing.T) {
	fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		put(th.st, "n", get(th.st, "n")+1)
		w.Header().Set("X-Seen", fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.URL, " ", r.Host, " ", r.ContentLength, " ", r.Header.Get("X-Mine"), " ", r.Proto))
		switch r.URL.Path {
		case "/status":
			http.Error(w, "gone", http.StatusGone)
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body of a 204: %v", err)
			}
		case "/length":
			w.Header().Set("Content-Length", "3")
			if _, err := io.WriteString(w, "abcd"); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("a body over its length: %v", err)
			}
			_, _ = io.WriteString(w, "abc")
		case "/trailer":
			w.Header().Set("Trailer", "X-After")
			_, _ = io.WriteString(w, "t")
			w.Header().Set("X-After", "there")
		case "/empty":
		default:
			fmt.Fprintf(w, "<html>%s %s", body, r.URL.Query().Get("q"))
		}
	}, func(t *testing.T, w *world) {
		for _, test := range []struct {
			method, url, body string
			status            int
			seen, got, kind   string
			length            int64
		}{
			{"GET", "http://h/a%2Fb?q=1", "", 200, "GET /a%2Fb?q=1 /a%2Fb?q=1 h 0  HTTP/1.1", "<html> 1", "text/html; charset=utf-8", 8},
			{"POST", "http://h", "abc", 200, "POST / / h 3  HTTP/1.1", "<html>abc ", "text/html; charset=utf-8", 10},
			{"GET", "http://h/status", "", 410, "GET /status /status h 0  HTTP/1.1", "gone\n", "text/plain; charset=utf-8", -1}, // SPEC B17, C29
			{"GET", "http://h/none", "", 204, "GET /none /none h 0  HTTP/1.1", "", "", 0},
			{"GET", "http://h/length", "", 200, "GET /length /length h 0  HTTP/1.1", "abc", "text/plain; charset=utf-8", 3},
			{"GET", "http://h/empty", "", 200, "GET /empty /empty h 0  HTTP/1.1", "", "", 0},
			{"HEAD", "http://h/x", "", 200, "HEAD /x /x h 0  HTTP/1.1", "", "", 0},
			{"GET", "http://h/trailer", "", 200, "GET /trailer /trailer h 0  HTTP/1.1", "t", "text/plain; charset=utf-8", 1},
		} {
			var body io.Reader
			if test.body != "" {
				body = strings.NewReader(test.body)
			}
			r, err := w.fetch(t.Context(), test.method, test.url, body)
			if err != nil {
				t.Errorf("%s %s: %v", test.method, test.url, err)
				continue
			}
			got := readAll(t, r)
			if r.StatusCode != test.status || got != test.got || r.Header.Get("X-Seen") != test.seen ||
				r.Header.Get("Content-Type") != test.kind || r.ContentLength != test.length {
				t.Errorf("%s %s: %d %q seen %q type %q length %d, want %+v", test.method, test.url, r.StatusCode, got,
					r.Header.Get("X-Seen"), r.Header.Get("Content-Type"), r.ContentLength, test)
			}
			if strings.HasSuffix(test.url, "/trailer") && r.Trailer.Get("X-After") != "there" {
				t.Errorf("trailer %v", r.Trailer)
			}
		}
	})
}

// Head and body wait for what they rest on; each piece of a body for its own.
func TestFetchGate(t *testing.T) {
	// SPEC H2, E40
	var step chan struct{}
	fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
		put(th.st, "n", 1)
		_, _ = io.WriteString(w, "one ")
		w.(http.Flusher).Flush()
		<-step
		put(th.st, "n", 2)
		_, _ = io.WriteString(w, "two ")
		_ = http.NewResponseController(w).Flush()
		<-step
		put(th.st, "n", 3)
		_, _ = io.WriteString(w, "three")
	}, func(t *testing.T, w *world) {
		step = make(chan struct{})
		w.mem.hold()
		var resp *http.Response
		p := async(func() (string, error) {
			r, err := w.fetch(context.Background(), "GET", "http://h/", nil)
			resp = r
			return "", err
		})
		synctest.Wait()
		if p.ended() {
			t.Fatal("the head left before the write was durable")
		}
		w.mem.syncOne()
		if _, err := p.wait(); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		body := async(func() (string, error) { _, err := io.Copy(&got, resp.Body); return "", err })
		for i, want := range []string{"one ", "one ", "one two ", "one two three"} {
			synctest.Wait()
			if got.String() != want {
				t.Errorf("step %d: %q of the body left, want %q", i, got.String(), want)
			}
			switch i {
			case 0:
				step <- struct{}{} // writes and flushes: not durable
			case 1:
				w.mem.syncOne()
			case 2:
				step <- struct{}{}
				synctest.Wait()
				w.mem.syncOne()
			}
		}
		if _, err := body.wait(); err != nil {
			t.Error(err)
		}
		if got := len(w.mem.records()); got != 3 {
			t.Errorf("%d records, want one for each piece", got)
		}
		w.mem.release()
	})
}

// The body is bounded: a writer waits for its reader, and not for ever.
func TestFetchStall(t *testing.T) {
	var errs chan error
	fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
		n := 0
		for {
			k, err := w.Write(make([]byte, 100<<10))
			n += k
			if err != nil {
				errs <- fmt.Errorf("after %d KiB: %w", n>>10, err)
				return
			}
		}
	}, func(t *testing.T, w *world) {
		errs = make(chan error, 1)
		start := time.Now()
		r, err := w.fetch(t.Context(), "GET", "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		// A reader that closes early ends it at once.
		if _, err := io.ReadFull(r.Body, make([]byte, 3<<20)); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		_ = r.Body.Close()
		if err := <-errs; !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		// One that reads nothing, after the stall limit.
		if r, err = w.fetch(t.Context(), "GET", "http://h/", nil); err != nil {
			t.Fatal(err)
		}
		err = <-errs
		if !errors.Is(err, limpet.CodeOverloaded) || time.Since(start) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if !strings.HasPrefix(err.Error(), "after 1024 KiB") && !strings.HasPrefix(err.Error(), "after 1056 KiB") {
			t.Errorf("%v, want about 1 MiB to be buffered", err)
		}
		_ = r.Body.Close()
		if v, err := limpet.Call2(t.Context(), stubOf[*servingThing](w, "Thing", "o"), (*servingThing).Do, "get", "n"); v != "0 mem 0" || err != nil {
			t.Errorf("%q %v", v, err)
		}
	})
}

func TestFetchFails(t *testing.T) {
	for _, test := range []struct {
		name  string
		serve func(th *thing, w http.ResponseWriter, r *http.Request)
		code  limpet.Code
		text  string
		reset bool
		late  bool // the head is there before
	}{
		{"panic", func(*thing, http.ResponseWriter, *http.Request) { panic("boom") }, limpet.CodeReset, "The object's code panicked and the object was reset: boom (in ServeHTTP)", true, false},
		{"abort", func(th *thing, w http.ResponseWriter, _ *http.Request) { th.st.Abort(errors.New("enough")) }, limpet.CodeReset, "enough", true, false}, // SPEC C33
		{"panic after the head", func(_ *thing, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "lost")
			panic("boom")
		}, limpet.CodeReset, "The object's code panicked and the object was reset: boom (in ServeHTTP)", true, true},
		{"ErrAbortHandler", func(*thing, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, limpet.CodeApplication, "The handler aborted the response.", false, false},
		{"ErrAbortHandler after the head", func(_ *thing, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, limpet.CodeApplication, "The handler aborted the response.", false, true},
		{"switching protocols", func(_ *thing, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(101) }, limpet.CodeNotSupported, "not supported: switching protocols (status 101) from an object", false, false},
		{"no status", func(_ *thing, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(1000) }, limpet.CodeNotSupported, "not supported: status 1000 from an object; a status has three digits", false, false},
		{"status 0", func(_ *thing, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(0) }, limpet.CodeNotSupported, "not supported: status 0 from an object; a status has three digits", false, false},
		{"too short", func(_ *thing, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "abc")
		}, limpet.CodeInternal, io.ErrUnexpectedEOF.Error(), false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
				put(th.st, "n", get(th.st, "n")+1)
				test.serve(th, w, r)
			}, func(t *testing.T, w *world) {
				stub := stubOf[*servingThing](w, "Thing", "o")
				req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://h/", nil)
				r, err := stub.RoundTrip(req)
				if (err == nil) != test.late {
					t.Fatalf("%v", err)
				}
				if test.late {
					_, err = io.ReadAll(r.Body)
				}
				if limpet.CodeOf(err) != test.code || err.Error() != test.text {
					t.Errorf("%v, want %s %q", err, test.code, test.text)
				}
				if e, ok := errors.AsType[*limpet.Error](err); ok && test.code != limpet.CodeNotSupported && !e.Remote {
					t.Errorf("%#v, want it remote", e)
				}
				if !test.late && test.reset != (stub.Err() != nil) { // SPEC B5
					t.Errorf("the stub's error is %v", stub.Err())
				}
				want := map[bool]string{true: "0", false: "1"}[test.reset && !test.late]
				v, err := limpet.Call2(t.Context(), stubOf[*servingThing](w, "Thing", "o"), (*servingThing).Do, "get", "n")
				if !strings.HasPrefix(v, want) || err != nil {
					t.Errorf("%q %v, want %s writes", v, err, want)
				}
			})
		})
	}
}

func TestFetchRefused(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		stub := stubOf[*thing](w, "Thing", "o")
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://h/", nil)
		_, err := stub.RoundTrip(req)
		e := failureOf(t, err, limpet.CodeUnknownMethod, limpet.DeliveryReceived) // SPEC B16
		if e.Message != "Handler does not export a fetch() function." || !e.Remote {
			t.Errorf("%#v", e)
		}
		req.Header.Set("Connection", "keep-alive, Upgrade")
		req.Header.Set("Upgrade", "websocket")
		_, err = stub.RoundTrip(req)
		if limpet.CodeOf(err) != limpet.CodeNotSupported || limpet.DeliveryOf(err) != limpet.DeliveryNone {
			t.Errorf("an upgrade: %v", err)
		}
		// A missing handler claims too.
		a := dispatch.Attempt{Call: &limpet.CallSpec{Kind: limpet.KindFetch, Binding: w.names["Thing"], Object: stub.ID()}, Identity: key(1).id, WillRetry: true}
		for i, code := range []limpet.Code{limpet.CodeUnknownMethod, limpet.CodeAlreadyReceived} { // SPEC F11
			body := &closing{Reader: strings.NewReader("x")}
			a.Request, _ = http.NewRequestWithContext(t.Context(), "POST", "http://h/", body)
			a.Retry, a.Uncertain = i > 0, []dispatch.Boot{testBoot}
			_, err := w.host.Fetch(t.Context(), a)
			wantError(t, err, code, limpet.DeliveryReceived)
			if !body.closed {
				t.Error("the request's body was not closed")
			}
		}
	})
}

// A marked handler runs again.
func TestFetchMarked(t *testing.T) {
	// SPEC F36, F39
	b := new(box).standard()
	b.serve = func(th *thing, w http.ResponseWriter, _ *http.Request) { th.mem++; fmt.Fprint(w, th.mem) }
	inBubble(t, Limits{}, func() []*limpet.Class {
		return []*limpet.Class{b.servingClass("Thing", limpet.Retryable((*servingThing).ServeHTTP))}
	}, func(t *testing.T, w *world) {
		a := dispatch.Attempt{
			Call:     &limpet.CallSpec{Kind: limpet.KindFetch, Binding: w.names["Thing"], Object: stubOf[*servingThing](w, "Thing", "o").ID()},
			Identity: key(1).id, WillRetry: true,
		}
		for i, want := range []string{"1", "2"} {
			a.Request, _ = http.NewRequestWithContext(t.Context(), "GET", "http://h/", nil)
			a.Retry = i > 0
			r, err := w.host.Fetch(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, r); got != want {
				t.Errorf("run %d: %q", i+1, got)
			}
		}
	})
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// A caller that gives up, before and after the head.
func TestFetchCanceled(t *testing.T) {
	var causes chan error
	fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/head" {
			w.WriteHeader(200)
		}
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
	}, func(t *testing.T, w *world) {
		causes = make(chan error, 2)
		cause := errors.New("enough")
		for _, path := range []string{"/none", "/head"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			var r *http.Response
			p := async(func() (string, error) {
				var err error
				r, err = w.fetch(ctx, "GET", "http://h"+path, nil)
				if err == nil {
					_, err = r.Body.Read(make([]byte, 1))
				}
				return "", err
			})
			synctest.Wait()
			cancel(cause)
			_, err := p.wait()
			if !errors.Is(err, cause) || limpet.CodeOf(err) != limpet.CodeCanceled {
				t.Errorf("%s: %v", path, err)
			}
			if got := <-causes; !errors.Is(got, cause) {
				t.Errorf("%s: the handler's context ended with %v", path, got)
			}
		}
	})
}

// A handler may write while it is away, and what it writes then is sent.
func TestFetchProxy(t *testing.T) {
	fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
		put(th.st, "n", 1)
		err := th.st.Await(r.Context(), func(context.Context) error {
			for range 50 {
				time.Sleep(time.Second)
				if _, err := w.Write(make([]byte, 10<<10)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}, func(t *testing.T, w *world) {
		r, err := w.fetch(t.Context(), "GET", "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		start := time.Now()
		if v, err := limpet.Call2(t.Context(), stubOf[*servingThing](w, "Thing", "o"), (*servingThing).Do, "get", "n"); v != "1 mem 0" || err != nil || time.Since(start) != 0 {
			t.Errorf("%q %v after %v", v, err, time.Since(start))
		}
		if n := len(readAll(t, r)); n != 500<<10 {
			t.Errorf("%d bytes", n)
		}
	})
}

// In a transaction nothing can be sent.
func TestFetchInTransaction(t *testing.T) {
	fetchBubble(t, Limits{}, func(th *thing, w http.ResponseWriter, r *http.Request) {
		_ = th.st.Transaction(func() error {
			put(th.st, "n", 1)
			_, _ = io.WriteString(w, "x")
			err := http.NewResponseController(w).Flush()
			if !errors.Is(err, limpet.CodeInvalidArgument) || !strings.Contains(err.Error(), "Transaction") {
				t.Errorf("flush in a transaction: %v", err)
			}
			return nil
		})
	}, func(t *testing.T, w *world) {
		r, err := w.fetch(t.Context(), "GET", "http://h/", nil)
		if err != nil || readAll(t, r) != "x" {
			t.Error(err)
		}
		if got := len(w.mem.records()); got != 1 {
			t.Errorf("%d records", got)
		}
	})
}
