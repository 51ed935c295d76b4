package gateway

import (
	"net/url"
	"strings"

	"github.com/limpet-dev/limpet"
)

const objectsPrefix = "/v1/objects/"

// paths is what there is, for people who ask for something else.
var paths = [...]string{
	"POST " + objectsPrefix + "{BINDING}/{name}/call/{method}",
	"ANY " + objectsPrefix + "{BINDING}/{name}/fetch/{path}",
	"GET " + objectsPrefix + "{BINDING}/{name}/outcome/{identity}",
}

// route is a path of the door, taken apart. Only path is still escaped.
type route struct {
	binding string
	object  target
	method  string // of a call; empty for a fetch
	asks    bool   // for the outcome of the call that identity names
	ident   string
	path    string // what the object of a fetch sees, from the first slash on
}

// target is an object as a path addresses it: by name, or by the digits of its
// ID, which are not checked yet.
type target struct {
	name string
	byID bool // name holds the digits
}

// splitPath takes an escaped path (url.URL.EscapedPath) apart. It cleans
// nothing. The error is codeNotFound, or CodeInvalidArgument for a segment that
// can't be unescaped.
func splitPath(escaped string) (route, *limpet.Error) {
	rest, ok := strings.CutPrefix(escaped, objectsPrefix)
	if !ok {
		return route{}, notFound(escaped)
	}
	// BINDING / name / verb [/ rest]
	part := strings.SplitN(rest, "/", 4)
	if len(part) < 3 {
		return route{}, notFound(escaped)
	}
	var r route
	var err error
	if r.binding, err = url.PathUnescape(part[0]); err != nil {
		return route{}, badEscape("binding", err)
	}
	name, err := url.PathUnescape(part[1])
	if err != nil {
		return route{}, badEscape("name", err)
	}
	r.object = targetOf(name)
	switch part[2] {
	case "call":
		if len(part) < 4 || part[3] == "" || strings.Contains(part[3], "/") {
			return route{}, notFound(escaped)
		}
		if r.method, err = url.PathUnescape(part[3]); err != nil {
			return route{}, badEscape("method", err)
		}
	case "outcome":
		if len(part) < 4 || part[3] == "" || strings.Contains(part[3], "/") {
			return route{}, notFound(escaped)
		}
		r.asks = true
		if r.ident, err = url.PathUnescape(part[3]); err != nil {
			return route{}, badEscape("identity", err)
		}
	case "fetch":
		r.path = "/"
		if len(part) == 4 {
			r.path += part[3]
		}
		if _, err := url.PathUnescape(r.path); err != nil {
			return route{}, badEscape("path", err)
		}
	default:
		return route{}, notFound(escaped)
	}
	return r, nil
}

func targetOf(segment string) target {
	if digits, ok := strings.CutPrefix(segment, "id:"); ok {
		return target{name: digits, byID: true}
	}
	return target{name: strings.TrimPrefix(segment, "name:")}
}

func notFound(escaped string) *limpet.Error {
	return refusal(codeNotFound, "there is nothing at %.200q: the paths are %s", escaped, strings.Join(paths[:], " and "))
}

func badEscape(what string, err error) *limpet.Error {
	return refusal(limpet.CodeInvalidArgument, "the %s in the path is not percent-encoded: %w", what, err)
}
