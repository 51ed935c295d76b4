package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a log that a test can read.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type fixture struct {
	*world
	t   *testing.T
	srv *httptest.Server
	log *lines
}

// start serves a door on a real socket.
func start(t *testing.T, change ...func(*gateway.Config)) *fixture {
	t.Helper()
	f := &fixture{world: newWorld(), t: t, log: &lines{}}
	c := gateway.Config{Resolver: f.world, Logger: slog.New(slog.NewJSONHandler(f.log, nil))}
	for _, ch := range change {
		ch(&c)
	}
	f.srv = httptest.NewServer(gateway.New(c))
	t.Cleanup(func() {
		f.srv.CloseClientConnections()
		f.srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return f
}

type reply struct {
	status int
	header http.Header
	text   string
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Name, Message, Code, Delivery, Identity, RequestID, ObjectID string
		Retryable, Overloaded, Remote, Reset                         bool
		Attempts                                                     int
		Fields                                                       map[string]any
	} `json:"error"`
}

func (f *fixture) do(method, path string, body io.Reader, change ...func(*http.Request)) *reply {
	f.t.Helper()
	req, err := http.NewRequest(method, f.srv.URL+path, body)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, ch := range change {
		ch(req)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	r := &reply{status: resp.StatusCode, header: resp.Header, text: string(b)}
	if resp.Header.Get("Content-Type") == "application/json" && method != http.MethodHead {
		if err := json.Unmarshal(b, r); err != nil {
			f.t.Fatalf("%s: %v", b, err)
		}
	}
	if len(resp.Header.Values("X-Request-Id")) != 1 {
		f.t.Errorf("%s %s: X-Request-Id %q, want one", method, path, resp.Header.Values("X-Request-Id"))
	}
	return r
}

func (f *fixture) call(name, method, args string) *reply {
	f.t.Helper()
	return f.do("POST", "/v1/objects/THING/"+name+"/call/"+method, strings.NewReader(args))
}

func header(k, v string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(k, v) }
}

func (r *reply) wantError(t *testing.T, status int, code limpet.Code, delivery limpet.Delivery, text string) {
	t.Helper()
	if r.status != status || r.Error == nil || r.Error.Code != string(code) || r.Error.Delivery != delivery.String() || !strings.Contains(r.Error.Message, text) {
		t.Fatalf("got %d %s, want %d %s, %v, %q", r.status, r.text, status, code, delivery, text)
	}
	if got := r.header.Get("Limpet-Error"); got != string(code) {
		t.Errorf("Limpet-Error %q, want %q", got, code)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if r.Error.RequestID == "" || r.Error.RequestID != r.header.Get("X-Request-Id") {
		t.Errorf("requestId %q, header %q", r.Error.RequestID, r.header.Get("X-Request-Id"))
	}
}

func TestCall(t *testing.T) {
	f := start(t)
	for _, tt := range []struct{ method, args, want string }{
		{"add", "[2]", `{"result":2}`},
		{"add", " \r\n\t[3]\n", `{"result":5}`},
		{"reset", "[]", `{}`},
		{"reset", "", `{}`},
		{"two", `["é<", -7]`, `{"result":"é<-7"}`},
		{"echo", `[null]`, `{"result":null}`},
		{"echo", `[{"a":[1,2.5,"x",true,null,{}]}]`, `{"result":{"a":[1,2.5,"x",true,null,{}]}}`},
		{"echo", `[{"$bigint":"123456789012345678901234567890"}]`, `{"result":{"$bigint":"123456789012345678901234567890"}}`},
		{"echo", `[{"$bytes":"AQID"}]`, `{"result":{"$bytes":"AQID"}}`},
	} {
		r := f.call("a", tt.method, tt.args)
		if r.status != 200 || strings.TrimSpace(r.text) != tt.want {
			t.Errorf("%s %s: got %d %s, want %s", tt.method, tt.args, r.status, r.text, tt.want)
		}
		if r.header.Get("Limpet-Error") != "" || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", tt.method, r.header)
		}
	}
}

func TestNames(t *testing.T) {
	f := start(t)
	ns, err := limpet.NamespaceOf[any](f.world, "THING")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("n", 10_000)
	for _, tt := range []struct{ segment, name string }{
		{"", ""}, // SPEC A7
		{"name:", ""},
		{long, long}, // SPEC A7
		{"a%2Fb", "a/b"},
		{"..", ".."},
		{"%2E", "."},
		{"name:id:x", "id:x"},
		{"%F0%9F%90%9A", "🐚"},
		{"a%00b", "a\x00b"},
	} {
		r := f.call(tt.segment, "address", "")
		id, err := ns.IDFromName(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`{"result":%q}`, id); strings.TrimSpace(r.text) != want {
			t.Errorf("%.40q: got %s, want %s", tt.segment, r.text, want)
		}
		// SPEC A8: the same object by its digits, in either case; SPEC A9 leaves
		// it the name that it was made with.
		for _, digits := range []string{id.String(), strings.ToUpper(id.String())} {
			if r := f.call("id:"+digits, "address", ""); strings.TrimSpace(r.text) != fmt.Sprintf(`{"result":%q}`, id) {
				t.Errorf("id:%s: %s", digits, r.text)
			}
		}
	}
	unnamed := ns.NewUniqueID()
	if r := f.call("id:"+unnamed.String(), "name", ""); strings.TrimSpace(r.text) != `{"result":"\"\" false"}` { // SPEC A9
		t.Errorf("an object reached by its ID has a name: %s", r.text)
	}

	made := f.made()
	// SPEC A8
	f.call("id:12", "address", "").wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "Invalid Durable Object ID: must be 64 hex digits")
	f.call("id:"+strings.Repeat("0", 64), "address", "").wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "Durable Object ID is not valid for this namespace.")
	f.call("a%FFb", "address", "").wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "not valid UTF-8")
	f.call(strings.Repeat("n", limpet.MaxNameBytes+1), "address", "").wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "32768 bytes")
	f.do("GET", "/v1/objects/THING/a%FFb/fetch/", nil).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "not valid UTF-8")
	if f.made() != made {
		t.Error("a refused name made a call")
	}
	if r := f.call(strings.Repeat("%E2%82%AC", limpet.MaxNameBytes/3), "address", ""); r.status != 200 {
		t.Errorf("a name of %d bytes: %s", limpet.MaxNameBytes/3*3, r.text)
	}
}

