package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/limpet-dev/limpet"
)

const defaultServer = "http://127.0.0.1:8787"

func newCall() *cobra.Command {
	var server, key string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "call BINDING/NAME METHOD [ARG…]",
		Short: "Call a method of an object",
		Long: `Call a method of an object and print its result as JSON, or nothing if it has
none.

NAME is everything behind the first slash and may contain slashes; id:HEX is an
object by its ID, name:NAME one by its name, for names that begin like that.
Each ARG is JSON; what is no JSON is a string, so that item-1 and "item-1" are
the same. Put -- in front of arguments that begin with -.

A call with --idempotency-key can be sent again after any failure: it runs once,
and each time gives the first outcome.`,
		Example: `  limpet call CART/user-123 setQuantity item-1 3
  limpet call CART/user-123 quantity item-1
  limpet call COUNTER/a add -- -5`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("call needs BINDING/NAME and METHOD, got %d words. Try limpet call --help", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			u, err := callURL(server, args[0], args[1])
			if err != nil {
				return err
			}
			body, err := callBody(args[2:])
			if err != nil {
				return err
			}
			if timeout < 0 {
				return usage("--timeout must not be negative, got %v", timeout)
			}
			ctx := c.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v (--timeout)", timeout))
				defer cancel()
			}
			if c.Flags().Changed("idempotency-key") {
				if err := limpet.CheckIdempotencyKey(key); err != nil || strings.TrimSpace(key) != key || strings.ContainsFunc(key, unicode.IsControl) {
					return usage("--idempotency-key %.100q: must be 1 to %d bytes of UTF-8, without control characters and without blanks at its ends", key, limpet.MaxIdempotencyKeyBytes)
				}
			}
			out, err := post(ctx, u, body, key)
			if err != nil {
				out = lost(err)
			}
			return show(c, out)
		},
	}
	c.Flags().StringVar(&server, "server", cmp.Or(os.Getenv("LIMPET_SERVER"), defaultServer), "`URL` of the node's HTTP door; environment: LIMPET_SERVER")
	c.Flags().DurationVar(&timeout, "timeout", 0, "give up after this long, such as 5s; 0 waits for ever")
	c.Flags().StringVar(&key, "idempotency-key", "", "`KEY` of this call, such as an order's number: with the same one it runs once, however often it is sent within 24 h")
	return c
}

// callURL is where a call of method on BINDING/NAME goes.
func callURL(server, object, method string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", usage("--server %q: must be like %s", server, defaultServer)
	}
	binding, name, ok := strings.Cut(object, "/")
	if !ok || binding == "" {
		return "", usage("%q: must be BINDING/NAME, such as CART/user-123", object)
	}
	if method == "" {
		return "", usage("METHOD is empty")
	}
	switch name {
	case "", ".", "..": // proxies clean such segments away
		name = "name:" + name
	}
	return strings.TrimSuffix(u.String(), "/") + "/v1/objects/" + url.PathEscape(binding) + "/" + url.PathEscape(name) + "/call/" + url.PathEscape(method), nil
}

// callBody makes the JSON array of the arguments.
func callBody(words []string) ([]byte, error) {
	args := make([]json.RawMessage, len(words))
	for i, w := range words {
		if !utf8.ValidString(w) {
			return nil, usage("argument %d: %q is not valid UTF-8", i+1, w)
		}
		if json.Valid([]byte(w)) {
			args[i] = json.RawMessage(w)
			continue
		}
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(w); err != nil {
			return nil, usage("argument %d: %v", i+1, err)
		}
		args[i] = json.RawMessage(b.String())
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, usage("arguments: %v", err)
	}
	return b, nil
}

// outcome is what came of a call.
type outcome struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *callError      `json:"error,omitempty"`

	whole []byte // the node's answer as it came; nil if there was none
}

// callError is the door's error object; the door's package comment describes it.
type callError struct {
	Name       string          `json:"name"`
	Message    string          `json:"message"`
	Code       string          `json:"code"`
	Delivery   string          `json:"delivery"`
	Retryable  bool            `json:"retryable"`
	Overloaded bool            `json:"overloaded"`
	Remote     bool            `json:"remote"`
	Reset      bool            `json:"reset"`
	Attempts   int             `json:"attempts"`
	Identity   string          `json:"identity"`
	RequestID  string          `json:"requestId"`
	ObjectID   string          `json:"objectId,omitempty"`
	Fields     json.RawMessage `json:"fields,omitempty"`
}

// show prints an outcome and turns it into the exit code.
func show(c *cobra.Command, o *outcome) error {
	stdout := c.OutOrStdout()
	code := 0
	switch {
	case o.Error != nil && o.whole == nil:
		code = exitLost
	case o.Error != nil:
		code = exitAnswered
	}
	var err error
	switch {
	case wantsJSON(c):
		whole := o.whole
		if whole == nil {
			if whole, err = json.Marshal(o); err != nil {
				return err
			}
		}
		err = writeLine(stdout, whole)
	case o.Error != nil:
		return &failure{code: code, text: o.Error.text()}
	case len(o.Result) > 0:
		err = writeLine(stdout, o.Result)
	}
	if err != nil {
		return &failure{code: exitLost, text: fmt.Sprintf("writing the answer: %v (the call itself has ended)", err)}
	}
	if code != 0 {
		return &failure{code: code}
	}
	return nil
}

func writeLine(w io.Writer, b []byte) error {
	_, err := w.Write(append(b[:len(b):len(b)], '\n'))
	return err
}

// text is the error for people: the message, then what is known.
func (e *callError) text() string {
	var b strings.Builder
	if e.Name != "" && e.Name != "Error" {
		b.WriteString(harmless(e.Name) + ": ")
	}
	b.WriteString(harmless(e.Message))
	known := []string{"code " + e.Code, "delivery: " + e.Delivery + meaning[e.Delivery]}
	for _, f := range []struct {
		on   bool
		name string
	}{{e.Retryable, "retryable"}, {e.Overloaded, "overloaded"}, {e.Remote, "remote"}, {e.Reset, "reset"}} {
		if f.on {
			known = append(known, f.name)
		}
	}
	if e.Attempts > 0 {
		known = append(known, fmt.Sprintf("attempts: %d", e.Attempts))
	}
	for _, f := range [][2]string{{"identity", e.Identity}, {"object", e.ObjectID}, {"request", e.RequestID}, {"fields", string(e.Fields)}} {
		if f[1] != "" {
			known = append(known, f[0]+": "+f[1])
		}
	}
	for _, k := range known {
		b.WriteString("\n  " + harmless(k))
	}
	return b.String()
}

// harmless is a text of the node, or of whoever it has it from, for a terminal:
// control characters are told, not done, and further lines are indented so that
// they can't be taken for what this program says.
func harmless(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString("\n      ")
		case r != '\t' && unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

var meaning = map[string]string{
	"not delivered": " (the method did not run)",
	"uncertain":     " (the method may have run, or may still run)",
	"received":      " (the object took the call)",
}
