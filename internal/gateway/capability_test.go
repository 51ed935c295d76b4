package gateway_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// lender is an object whose results hold what has no JSON form.
type lender struct{ closed *atomic.Int32 }

type loan struct{ closed *atomic.Int32 }

func (l *loan) Nothing(context.Context) error { return nil }
func (l *loan) Dispose()                      { l.closed.Add(1) }

type loanReader struct {
	io.Reader
	closed *atomic.Int32
}

func (l *loanReader) Close() error { l.closed.Add(1); return nil }

func (l *lender) Stub(context.Context) (map[string]any, error) {
	s, err := limpet.NewTarget(&loan{l.closed})
	return map[string]any{"kept": 1, "lent": s}, err
}

func (l *lender) Stream(context.Context) (io.Reader, error) {
	return &loanReader{strings.NewReader("x"), l.closed}, nil
}

// TestNoCapabilities refuses them at the door and gives them back.
func TestNoCapabilities(t *testing.T) {
	closed := new(atomic.Int32)
	n := limpettest.Start(t, limpet.NewClass("Lender", func(*limpet.State) (*lender, error) { return &lender{closed}, nil }))
	f := &fixture{t: t, srv: httptest.NewServer(n.Handler()), log: &lines{}}
	t.Cleanup(func() {
		f.srv.CloseClientConnections()
		f.srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	for i, c := range []struct{ method, text string }{
		{"stub", "result of stub as JSON: .lent: a stub has no JSON form"},
		{"stream", "result of stream as JSON: a byte stream has no JSON form"},
	} {
		r := f.do(http.MethodPost, "/v1/objects/LENDER/a/call/"+c.method, nil)
		r.wantError(t, http.StatusNotImplemented, limpet.CodeNotSupported, limpet.DeliveryReceived, c.text)
		for n := 0; closed.Load() != int32(i+1); n++ {
			if n > 1000 {
				t.Fatalf("%s: not given back", c.method)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}