func TestRefusals(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.MaxBody = 1 << 10 })
	path := "/v1/objects/THING/a/call/add"
	f.do("POST", "/v1/objects/CART/a/call/add", nil).wantError(t, 404, limpet.CodeUnknownNamespace, limpet.DeliveryNone, "there are THING")
	f.do("POST", "/v1/objects/%FF/a/call/add", nil).wantError(t, 404, limpet.CodeUnknownNamespace, limpet.DeliveryNone, `"\xff"`)
	f.do("GET", "/v1/objects/THING/a", nil).wantError(t, 404, "NotFound", limpet.DeliveryNone, "POST /v1/objects/{BINDING}/{name}/call/{method}")
	f.do("GET", "/favicon.ico", nil).wantError(t, 404, "NotFound", limpet.DeliveryNone, "/favicon.ico")
	r := f.do("GET", path, nil)
	r.wantError(t, 405, "MethodNotAllowed", limpet.DeliveryNone, "GET")
	if got := r.header.Get("Allow"); got != "POST" {
		t.Errorf("Allow %q", got)
	}
	f.do("POST", "/", nil).wantError(t, 405, "MethodNotAllowed", limpet.DeliveryNone, "GET")
	post := func(body string, change ...func(*http.Request)) *reply {
		return f.do("POST", path, strings.NewReader(body), change...)
	}
	for _, body := range []string{"1", "{}", "null", `"x"`, "\xef\xbb\xbf[1]", "[", "[1", "[1]]", "[1] x", "[1,]", "[01]", "[NaN]", `["\x"]`, "[1]\x00", "'x'"} {
		post(body).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "the body")
	}
	post("[\"\xff\"]").wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "UTF-8")
	post("["+strings.Repeat("[", 500)+strings.Repeat("]", 500)+"]", header("Content-Type", "application/json")).
		wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryReceived, "") // deep, but valid: no int
	post("[1]", header("Content-Type", "text/plain")).wantError(t, 415, "UnsupportedMediaType", limpet.DeliveryNone, "text/plain")
	post("[1]", header("Content-Type", "application/x-www-form-urlencoded")).wantError(t, 415, "UnsupportedMediaType", limpet.DeliveryNone, "--json")
	post("[1]", header("Content-Type", "application/json; charset=latin1")).wantError(t, 415, "UnsupportedMediaType", limpet.DeliveryNone, "latin1")
	post("[1]", header("Content-Encoding", "gzip")).wantError(t, 415, "UnsupportedMediaType", limpet.DeliveryNone, "gzip")
	for _, key := range []string{"", strings.Repeat("k", 257), "\xff"} {
		post("[1]", header("Idempotency-Key", key)).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "Idempotency-Key")
	}
	post("[1]", func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"a", "b"} }).
		wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "2 times")
	f.do("POST", "/v1/objects/THING/a/outcome/key:k", nil).wantError(t, 405, "MethodNotAllowed", limpet.DeliveryNone, "GET")
	f.do("GET", "/v1/objects/THING/a/outcome/", nil).wantError(t, 404, "NotFound", limpet.DeliveryNone, "outcome")
	f.do("GET", "/v1/objects/THING/a/outcome/key:k", nil, header("Idempotency-Key", "k")).
		wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "path")
	f.do("POST", path+"?jurisdiction=eu", strings.NewReader("[1]")).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryNone, "jurisdiction=eu")
	f.do("GET", "/v1/objects/THING/a/fetch/ws", nil, header("Upgrade", "WebSocket"), header("Connection", "Upgrade")).
		wantError(t, 501, limpet.CodeNotSupported, limpet.DeliveryNone, "WebSocket")
	if f.made() != 1 { // the deep one
		t.Errorf("%d calls were made", f.made())
	}
	f.call("a", "nothing", "").wantError(t, 404, limpet.CodeUnknownMethod, limpet.DeliveryReceived, "nothing") // SPEC C30
	f.call("a", "", "").wantError(t, 404, "NotFound", limpet.DeliveryNone, "")
	f.call("a", "Add", "[1]").wantError(t, 404, limpet.CodeUnknownMethod, limpet.DeliveryReceived, "Add")
	f.call("a", "serveHTTP", "").wantError(t, 404, limpet.CodeUnknownMethod, limpet.DeliveryReceived, "serveHTTP")
	f.call("a", "add", "[]").wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryReceived, "add(int)")
	f.call("a", "add", `["x"]`).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryReceived, "int")
	f.call("a", "two", `["x",1,2]`).wantError(t, 400, limpet.CodeInvalidArgument, limpet.DeliveryReceived, "two(string, int)")
	if r := f.call("a", "add", "[7]"); strings.TrimSpace(r.text) != `{"result":7}` {
		t.Errorf("afterwards: %s", r.text)
	}
	if r := post("[1]", header("Content-Type", "application/vnd.x+json; charset=UTF-8")); r.status != 200 {
		t.Errorf("%s", r.text)
	}
}

