package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
)

// TestIdempotencyKey: with one key a call runs once, whatever comes in between.
func TestIdempotencyKey(t *testing.T) {
	f, at := startNode(t)
	call := func(key, method, args string) *reply {
		t.Helper()
		return f.do("POST", "/v1/objects/SHOP/a/call/"+method, strings.NewReader(args), header("Idempotency-Key", key))
	}
	ask := func(identity string) string {
		t.Helper()
		r := f.do("GET", "/v1/objects/SHOP/a/outcome/"+identity, nil)
		if r.status != 200 {
			t.Fatalf("%s: %d %s", identity, r.status, r.text)
		}
		return strings.TrimSpace(r.text)
	}
	for range 2 {
		if r := call("order 17/ü", "sell", `["x"]`); r.status != 200 || strings.TrimSpace(r.text) != `{"result":1}` {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
	call("order 17/ü", "sell", `["y"]`).wantError(t, 409, limpet.CodeIdentityReused, limpet.DeliveryNone, "order 17/ü")
	if got := ask("key:order%2017%2F%C3%BC"); got != `{"outcome":"result","result":1}` {
		t.Error(got)
	}
	if got := ask("key:never"); got != `{"outcome":"not received"}` {
		t.Error(got)
	}
	call("never", "sell", `["x"]`).wantError(t, 409, limpet.CodeAlreadyReceived, limpet.DeliveryReceived, "asked for before it came")
	// Asking bars the key: a page of another site must not do so, by an image say.
	f.do("GET", "/v1/objects/SHOP/a/outcome/key:victim", nil, header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Mode", "no-cors")).
		wantError(t, 403, "Forbidden", limpet.DeliveryNone, "cross-origin")
	if r := call("victim", "sell", `["x"]`); r.status != 200 {
		t.Errorf("another site has barred a key: %d %s", r.status, r.text)
	}
	for _, site := range []string{"same-origin", "none"} {
		if r := f.do("GET", "/v1/objects/SHOP/a/outcome/key:victim", nil, header("Sec-Fetch-Site", site)); r.status != 200 {
			t.Errorf("%s: %d %s", site, r.status, r.text)
		}
	}
	call("panics", "panic", "").wantError(t, 500, limpet.CodeReset, limpet.DeliveryReceived, "spilled")
	call("panics", "panic", "").wantError(t, 500, limpet.CodeReset, limpet.DeliveryReceived, "spilled")
	if got := ask("key:panics"); !strings.Contains(got, `"outcome":"error"`) || !strings.Contains(got, `"code":"Reset"`) {
		t.Error(got)
	}
	f.do("GET", "/v1/objects/SHOP/a/outcome/nonsense", nil).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "nonsense")
	f.do("GET", "/v1/objects/SHOP/a/outcome/000102030405060708090a0b0c0d0e0f-1", nil).
		wantError(t, 410, limpet.CodeOutcomeUnknown, limpet.DeliveryReceived, "ago")

	// The client leaves and comes again.
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.srv.URL+"/v1/objects/SHOP/a/call/slow", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "slow")
	go func() {
		defer close(gone)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
			t.Errorf("the answer came: %s", resp.Status)
		}
	}()
	<-at.entered
	leave()
	<-gone
	if got := ask("key:slow"); got != `{"outcome":"running"}` {
		t.Error(got)
	}
	at.next <- struct{}{}
	if r := call("slow", "slow", ""); strings.TrimSpace(r.text) != `{"result":"done"}` {
		t.Errorf("%d %s", r.status, r.text)
	}

	// A fetch.
	put := func(key, body string) *reply {
		return f.do("PUT", "/v1/objects/SHOP/b/fetch/x?y", strings.NewReader(body), header("Idempotency-Key", key))
	}
	for range 2 {
		if r := put("up", "hello"); r.status != 201 || r.text != "PUT /x?y 5" {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
	put("up", "other").wantError(t, 409, limpet.CodeIdentityReused, limpet.DeliveryNone, "up")
	put("big", strings.Repeat("x", limpet.MaxKeyedBody+1)).wantError(t, 413, limpet.CodeTooLarge, limpet.DeliveryNone, "idempotency key")
	r := f.do("GET", "/v1/objects/SHOP/b/outcome/key:up", nil)
	if !strings.Contains(r.text, `"response":{"status":201,`) || !strings.Contains(r.text, `"body":{"$bytes":"UFVUIC94P3kgNQ=="}`) {
		t.Errorf("%d %s", r.status, r.text)
	}
}
