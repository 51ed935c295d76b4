package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/limpet-dev/limpet/internal/gateway"
)

// FuzzRequest: no request makes the door panic, answer without a request ID, or
// tell an error in another form than its own.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"POST /v1/objects/THING/a/call/add HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n[1]",
		"POST /v1/objects/THING//call/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
		"GET /v1/objects/THING/id:00/fetch/a/../%2f?q HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
		"PUT /v1/objects/THING/name:%ff/fetch HTTP/1.0\r\n\r\n",
		"DELETE /v1/objects/THING/x/fetch//teapot HTTP/1.1\r\nHost: x\r\nConnection: close, te\r\nTe: trailers\r\n\r\n",
		"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
		"POST http://y/v1/objects/THING/a/call/two?x HTTP/1.1\r\nHost: x\r\nContent-Type: a/b; c=\"\r\n\r\n",
		"POST /v1/objects/THING/a/call/fail HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n[\"\\u0000\"]",
	} {
		f.Add([]byte(s))
	}
	allowed := []int{200, 400, 403, 404, 405, 409, 413, 415, 418, 429, 500, 501}
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		if bytes.Contains(raw, []byte("/stream")) || bytes.Contains(raw, []byte("/break")) || bytes.Contains(raw, []byte("wait")) {
			return // these wait for a test
		}
		door := gateway.New(gateway.Config{Resolver: newWorld(), MaxBody: 1 << 10, Logger: slog.New(slog.DiscardHandler)})
		w := httptest.NewRecorder()
		door.ServeHTTP(w, req)
		if w.Header().Get("X-Request-Id") == "" {
			t.Fatalf("no request ID: %v", w.Header())
		}
		if w.Header().Get("Limpet-Error") == "" || req.Method == http.MethodHead {
			return
		}
		var body struct {
			Error struct{ Name, Code, Delivery, RequestID string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Error.Code == "" || body.Error.Delivery == "" || body.Error.Name == "" || body.Error.RequestID == "" {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		if !slices.Contains(allowed, w.Code) {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}
