// Package gateway is the HTTP door: it turns HTTP requests into calls of
// objects, and knows nothing of where the objects are.
//
//	POST /v1/objects/{BINDING}/{name}/call/{method}    [arg, …]  ->  {"result": …} | {"error": {…}}
//	ANY  /v1/objects/{BINDING}/{name}/fetch/{path…}              ->  what the object's fetch answers
//	GET  /v1/objects/{BINDING}/{name}/outcome/{identity}         ->  {"outcome": …}: what became of a call
//	GET  /                                                       ->  these paths
//
// # Addressing
//
// The door splits the escaped path itself and cleans nothing. Each of BINDING,
// name and method is one segment of percent-encoded UTF-8, so that a slash in a
// name is %2F, and "", "." and ".." are names like any other:
//
//	{name}       an object by name; the segment may be empty
//	name:{name}  the same; for the empty name, for "." and ".." (which clients
//	             like to clean away) and for names that begin with id: or name:
//	id:{hex}     an object by the 64 hex digits of its ID
//
// # Calls
//
// The body is a JSON array of the arguments; an empty body means none. Values
// that JSON can't hold are written as internal/value says ($date, $bytes, …).
// Content-Type is JSON or absent. Query parameters are refused: what is not
// understood must not be ignored. A method without a result gives {}.
//
// The header Idempotency-Key, of calls and of fetches, is limpet's idempotency key
// (limpet.WithIdempotencyKey). A call with one goes on when its client leaves.
//
// # Outcomes
//
// {identity} is the identity of an error, or key:{key}. The answer is
//
//	{"outcome": "not received" | "running" | "result" | "error" | "received, not kept",
//	 "result": …, "error": {…}, "response": {"status": 200, "header": {…}, "body": {"$bytes": …}}}
//
// with the member that belongs to it; response is that of a fetch.
//
// # Fetches
//
// The object sees the request's method, headers and body, with the URL
// http(s)://{Host}/{path…}?{query}: what follows /fetch, as it was escaped, or /.
// Hop-by-hop headers, Expect, Forwarded and X-Forwarded-* are dropped. The
// response is passed on as it comes, chunk by chunk, trailers included; redirects
// are not followed and their Location is not changed. A body that breaks off
// breaks the connection off. WebSocket upgrades are refused.
//
// # Errors
//
// Every answer that the door makes itself is JSON, carries X-Request-Id and, if
// it is an error, the header Limpet-Error with the code, which tells it from an
// answer of the object's own fetch (such headers of an object are dropped).
//
//	{"error": {"name": "Error", "message": "…", "code": "Overloaded",
//	           "delivery": "not delivered" | "uncertain" | "received",
//	           "retryable": false, "overloaded": true, "remote": false,
//	           "reset": false, "attempts": 1, "identity": "", "requestId": "…",
//	           "objectId": "…", "fields": {…}, "noRetry": "…"}}  the last three may lack
//
//	400  InvalidArgument: argument, name, ID, JSON, query
//	403  Forbidden: cross-origin, or a foreign Host on a loopback address
//	404  UnknownNamespace, UnknownMethod, NoSuchObject, NotFound (the path)
//	405  MethodNotAllowed, with Allow
//	408  BodyTimeout: the client stopped sending
//	409  AlreadyReceived, IdentityReused
//	410  OutcomeUnknown: nobody can tell any more what became of the call
//	413  TooLarge
//	415  UnsupportedMediaType
//	429  Overloaded, with Retry-After
//	500  the method's own error, whatever its code, or a result that can't be
//	     carried; Reset; Internal
//	501  NotSupported: WebSocket upgrades, stubs and streams in a result, …
//	502  the call was uncertain, or received and its outcome was lost
//	503  not delivered: the connection to the object, Draining
//	504  the deadline of the request's context
//	507  StorageFull: nothing was changed
//
// An answer of 5xx is logged with its request ID; that of an internal failure
// says nothing but the reference.
//
// # In front
//
// http.CrossOriginProtection refuses what another web site's page sends. On a
// connection to a loopback address the Host must be a loopback one too, or be
// listed in Config.Hosts, so that a page whose name was rebound to 127.0.0.1
// gets nowhere.
package gateway
