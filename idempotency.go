package limpet

import (
	"context"
	"strings"
	"unicode/utf8"
)

// MaxIdempotencyKeyBytes is the longest idempotency key.
const MaxIdempotencyKeyBytes = 256

type idempotencyContextKey struct{}

// WithIdempotencyKey returns a context with which one call is made under a key of
// the caller's choice, 1 to 256 bytes of valid UTF-8, such as an order's number:
//
//	ctx = limpet.WithIdempotencyKey(ctx, "order-17")
//	receipt, err := limpet.Call1(ctx, account, (*Account).Charge, 500)
//
// Of all calls of one object under one key, by whatever processes and however
// often, within 24 h (node.Config.KeyRetention), one runs. The others get its
// result or error, wait for it if it runs still, or fail with CodeAlreadyReceived
// if it was not kept: it had more than 64 KiB, or stubs or streams, or the run was
// cut short by a crash, or there was no room (node.Config.OutcomeMemory). A handler
// marked retryable runs again in that last case. The key belongs to the method and
// the arguments that it was first used with; for others the call fails with
// CodeIdentityReused. For a fetch they are method, URL without host, Content-Type
// and body; the body may have 1 MiB (MaxKeyedBody), more is CodeTooLarge. Each
// redirect that is followed has a key of its own, made from this one.
//
// The claim of the key is durable before the handler starts, and the outcome
// before the reply leaves: two waits for the disk. After 24 h a key is as good as
// new. The end of a connection does not end the context of the run, the caller's
// own cancellation does.
//
// What a handler calls with its own context does not have its caller's key. A key
// that is not valid makes the call fail with CodeInvalidArgument; the empty one
// takes a key away that ctx has.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyContextKey{}, key)
}

// IdempotencyContextKey is the key under which a context holds its idempotency
// key, for contexts that answer it themselves. For limpet's own packages.
func IdempotencyContextKey() any { return idempotencyContextKey{} }

// idempotencyKey is the key of a context, or empty.
func idempotencyKey(ctx context.Context) (string, error) {
	key, _ := ctx.Value(idempotencyContextKey{}).(string)
	if key == "" {
		return "", nil
	}
	return key, CheckIdempotencyKey(key)
}

// CheckIdempotencyKey refuses what is no idempotency key with CodeInvalidArgument.
func CheckIdempotencyKey(key string) error {
	switch {
	case key == "":
		return invalid("TypeError", "the idempotency key is empty: it must have 1 to %d bytes", MaxIdempotencyKeyBytes)
	case len(key) > MaxIdempotencyKeyBytes:
		return invalid("RangeError", "the idempotency key has %d bytes: it must have 1 to %d", len(key), MaxIdempotencyKeyBytes)
	case !utf8.ValidString(key):
		return invalid("TypeError", "the idempotency key %.100q is not valid UTF-8", key)
	}
	return nil
}

const keyPrefix = "key:"

// KeyIdentity is what stands for an idempotency key where an identity is asked
// for or told, in Outcome and Error.Identity: "key:" and the key.
func KeyIdentity(key string) string { return keyPrefix + key }

// cutKey is the reverse of KeyIdentity.
func cutKey(identity string) (key string, ok bool) { return strings.CutPrefix(identity, keyPrefix) }