func TestIndex(t *testing.T) {
	f := start(t)
	if r := f.do("GET", "/", nil); r.status != 200 || !strings.Contains(r.text, "/v1/objects/{BINDING}/{name}/fetch/{path}") {
		t.Errorf("%d %s", r.status, r.text)
	}
	if r := f.do("HEAD", "/", nil); r.status != 200 || r.text != "" || r.header.Get("Content-Length") == "0" {
		t.Errorf("%d %q %v", r.status, r.text, r.header)
	}
}

// TestBodyLimit: SPEC B30 bounds arguments; the door stops reading before that.
func TestBodyLimit(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.MaxBody = 100 << 10; c.MaxBodies = 256 << 10 })
	path := "/v1/objects/THING/a/call/echo"
	fits := `["` + strings.Repeat("x", 100<<10-4) + `"]`
	if r := f.do("POST", path, strings.NewReader(fits)); r.status != 200 {
		t.Fatalf("%d %.200s", r.status, r.text)
	}
	for name, body := range map[string]io.Reader{
		"length known": strings.NewReader(fits + " "),
		"chunked":      io.MultiReader(strings.NewReader(fits), strings.NewReader(" ")),
	} {
		t.Run(name, func(t *testing.T) {
			f.do("POST", path, body).wantError(t, 413, limpet.CodeTooLarge, limpet.DeliveryNone, "102400 bytes")
		})
	}
	t.Run("not read", func(t *testing.T) {
		// The server answers although nothing of the body was sent.
		c := f.dial()
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 413 {
			t.Fatalf("%v %v", resp, err)
		}
		_ = resp.Body.Close()
	})
	t.Run("fetch", func(t *testing.T) {
		f.do("POST", "/v1/objects/THING/a/fetch/", strings.NewReader(fits+" ")).wantError(t, 413, limpet.CodeTooLarge, limpet.DeliveryNone, "102400 bytes")
		// Without a length the object's own reader meets the limit.
		if r := f.do("POST", "/v1/objects/THING/a/fetch/", io.MultiReader(strings.NewReader(fits), strings.NewReader(" "))); r.status != 413 || !strings.Contains(r.text, "too large") {
			t.Errorf("%d %s", r.status, r.text)
		}
	})
	t.Run("all bodies", func(t *testing.T) {
		// Two clients stop in the middle of bodies that hold the budget: a write
		// to a pipe returns when the door has read it.
		var stopped sync.WaitGroup
		var bodies []*io.PipeWriter
		for range 2 {
			r, w := io.Pipe()
			bodies = append(bodies, w)
			stopped.Go(func() {
				f.srv.Config.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", path, r))
			})
			if _, err := io.WriteString(w, fits[:70<<10]); err != nil {
				t.Fatal(err)
			}
		}
		r := f.do("POST", path, strings.NewReader(`["x"]`))
		r.wantError(t, 429, limpet.CodeOverloaded, limpet.DeliveryNone, "262144") // SPEC C37
		if !r.Error.Overloaded || r.header.Get("Retry-After") == "" {
			t.Errorf("%s %v", r.text, r.header)
		}
		for _, w := range bodies { // they leave
			_ = w.CloseWithError(io.ErrUnexpectedEOF)
		}
		stopped.Wait()
		if r := f.do("POST", path, strings.NewReader(`["x"]`)); r.status != 200 {
			t.Errorf("afterwards: %s", r.text)
		}
	})
}

