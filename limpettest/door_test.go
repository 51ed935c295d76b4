package limpettest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// heard is an object whose fetch tells the test what it was sent. It is marked.
type heard struct{ bodies chan string }

func (h *heard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	h.bodies <- string(b)
	fmt.Fprint(w, len(b), err)
}

// TestDoorKeepsBodies loses the answer to a request of the door.
func TestDoorKeepsBodies(t *testing.T) {
	for _, test := range []struct {
		name     string
		config   int64 // of the node
		defaults []limpet.StubOption
		status   int
		bodies   []string
		text     string
	}{
		// SPEC G1: what a server received can be read once, unless it is kept
		{"default", 0, nil, 502, []string{"hello"}, `"noRetry":"the request body can be read only once`},
		{"kept by the door", 5, nil, 200, []string{"hello", "hello"}, "5 <nil>"},
		{"too long for it", 4, nil, 502, []string{"hello"}, "larger than the 4 bytes of BufferBody"},
		{"kept by the binding", 0, []limpet.StubOption{limpet.BufferBody(5)}, 200, []string{"hello", "hello"}, "5 <nil>"},
		{"the door goes before the binding", 5, []limpet.StubOption{limpet.BufferBody(1)}, 200, []string{"hello", "hello"}, "5 <nil>"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bodies := make(chan string, 10)
			class := limpet.NewClass("Heard", func(*limpet.State) (*heard, error) { return &heard{bodies}, nil }, limpet.Retryable((*heard).ServeHTTP))
			n := limpettest.StartConfig(t, node.Config{
				Classes: []*limpet.Class{class}, BufferBody: test.config,
				Namespaces: map[string]node.Namespace{"HEARD": {Class: "Heard", Defaults: test.defaults}},
			})
			n.Network().Inject(limpettest.DropReply(limpettest.Times(1)))
			s := httptest.NewServer(n.Handler())
			defer s.Close()
			resp, err := http.Post(s.URL+"/v1/objects/HEARD/x/fetch/", "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != test.status || !strings.Contains(string(text), test.text) {
				t.Errorf("got %d %q, %v; want %d, %q", resp.StatusCode, text, err, test.status, test.text)
			}
			close(bodies)
			var got []string
			for b := range bodies {
				got = append(got, b)
			}
			if !slices.Equal(got, test.bodies) {
				t.Errorf("the object heard %q, want %q", got, test.bodies)
			}
		})
	}
}
