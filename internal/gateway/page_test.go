package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/gateway"
	"github.com/limpet-dev/limpet/limpettest"
)

// cart is the class of the examples in docs/HTTP.md.
type cart struct{ st *limpet.State }

func (c *cart) SetQuantity(_ context.Context, item string, n int) error {
	return c.st.KV().Put(item, n)
}

func (c *cart) Quantity(_ context.Context, item string) (n int, err error) {
	_, err = c.st.KV().Get(item, &n)
	return n, err
}

func (c *cart) AddOne(ctx context.Context, item string) (int, error) {
	n, err := c.Quantity(ctx, item)
	if err != nil {
		return 0, err
	}
	return n + 1, c.st.KV().Put(item, n+1)
}

func (c *cart) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "%s %s %s\n", r.Method, r.RequestURI, body)
}

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/HTTP.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// exchange is a request of the page with its answer.
var exchange = regexp.MustCompile("(?s)<!-- request -->\n```http\n(.*?)\n```\n<!-- response -->\n```http\n(.*?)\n```")

// TestPage sends what docs/HTTP.md shows, in its order, and compares the answers.
func TestPage(t *testing.T) {
	page := readPage(t)
	all := exchange.FindAllStringSubmatch(page, -1)
	if n := strings.Count(page, "```http"); len(all) == 0 || n != 2*len(all) {
		t.Fatalf("%d examples, but %d blocks", len(all), n)
	}
	class := limpet.NewClass("Cart", func(st *limpet.State) (*cart, error) { return &cart{st}, nil })
	srv := httptest.NewServer(limpettest.Start(t, class).Handler())
	t.Cleanup(func() {
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	for _, ex := range all {
		line, _, _ := strings.Cut(ex[1], "\n")
		t.Run(line, func(t *testing.T) {
			resp, err := http.DefaultClient.Do(parseRequest(t, srv.URL, ex[1]))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			compareAnswer(t, resp, string(body), ex[2])
		})
	}
}

func parseRequest(t *testing.T, url, text string) *http.Request {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	line, headers, _ := strings.Cut(head, "\n")
	method, path, _ := strings.Cut(line, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for h := range strings.Lines(headers) {
		name, v, _ := strings.Cut(strings.TrimSpace(h), ": ")
		if name == "Host" {
			req.Host = v
		} else {
			req.Header.Set(name, v)
		}
	}
	return req
}

func compareAnswer(t *testing.T, resp *http.Response, body, want string) {
	t.Helper()
	head, wantBody, _ := strings.Cut(want, "\n\n")
	status, headers, _ := strings.Cut(head, "\n")
	if got := strconv.Itoa(resp.StatusCode); got != status {
		t.Errorf("status %s, want %s: %s", got, status, body)
	}
	for h := range strings.Lines(headers) {
		name, v, _ := strings.Cut(strings.TrimSpace(h), ": ")
		if got := resp.Header.Get(name); got == "" || v != "…" && got != v {
			t.Errorf("%s: %q, want %q", name, got, v)
		}
	}
	if resp.Header.Get("Content-Type") != "application/json" {
		if strings.TrimSpace(body) != wantBody {
			t.Errorf("body %q, want %q", body, wantBody)
		}
		return
	}
	var g, w any
	if err := json.Unmarshal([]byte(body), &g); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(wantBody), &w); err != nil {
		t.Fatalf("the page: %v", err)
	}
	covers(t, "", g, w)
}

// covers checks that got has all that the page shows; "…" stands for anything.
func covers(t *testing.T, path string, got, want any) {
	t.Helper()
	w, ok := want.(map[string]any)
	if !ok {
		if s, _ := got.(string); got != want && (want != "…" || s == "") {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
		return
	}
	g, _ := got.(map[string]any)
	for name := range w {
		if _, ok := g[name]; !ok {
			t.Errorf("%s has no member %s", path, name)
			continue
		}
		covers(t, path+"."+name, g[name], w[name])
	}
	if _, isError := w["requestId"]; isError || path == "" { // shown in full
		for name := range g {
			if _, ok := w[name]; !ok {
				t.Errorf("%s has a member %s that the page does not show", path, name)
			}
		}
	}
}

// TestPageStatus compares the page's table with the door's.
func TestPageStatus(t *testing.T) {
	row := regexp.MustCompile(`^\| (\d{3}) \| (.+?) \| (.+?) \| .+ \|$`)
	word := regexp.MustCompile("`([A-Za-z]+)`")
	told := map[string]bool{}
	scan := bufio.NewScanner(bytes.NewBufferString(readPage(t)))
	for scan.Scan() {
		m := row.FindStringSubmatch(scan.Text())
		if m == nil {
			continue
		}
		deliveries := strings.Split(m[3], ", ")
		if m[3] == "any" {
			deliveries = []string{"not delivered", "uncertain", "received"}
		}
		for _, code := range word.FindAllStringSubmatch(m[2], -1) {
			told[code[1]] = true
			for _, text := range deliveries {
				e := &limpet.Error{Code: limpet.Code(code[1])}
				if err := e.Delivery.UnmarshalText([]byte(text)); err != nil {
					t.Fatal(err)
				}
				if m[1] == "504" {
					e.Cause = context.DeadlineExceeded
				}
				if got := strconv.Itoa(gateway.StatusOf(e)); got != m[1] {
					t.Errorf("%s, %s: status %s, the page says %s", code[1], text, got, m[1])
				}
			}
		}
	}
	codes := []limpet.Code{
		limpet.CodeApplication, limpet.CodeInvalidArgument, limpet.CodeUnknownNamespace, limpet.CodeUnknownMethod, limpet.CodeNoSuchObject,
		limpet.CodeNotSupported, limpet.CodeTooLarge, limpet.CodeOverloaded, limpet.CodeDisconnected, limpet.CodeReset, limpet.CodeAlreadyReceived, limpet.CodeIdentityReused, limpet.CodeOutcomeUnknown,
		limpet.CodeCanceled, limpet.CodeCallCycle, limpet.CodeStorageFull, limpet.CodeStorageLost, limpet.CodeNoTurn, limpet.CodeDraining, limpet.CodeInternal,
		"NotFound", "MethodNotAllowed", "UnsupportedMediaType", "Forbidden", "BodyTimeout",
	}
	for _, c := range codes {
		if !told[string(c)] {
			t.Errorf("the page does not tell the status of %s", c)
		}
	}
	for c := range told {
		if !slices.Contains(codes, limpet.Code(c)) {
			t.Errorf("the page tells the status of %s, which is no code", c)
		}
	}
	// "A method's own error is a 500, whatever its code."
	for _, c := range codes {
		own := limpet.MethodError(limpet.ID{}, &limpet.Error{Code: c})
		if got := gateway.StatusOf(own); got != http.StatusInternalServerError {
			t.Errorf("a method's own %s: status %d", c, got)
		}
	}
}