func (f *fixture) dial() net.Conn {
	f.t.Helper()
	c, err := net.Dial("tcp", f.srv.Listener.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// past is a clock on which every body is late.
type past struct{ limpet.Clock }

func (past) Now() time.Time { return time.Now().Add(-time.Hour) }

// present tells the time.
type present struct{ limpet.Clock }

func (present) Now() time.Time { return time.Now() }

func TestBodyTimeout(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.Clock = past{} })
	c := f.dial()
	_, _ = fmt.Fprint(c, "POST /v1/objects/THING/a/call/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n[")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 408 || resp.Header.Get("Limpet-Error") != "BodyTimeout" {
		t.Errorf("%v", resp)
	}
	if f.made() != 0 {
		t.Error("a call was made")
	}
}

// TestUnreadBodyTimeout: a client that stops in the middle of a body that nobody
// reads has its answer, and the connection ends.
func TestUnreadBodyTimeout(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.Clock = past{} })
	for _, tt := range []struct {
		line   string
		status int
	}{
		{"POST /nope", 404},
		{"GET /", 200},
		{"PUT /v1/objects/THING/a/call/echo", 405},
		{"POST /v1/objects/THING/a/call/echo?x", 400},
		{"POST /v1/objects/NOPE/a/call/echo", 404},
		{"POST /v1/objects/THING/a/fetch/teapot", 418},
	} {
		c := f.dial()
		_, _ = fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n[", tt.line)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // instead of for ever
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Errorf("%s: %v", tt.line, err)
			continue
		}
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tt.status || err != nil || !resp.Close {
			t.Errorf("%s: %v %v", tt.line, resp, err)
		}
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", tt.line, err)
		}
	}
}

// TestUnreadExpect: a client that asks before it sends a body is not told to send
// one that nobody wants.
func TestUnreadExpect(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.Clock = present{} })
	c := f.dial()
	_, _ = fmt.Fprint(c, "POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // instead of for ever
	line, err := bufio.NewReader(c).ReadString('\n')
	if line != "HTTP/1.1 404 Not Found\r\n" {
		t.Errorf("%q %v", line, err)
	}
}

