package gateway

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

func TestSplitPath(t *testing.T) {
	named := func(n string) target { return target{name: n} }
	tests := []struct {
		path string
		want route
		code limpet.Code
	}{
		{path: "/v1/objects/CART/user-123/call/setQuantity", want: route{binding: "CART", object: named("user-123"), method: "setQuantity"}},
		{path: "/v1/objects/CART//call/m", want: route{binding: "CART", object: named(""), method: "m"}},
		{path: "/v1/objects/CART/name:/call/m", want: route{binding: "CART", object: named(""), method: "m"}},
		{path: "/v1/objects/CART/../call/m", want: route{binding: "CART", object: named(".."), method: "m"}},
		{path: "/v1/objects/CART/%2e%2E/call/m", want: route{binding: "CART", object: named(".."), method: "m"}},
		{path: "/v1/objects/CART/./call/m", want: route{binding: "CART", object: named("."), method: "m"}},
		{path: "/v1/objects/CART/a%2Fb%2f%2Fc/call/m", want: route{binding: "CART", object: named("a/b//c"), method: "m"}},
		{path: "/v1/objects/CART/a+b%20c/call/m", want: route{binding: "CART", object: named("a+b c"), method: "m"}},
		{path: "/v1/objects/CART/%E2%82%AC/call/m", want: route{binding: "CART", object: named("€"), method: "m"}},
		{path: "/v1/objects/CART/call/call/call", want: route{binding: "CART", object: named("call"), method: "call"}},
		{path: "/v1/objects/CART/id:ab/call/m", want: route{binding: "CART", object: target{name: "ab", byID: true}, method: "m"}},
		{path: "/v1/objects/CART/id%3Aab/call/m", want: route{binding: "CART", object: target{name: "ab", byID: true}, method: "m"}},
		{path: "/v1/objects/CART/name:id:ab/call/m", want: route{binding: "CART", object: named("id:ab"), method: "m"}},
		{path: "/v1/objects/CART/name:name:x/call/m", want: route{binding: "CART", object: named("name:x"), method: "m"}},
		{path: "/v1/objects//n/call/m", want: route{object: named("n"), method: "m"}},
		{path: "/v1/objects/C%2FD/n/call/m%2Fx", want: route{binding: "C/D", object: named("n"), method: "m/x"}},

		{path: "/v1/objects/CART/n/fetch", want: route{binding: "CART", object: named("n"), path: "/"}},
		{path: "/v1/objects/CART/n/fetch/", want: route{binding: "CART", object: named("n"), path: "/"}},
		{path: "/v1/objects/CART/n/fetch/a/%2F/../b//", want: route{binding: "CART", object: named("n"), path: "/a/%2F/../b//"}},
		{path: "/v1/objects/CART/n/fetch//", want: route{binding: "CART", object: named("n"), path: "//"}},

		{path: "", code: codeNotFound},
		{path: "*", code: codeNotFound},
		{path: "//v1/objects/CART/n/call/m", code: codeNotFound},
		{path: "/v1/objects", code: codeNotFound},
		{path: "/v1/objects/", code: codeNotFound},
		{path: "/v1/objects/CART", code: codeNotFound},
		{path: "/v1/objects/CART/n", code: codeNotFound},
		{path: "/v1/objects/CART/n/", code: codeNotFound},
		{path: "/v1/objects/CART/n/call", code: codeNotFound},
		{path: "/v1/objects/CART/n/call/", code: codeNotFound},
		{path: "/v1/objects/CART/n/call/m/", code: codeNotFound},
		{path: "/v1/objects/CART/n/call/m/x", code: codeNotFound},
		{path: "/v1/objects/CART/n/Call/m", code: codeNotFound},
		{path: "/v1/objects/CART/a/b/call/m", code: codeNotFound},
		{path: "/v1/objects/CART/n/call/%zz", code: limpet.CodeInvalidArgument},
		{path: "/v1/objects/%/n/call/m", code: limpet.CodeInvalidArgument},
		{path: "/v1/objects/CART/%f/call/m", code: limpet.CodeInvalidArgument},
		{path: "/v1/objects/CART/n/fetch/%", code: limpet.CodeInvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			got, err := splitPath(tt.path)
			if tt.code != "" {
				if err == nil || err.Code != tt.code || err.Delivery != limpet.DeliveryNone {
					t.Fatalf("got %+v, error %v, want %s", got, err, tt.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(route{}, target{})); d != "" {
				t.Error(d)
			}
		})
	}
}

// FuzzSplitPath: no input panics; what a client builds by escaping comes back
// as it was; a fetch's path is what stands in the request, byte for byte.
func FuzzSplitPath(f *testing.F) {
	f.Add("CART", "user-123", "m", "/v1/objects/CART/n/fetch/a//b")
	f.Add("", "", "", "")
	f.Add("C/D", "..", "%", "/v1/objects/%/../call/")
	f.Add("ü", "id:\xff", "a b", "/v1/objects/a/b/fetch/%2f")
	f.Fuzz(func(t *testing.T, binding, name, method, raw string) {
		path := "/v1/objects/" + url.PathEscape(binding) + "/name:" + url.PathEscape(name) + "/call/" + url.PathEscape(method)
		got, err := splitPath(path)
		if method == "" {
			if err == nil {
				t.Fatalf("%q: no method, got %+v", path, got)
			}
		} else if want := (route{binding: binding, object: target{name: name}, method: method}); err != nil || got != want {
			t.Fatalf("%q: got %+v, %v, want %+v", path, got, err, want)
		}
		// What net/http hands to the door comes through url.ParseRequestURI.
		if u, perr := url.ParseRequestURI(path); perr != nil || u.EscapedPath() != path {
			t.Fatalf("%q: ParseRequestURI gives %v, %v", path, u, perr)
		}
		r, err := splitPath(raw)
		if err != nil {
			return
		}
		if !strings.HasPrefix(raw, objectsPrefix) || r.method == "" && !strings.HasPrefix(r.path, "/") || r.method != "" && r.path != "" {
			t.Fatalf("%q: got %+v", raw, r)
		}
		if r.path != "" && r.path != "/" && !strings.HasSuffix(raw, "/fetch"+r.path) {
			t.Fatalf("%q: path %q was changed", raw, r.path)
		}
	})
}
