package gateway

// StatusOf is statusOf, for the table in docs/HTTP.md.
var StatusOf = statusOf
