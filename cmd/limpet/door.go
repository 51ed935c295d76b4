package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	neturl "net/url"
	"sync/atomic"
)

// maxAnswer bounds the answer of a node: a result is at most 32 MiB, and as JSON
// not more than some eight times that.
const maxAnswer = 256 << 20

// unanswered is a call of which no outcome is known.
type unanswered struct {
	sent bool // something was handed to the connection, so that it may have arrived
	err  error
}

func (u *unanswered) Error() string { return u.err.Error() }
func (u *unanswered) Unwrap() error { return u.err }

// post makes one attempt of a call: the retries that are safe are the node's
// business. The error is *unanswered.
func post(ctx context.Context, url string, body []byte, key string) (*outcome, error) {
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	fail := func(err error) error {
		if u, ok := errors.AsType[*neturl.Error](err); ok {
			err = u.Err // who asked knows the address
		}
		if c := context.Cause(ctx); c != nil && !errors.Is(err, c) {
			err = fmt.Errorf("%w (%w)", c, err)
		}
		return &unanswered{sent.Load(), err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fail(err)
	}
	req.GetBody = nil // net/http must not send it twice
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "limpet")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, DisableCompression: true}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fail(err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end below, or given up
	whole, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fail(fmt.Errorf("the answer broke off: %w", err))
	}
	if len(whole) > maxAnswer {
		return nil, fail(fmt.Errorf("the answer is larger than %d bytes", maxAnswer))
	}
	return readAnswer(resp, whole, fail)
}

// readAnswer takes an answer for an outcome if it is one of a limpet door.
func readAnswer(resp *http.Response, whole []byte, fail func(error) error) (*outcome, error) {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	o := &outcome{whole: bytes.TrimSpace(whole)}
	err := json.Unmarshal(whole, o)
	var members map[string]json.RawMessage
	_ = json.Unmarshal(whole, &members) // err has told what is wrong
	_, result := members["result"]
	switch {
	case media != "application/json", err != nil, members == nil,
		resp.StatusCode == http.StatusOK && len(members) > 0 && !result,
		resp.StatusCode != http.StatusOK && (o.Error == nil || o.Error.Code == ""),
		resp.StatusCode == http.StatusOK && o.Error != nil:
		return nil, fail(fmt.Errorf("%s does not answer like a limpet node: %s, Content-Type %q", resp.Request.URL.Host, resp.Status, media))
	}
	return o, nil
}

// lost is the outcome of a call without an answer.
func lost(err error) *outcome {
	e := &callError{Name: "Error", Code: "Disconnected", Delivery: "uncertain", Retryable: true, Attempts: 1}
	e.Message = "the answer was lost: " + err.Error()
	if u, ok := errors.AsType[*unanswered](err); ok && !u.sent {
		e.Delivery = "not delivered"
		e.Message = "the node was not reached: " + err.Error()
	}
	return &outcome{Error: e}
}