// TestAnswerTimeout: a client that does not read is left.
func TestAnswerTimeout(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.Clock = past{} })
	c := f.dial()
	const size = 16 << 20 // more than sockets buffer
	f.failWith(func(*limpet.CallSpec) error {
		return &limpet.Error{Message: strings.Repeat("x", size), Remote: true, Delivery: limpet.DeliveryReceived}
	})
	_, _ = fmt.Fprint(c, "POST /v1/objects/THING/a/call/reset HTTP/1.1\r\nHost: localhost\r\n\r\n")
	b, err := io.ReadAll(c) // ends when the door hangs up
	if len(b) >= size {
		t.Errorf("%d bytes came, %v", len(b), err)
	}
}

func TestErrors(t *testing.T) {
	f := start(t)
	made := func(code limpet.Code, change func(*limpet.Error)) func(*limpet.CallSpec) error {
		return func(*limpet.CallSpec) error {
			e := limpet.Errorf(code, "what happened").With(func(e *limpet.Error) {
				e.Attempts, e.Identity, e.RequestID = 5, "00112233445566778899aabbccddeeff-1", ""
			})
			if change != nil {
				change(e)
			}
			return e
		}
	}
	delivery := func(d limpet.Delivery) func(*limpet.Error) {
		return func(e *limpet.Error) { e.Delivery = d }
	}
	const none, uncertain, received = limpet.DeliveryNone, limpet.DeliveryUncertain, limpet.DeliveryReceived
	for _, tt := range []struct {
		code   limpet.Code
		change func(*limpet.Error)
		status int
	}{
		{limpet.CodeInvalidArgument, nil, 400},
		{limpet.CodeNoSuchObject, nil, 404},
		{limpet.CodeAlreadyReceived, nil, 409},
		{limpet.CodeTooLarge, nil, 413},
		{limpet.CodeOverloaded, func(e *limpet.Error) { e.Overloaded = true }, 429}, // SPEC C37
		{limpet.CodeNotSupported, nil, 501},
		{limpet.CodeDisconnected, delivery(none), 503},
		{limpet.CodeDisconnected, delivery(uncertain), 502},
		{limpet.CodeDisconnected, delivery(received), 502},
		{limpet.CodeDraining, delivery(none), 503},
		{limpet.CodeReset, func(e *limpet.Error) { e.Reset = true; e.Delivery = received }, 500},
		{limpet.CodeStorageFull, delivery(received), 507},
		{limpet.CodeStorageLost, delivery(uncertain), 502},
		{limpet.CodeStorageLost, delivery(none), 503},
		{limpet.CodeCanceled, func(e *limpet.Error) { e.Cause = context.DeadlineExceeded }, 504},
		{limpet.CodeCanceled, delivery(none), 503},
		{limpet.CodeCanceled, delivery(received), 502},
		{limpet.CodeCallCycle, nil, 500},
		{limpet.CodeInternal, nil, 500},
		{limpet.CodeApplication, nil, 500},
		// The method's own, whatever it calls it.
		{limpet.CodeInvalidArgument, func(e *limpet.Error) { e.Remote = true }, 500},
		{"Overloaded\r\nX: y", func(e *limpet.Error) { e.Remote = true }, 500},
	} {
		t.Run(fmt.Sprintf("%s %d", tt.code, tt.status), func(t *testing.T) {
			f.failWith(made(tt.code, tt.change))
			want := asError(made(tt.code, tt.change)(nil))
			for what, r := range map[string]*reply{
				"call":  f.call("a", "add", "[1]"),
				"fetch": f.do("PUT", "/v1/objects/THING/a/fetch/x", strings.NewReader("x")),
			} {
				if r.status != tt.status || r.Error == nil {
					t.Fatalf("%s: got %d %s, want %d", what, r.status, r.text, tt.status)
				}
				e := r.Error
				if e.Code != string(tt.code) || e.Delivery != want.Delivery.String() || e.Attempts != 5 || e.Identity != want.Identity ||
					e.Overloaded != want.Overloaded || e.Reset != want.Reset || e.Remote != want.Remote || e.Name != "Error" {
					t.Errorf("%s: got %s, want %+v", what, r.text, want)
				}
				if got, want := r.header.Get("Retry-After") != "", tt.status == 429; got != want {
					t.Errorf("%s: Retry-After %q", what, r.header.Get("Retry-After"))
				}
				if tt.code == limpet.CodeInternal { // SPEC C6
					if e.Message != "internal error; reference = "+r.header.Get("X-Request-Id") {
						t.Errorf("%s: message %q", what, e.Message)
					}
				} else if !strings.Contains(e.Message, "what happened") {
					t.Errorf("%s: message %q", what, e.Message)
				}
				if tt.status >= 500 && !want.Remote && !strings.Contains(f.log.String(), e.RequestID) {
					t.Errorf("%s: request %s is not in the log %s", what, e.RequestID, f.log)
				}
				if tt.status < 500 && strings.Contains(f.log.String(), e.RequestID) {
					t.Errorf("%s: a %d is in the log", what, tt.status)
				}
			}
		})
	}
	if !strings.Contains(f.log.String(), "what happened") {
		t.Error("the log does not say what happened")
	}
}

