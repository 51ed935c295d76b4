package gateway

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// call answers POST …/call/{method}.
func (d *door) call(a *answer, b *limpet.Binding, route route) {
	if a.r.Method != http.MethodPost {
		d.methodNotAllowed(a, b, http.MethodPost)
		return
	}
	if err := checkCallRequest(a.r); err != nil {
		d.fail(a, b, err)
		return
	}
	stub, err := d.stub(b, route.object)
	if err != nil {
		d.fail(a, b, notSent(err))
		return
	}
	body, release, refused := d.readBody(a.w, a.r)
	defer release()
	if refused != nil {
		d.fail(a, b, refused)
		return
	}
	args, err := arguments(body)
	if err != nil {
		d.fail(a, b, notSent(err))
		return
	}
	out, err := stub.InvokeParcel(a.context(a.r.Context()), route.method, limpet.Parcel{Bytes: args})
	if err != nil {
		d.fail(a, b, err)
		return
	}
	defer out.Release() // a stub or stream can't pass this door
	if len(out.Bytes) == 0 {
		a.raw(http.StatusOK, []byte("{}\n"))
		return
	}
	text, err := value.ToJSON(out.Bytes)
	if err != nil {
		code := limpet.CodeInternal
		if errors.Is(err, value.ErrCapability) {
			code = limpet.CodeNotSupported
		}
		d.fail(a, b, limpet.Errorf(code, "result of %s as JSON: %w", route.method, err).With(func(e *limpet.Error) {
			e.Delivery, e.ObjectID = limpet.DeliveryReceived, stub.ID().String()
		}))
		return
	}
	answer := make([]byte, 0, len(text)+len(`{"result":}`)+1)
	answer = append(answer, `{"result":`...)
	answer = append(answer, text...)
	a.raw(http.StatusOK, append(answer, "}\n"...))
}

// checkCallRequest refuses what a call does not understand.
func checkCallRequest(r *http.Request) *limpet.Error {
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		return refusal(limpet.CodeInvalidArgument, "a call takes no query parameters, got ?%.200s", r.URL.RawQuery)
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return refusal(codeUnsupportedMediaType, "Content-Encoding %.64q: send the body as it is", e)
	}
	ct := r.Header.Get("Content-Type")
	if ct == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(ct)
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return refusal(codeUnsupportedMediaType, "Content-Type %.100q: the arguments of a call are application/json (curl --json '[…]' sends it)", ct)
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return refusal(codeUnsupportedMediaType, "charset %.64q: JSON is UTF-8", cs)
	}
	return nil
}

// arguments reads a call's body.
func arguments(body []byte) (limpet.Encoded, error) {
	body = bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(body) == 0:
		body = []byte("[]")
	case !utf8.Valid(body):
		return nil, refusal(limpet.CodeInvalidArgument, "the body is not valid UTF-8")
	case body[0] != '[':
		return nil, refusal(limpet.CodeInvalidArgument, "the body must be a JSON array of the arguments, such as [\"item-1\", 3], but it begins with %.20q", body)
	}
	args, err := value.FromJSON(body)
	if err != nil {
		return nil, refusal(codeOfValue(err), "the body: %w", err)
	}
	return args, nil
}

// fields is an error's own fields as JSON, or nil.
func (d *door) fields(b *limpet.Binding, e *limpet.Error) []byte {
	if b == nil || len(e.Fields) == 0 {
		return nil
	}
	enc, err := b.Codec.Marshal(e.Fields)
	if err != nil {
		return nil // they can't be told; the error itself is not lost for that
	}
	text, err := value.ToJSON(enc)
	if err != nil {
		return nil
	}
	return text
}

// notSent marks an error that came up before a call was made.
func notSent(err error) error {
	e := asError(err).Clone()
	e.Delivery = limpet.DeliveryNone
	return e
}

// codeOfValue is the code for an error of package value.
func codeOfValue(err error) limpet.Code {
	if errors.Is(err, value.ErrTooLarge) {
		return limpet.CodeTooLarge
	}
	return limpet.CodeInvalidArgument
}
