package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// TestFarDeadline has deadlines that the head of a call can't say: they are like
// none, and cost neither the call nor its connection.
func TestFarDeadline(t *testing.T) {
	c := &callee{call: func(ctx context.Context, _ *Call, args limpet.Encoded) (limpet.Encoded, error) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return args, nil
	}}
	w := serve(t, c, sim.Clock{})
	defer w.close(t)
	for name, at := range map[string]time.Time{
		"longest timeout": time.Now().Add(math.MaxInt64),
		"year 9999":       time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		"a century":       time.Now().Add(100 * 365 * 24 * time.Hour),
		"the most":        time.Now().Add(milliseconds(maxDeadline)),
	} {
		s := w.session(t)
		ctx, cancel := context.WithDeadline(t.Context(), at)
		if _, err := plainCall(ctx, &s.duplex, method("m"), limpet.Encoded{1}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		s.Close()
	}
}

// TestTooManyTrailers has requests and responses whose trailers the peer would
// not take: they fail alone.
func TestTooManyTrailers(t *testing.T) {
	many := http.Header{}
	for i := range maxFields + 1 {
		many[fmt.Sprint("X-", i)] = nil
	}
	for name, trailer := range map[string]http.Header{
		"long": {"X-Sum": {strings.Repeat("x", maxBlock)}}, "many": many, "many values": {"X-Sum": make([]string, maxFields+1)},
	} {
		for _, ofRequest := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " of request ", ofRequest), func(t *testing.T) {
				c := &callee{call: echo, fetch: func(_ context.Context, _ *Call, r *http.Request) (*http.Response, error) {
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						return nil, err
					}
					resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("hi")), ContentLength: -1}
					if !ofRequest {
						resp.Trailer = trailer
					}
					return resp, nil
				}}
				w := serve(t, c, sim.Clock{})
				defer w.close(t)
				s := w.session(t)
				defer s.Close()
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/", io.NopCloser(strings.NewReader("body")))
				if err != nil {
					t.Fatal(err)
				}
				if ofRequest {
					req.Trailer = trailer
				}
				resp, err := s.Fetch(t.Context(), &Call{Kind: KindFetch, Binding: "B", Attempt: 1}, req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				if err == nil || errors.Is(err, limpet.CodeDisconnected) {
					t.Errorf("the fetch says %v", err)
				}
				if _, err := plainCall(t.Context(), &s.duplex, method("m"), limpet.Encoded{1}); err != nil {
					t.Errorf("another call on the connection: %v", err)
				}
			})
		}
	}
}

// TestImpossibleStatus has a handler behind a Callee that answers a status no
// client would take: that fetch fails, and nothing else.
func TestImpossibleStatus(t *testing.T) {
	for _, status := range []int{0, 101, 199, 1000, 1 << 20, -1} {
		c := &callee{call: echo, fetch: func(context.Context, *Call, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody}, nil
		}}
		w := serve(t, c, sim.Clock{})
		s := w.session(t)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Fetch(t.Context(), &Call{Kind: KindFetch, Binding: "B", Attempt: 1}, req)
		wantDelivery(t, fmt.Sprint("status ", status), err, limpet.CodeInternal, limpet.DeliveryReceived)
		if _, err := plainCall(t.Context(), &s.duplex, method("m"), limpet.Encoded{1}); err != nil {
			t.Errorf("another call on the connection: %v", err)
		}
		s.Close()
		w.close(t)
	}
}

func TestCheckAddr(t *testing.T) {
	for addr, c := range map[string]struct{ dial, listen bool }{
		"localhost:7070": {true, true}, "10.0.0.7:1": {true, true}, "[::1]:65535": {true, true}, "[fe80::1%eth0]:7070": {true, true},
		":7070": {false, true}, "x:0": {false, true}, "": {}, "localhost": {}, "::1:7070": {}, "x:65536": {}, "x:-1": {}, "x:http": {}, "x:": {},
		"http://x:80": {}, "a b:80": {}, "x\n:80": {}, "u@x:80": {},
	} {
		if err := CheckAddr(addr, false); (err == nil) != c.dial {
			t.Errorf("%q to dial: %v", addr, err)
		}
		if err := CheckAddr(addr, true); (err == nil) != c.listen {
			t.Errorf("%q to listen: %v", addr, err)
		}
	}
}
