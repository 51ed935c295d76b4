package gateway

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// outcomeBody is the answer to a question for an outcome.
type outcomeBody struct {
	Outcome  string          `json:"outcome"`
	Result   json.RawMessage `json:"result,omitempty"`
	Response *responseBody   `json:"response,omitempty"`
	Error    *errorBody      `json:"error,omitempty"`
}

// responseBody is the response of a fetch that was kept.
type responseBody struct {
	Status int             `json:"status"`
	Header http.Header     `json:"header"`
	Body   json.RawMessage `json:"body"` // $bytes
}

// outcome answers GET …/outcome/{identity}.
func (d *door) outcome(a *answer, b *limpet.Binding, route route) {
	if a.r.Method != http.MethodGet {
		d.methodNotAllowed(a, b, http.MethodGet)
		return
	}
	if err := d.guard.checkAsking(a.r); err != nil {
		d.fail(a, b, err)
		return
	}
	if a.key != "" {
		d.fail(a, b, refusal(limpet.CodeInvalidArgument, "a question for an outcome takes no Idempotency-Key: put key:{key} into the path"))
		return
	}
	stub, err := d.stub(b, route.object)
	if err != nil {
		d.fail(a, b, notSent(err))
		return
	}
	o, err := limpet.Outcome(a.r.Context(), stub, route.ident)
	if err != nil {
		d.fail(a, b, err)
		return
	}
	body := outcomeBody{Outcome: o.Kind.String()}
	switch {
	case o.Err != nil:
		told := bodyOf(o.Err, a.requestID, d.fields(b, o.Err))
		body.Error = &told
	case o.Response != nil:
		body.Response, err = responseOf(o.Response)
	case o.Value != nil:
		body.Result, err = value.ToJSON(o.Value)
	}
	if err != nil {
		d.fail(a, b, limpet.Errorf(limpet.CodeInternal, "the outcome as JSON: %w", err))
		return
	}
	a.json(http.StatusOK, body)
}

func responseOf(resp *http.Response) (*responseBody, error) {
	body, err := io.ReadAll(resp.Body) // of memory
	if err != nil {
		return nil, err
	}
	enc, err := value.Marshal(body)
	if err != nil {
		return nil, err
	}
	text, err := value.ToJSON(enc)
	return &responseBody{Status: resp.StatusCode, Header: resp.Header, Body: text}, err
}