func asError(err error) *limpet.Error {
	e, _ := errors.AsType[*limpet.Error](err)
	return e
}

func TestMethodErrors(t *testing.T) {
	f := start(t)
	r := f.call("a", "fail", `["SoldOut"]`)
	r.wantError(t, 500, "SoldOut", limpet.DeliveryReceived, "no such item")
	e := r.Error
	if e.Name != "CartError" || !e.Remote || !e.Retryable || e.Attempts != 1 || len(e.ObjectID) != 64 {
		t.Errorf("%s", r.text)
	}
	// What a method says in fields of its own can't pass for what limpet says.
	if e.Fields["item"] != "x" || e.Fields["delivery"] != "forged" {
		t.Errorf("fields %v", e.Fields)
	}
	f.call("a", "plain", "").wantError(t, 500, limpet.CodeApplication, limpet.DeliveryReceived, "just a text")
	// What a client can make a method say does not fill the log.
	f.call("a", "fail", `["`+strings.Repeat("é", 1<<20)+`"]`)
	if n := len(f.log.String()); n > 16<<10 {
		t.Errorf("the log has %d bytes", n)
	}
	// A method's own InvalidArgument is not the caller's.
	f.call("a", "fail", `["InvalidArgument"]`).wantError(t, 500, limpet.CodeInvalidArgument, limpet.DeliveryReceived, "no such item")
}

// TestClientLeaves: the call ends with the client.
func TestClientLeaves(t *testing.T) {
	f := start(t)
	left := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", f.srv.URL+"/v1/objects/THING/a/call/wait", strings.NewReader("[]"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := http.DefaultTransport.RoundTrip(req)
		left <- err
	}()
	<-f.waiting
	cancel() // SPEC C41
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	f.srv.Close() // returns when the handler has: the call ended
}

// TestDeadline: the request's own deadline, as a program that mounts the door sets it.
func TestDeadline(t *testing.T) {
	w := newWorld()
	door := gateway.New(gateway.Config{Resolver: w, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	rec := httptest.NewRecorder()
	door.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, "POST", "/v1/objects/THING/a/call/wait", nil))
	if rec.Code != 504 || rec.Header().Get("Limpet-Error") != "Canceled" {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestDraining(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.Draining = func() bool { return true } })
	f.call("a", "add", "[1]").wantError(t, 503, limpet.CodeDraining, limpet.DeliveryNone, "stopping")
	f.do("GET", "/v1/objects/THING/a/fetch/", nil).wantError(t, 503, limpet.CodeDraining, limpet.DeliveryNone, "stopping")
	if f.made() != 0 {
		t.Error("a call was made")
	}
}

func TestGuard(t *testing.T) {
	f := start(t, func(c *gateway.Config) { c.Hosts = []string{"Shop.Example"} })
	_, port, _ := net.SplitHostPort(f.srv.Listener.Addr().String())
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	for _, h := range []string{"localhost", "LOCALHOST:" + port, "localhost.", "127.0.0.1", "127.9.8.7:80", "[::1]", "[::1]:" + port, "[::ffff:127.0.0.1]", "shop.example", "shop.example:443"} {
		if r := f.do("GET", "/", nil, host(h)); r.status != 200 {
			t.Errorf("Host %s: %d %s", h, r.status, r.text)
		}
	}
	for _, h := range []string{"evil.example", "evil.example:" + port, "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "0.0.0.0", "evil.localhost.example"} {
		f.do("POST", "/v1/objects/THING/a/call/add", strings.NewReader("[1]"), host(h)).wantError(t, 403, "Forbidden", limpet.DeliveryNone, "Host")
	}
	f.do("POST", "/v1/objects/THING/a/call/add", strings.NewReader("[1]"), header("Origin", "https://evil.example")).
		wantError(t, 403, "Forbidden", limpet.DeliveryNone, "cross-origin")
	f.do("POST", "/v1/objects/THING/a/fetch/x", nil, header("Sec-Fetch-Site", "cross-site")).
		wantError(t, 403, "Forbidden", limpet.DeliveryNone, "cross-origin")
	if f.made() != 0 {
		t.Error("a call was made")
	}
	if r := f.do("POST", "/v1/objects/THING/a/call/add", strings.NewReader("[1]"), header("Sec-Fetch-Site", "same-origin")); r.status != 200 {
		t.Errorf("%d %s", r.status, r.text)
	}
}

