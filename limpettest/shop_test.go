package limpettest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// witness counts what ran, outside of every node, so that no crash makes it
// forget.
type witness struct {
	mu     sync.Mutex
	runs   map[string]int
	notes  []string
	causes []error
}

func (w *witness) ran(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs == nil {
		w.runs = map[string]int{}
	}
	w.runs[key]++
}

func (w *witness) count(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[key]
}

func (w *witness) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

// shop is the object of these tests. It tells the witness when a method starts.
type shop struct {
	st *limpet.State
	w  *witness
}

// Sell is not marked: each run sells another one.
func (s *shop) Sell(_ context.Context, key string) (int, error) {
	s.w.ran(key)
	var n int
	if _, err := s.st.KV().Get("sold", &n); err != nil {
		return 0, err
	}
	n++
	return n, s.st.KV().Put("sold", n)
}

// SetPrice is marked.
func (s *shop) SetPrice(_ context.Context, key string, n int) error {
	s.w.ran(key)
	return s.st.KV().Put("price", n)
}

func (s *shop) Sold(context.Context) (n int, err error) {
	_, err = s.st.KV().Get("sold", &n)
	return n, err
}

func (s *shop) Price(context.Context) (n int, err error) {
	_, err = s.st.KV().Get("price", &n)
	return n, err
}

// Fail counts a run and fails with the method's own error.
func (s *shop) Fail(_ context.Context, key string) error {
	s.w.ran(key)
	return &limpet.Error{Code: "SoldOut", Message: "sold out", Cause: io.ErrNoProgress}
}

// Wait takes its time, and tells the witness why its context ended.
func (s *shop) Wait(ctx context.Context, key string, ms int) (string, error) {
	s.w.ran(key)
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return key, nil
	case <-ctx.Done():
		s.w.mu.Lock()
		s.w.causes = append(s.w.causes, context.Cause(ctx))
		s.w.mu.Unlock()
		return "", ctx.Err()
	}
}

// Tags gives back what it was given, changed.
func (s *shop) Tags(_ context.Context, tags []string) ([]string, error) {
	for i := range tags {
		tags[i] += "!"
	}
	return tags, nil
}

// Order sells at another shop.
func (s *shop) Order(ctx context.Context, other, key string) (int, error) {
	shops, err := limpet.NamespaceOf[*shop](s.st, "SHOP")
	if err != nil {
		return 0, err
	}
	return limpet.Call1(ctx, shops.Named(other), (*shop).Sell, key)
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.w.ran("fetch")
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	s.w.note("%s %s %d %s %v", r.Method, r.Header.Get("X-Tag"), n, hex.EncodeToString(h.Sum(nil)), err)
	switch r.URL.Path {
	case "/moved":
		w.Header().Set("Location", "/here")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	case "/big":
		for range 10 {
			fmt.Fprintf(w, "%0100d", 1)
			_ = http.NewResponseController(w).Flush()
		}
		return
	}
	fmt.Fprint(w, "hello")
}

func (w *witness) class(opts ...limpet.ClassOption) *limpet.Class {
	opts = append([]limpet.ClassOption{limpet.Retryable((*shop).SetPrice)}, opts...)
	return limpet.NewClass("Shop", func(st *limpet.State) (*shop, error) { return &shop{st, w}, nil }, opts...)
}

// street is a shop behind a network.
type street struct {
	*witness
	n    *limpettest.Node
	net  *limpettest.Network
	shop *limpet.Stub[*shop]
}

func open(t limpettest.TB, cfg node.Config, stub []limpet.StubOption, opts ...limpet.ClassOption) *street {
	t.Helper()
	s := &street{witness: &witness{}}
	cfg.Classes, cfg.Logger = []*limpet.Class{s.class(opts...)}, slog.New(slog.DiscardHandler)
	s.n = limpettest.StartConfig(t, cfg)
	s.net = s.n.Network()
	ns, err := limpet.NamespaceOf[*shop](s.n, "SHOP")
	if err != nil {
		t.Fatalf("%v", err)
	}
	s.shop = ns.Named("corner", stub...)
	return s
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(t *testing.T, s *street), opts ...limpet.ClassOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, open(t, node.Config{}, nil, opts...)) })
}

// metric adds up what the node counts under a name and labels "key=value".
func metric(n *limpettest.Node, name string, labels ...string) (sum float64) {
metrics:
	for _, m := range n.Metrics() {
		if m.Name != name {
			continue
		}
		for i := 0; i < len(labels); i += 2 {
			if m.Labels[labels[i]] != labels[i+1] {
				continue metrics
			}
		}
		sum += m.Value
	}
	return sum
}

func wantFailure(t *testing.T, err error, code limpet.Code, d limpet.Delivery) {
	t.Helper()
	_ = failure(t, err, code, d) // stops the test
}

func failure(t *testing.T, err error, code limpet.Code, d limpet.Delivery) *limpet.Error {
	t.Helper()
	e, ok := err.(*limpet.Error) //nolint:errorlint // calls fail with nothing else
	if !ok {
		t.Fatalf("error %v (%T), want %s", err, err, code)
	}
	if e.CodeOrDefault() != code || e.Delivery != d {
		t.Fatalf("error %v: code %s, %v, want %s, %v", e, e.Code, e.Delivery, code, d)
	}
	return e
}