func TestFetch(t *testing.T) {
	f := start(t)
	r := f.do("POST", "/v1/objects/THING/a%2Fb/fetch/x/%2F/..//y?q=1;2&%zz", strings.NewReader("hello"), func(r *http.Request) {
		r.Header.Set("X-Mine", "1")
		r.Header.Set("Connection", "X-Hop")
		r.Header.Set("X-Hop", "1")
		r.Header.Set("X-Forwarded-For", "6.6.6.6")
		r.Host = "localhost:99"
	})
	if want := `POST http://localhost:99/x/%2F/..//y?q=1;2&%zz "hello" `; r.status != 200 || r.text != want {
		t.Errorf("got %d %s, want %s", r.status, r.text, want)
	}
	ns, _ := limpet.NamespaceOf[any](f.world, "THING")
	id, _ := ns.IDFromName("a/b")
	f.mu.Lock()
	got := <-f.things[id.Bytes()].got
	f.mu.Unlock()
	if got.Header.Get("X-Mine") != "1" || got.Header.Get("X-Hop") != "" || got.Header.Get("X-Forwarded-For") != "" || got.Host != "localhost:99" {
		t.Errorf("the object saw %v %v", got.Host, got.Header)
	}
	for path, want := range map[string]string{"fetch": "/", "fetch/": "/", "fetch?a": "/?a", "fetch//": "//"} {
		if r := f.do("GET", "/v1/objects/THING/"+url.PathEscape(path)+"/"+path, nil); !strings.HasPrefix(r.text, "GET "+f.srv.URL+want+" ") {
			t.Errorf("%s: %s", path, r.text)
		}
	}
	// SPEC B17: what the object answers is a result.
	r = f.do("DELETE", "/v1/objects/THING/a/fetch/teapot", nil)
	if r.status != 418 || r.header.Get("Limpet-Error") != "" || r.header.Get("X-Request-Id") == "the object's" || r.header.Get("X-Hop") != "" {
		t.Errorf("%d %v", r.status, r.header)
	}
	r = f.do("GET", "/v1/objects/THING/a/fetch/redirect", nil)
	if r.status != 302 || r.header.Get("Location") != "/elsewhere" {
		t.Errorf("%d %v", r.status, r.header)
	}
}

func TestFetchTrailer(t *testing.T) {
	f := start(t)
	r := f.do("POST", "/v1/objects/THING/a/fetch/t", io.MultiReader(strings.NewReader("x")), func(r *http.Request) {
		r.Trailer = http.Header{"X-Check": {"sum"}}
	})
	if !strings.HasSuffix(r.text, `"x" sum`) {
		t.Error(r.text)
	}
}

func TestFetchStream(t *testing.T) {
	f := start(t)
	resp, err := http.Get(f.srv.URL + "/v1/objects/THING/a/fetch/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewReader(resp.Body)
	for i := range 3 { // each is read before the next is written
		line, err := lines.ReadString('\n')
		if want := fmt.Sprintf("chunk %d\n", i); err != nil || line != want {
			t.Fatalf("got %q, %v, want %q", line, err, want)
		}
		f.block <- struct{}{}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if got := resp.Trailer.Get("X-Sum"); got != "3" {
		t.Errorf("trailer %q", got)
	}
}

// TestFetchBreaks: a body that breaks off must not look complete.
func TestFetchBreaks(t *testing.T) {
	f := start(t)
	resp, err := http.Get(f.srv.URL + "/v1/objects/THING/a/fetch/break")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Fatalf("got %q and a proper end", b)
	}
}
