package limpet

// Metric is one number that limpet counts, at the moment it was read. A metrics
// library is attached by reading them when it collects: Node.Metrics.
//
// A name that ends in _total only grows, from 0 at the start of the node; any
// other is the present amount. Labels never name an object or a caller's text,
// so that their number is bounded by the classes' methods:
//
//	type      jsrpc or fetch (SPEC I1)
//	binding   the namespace
//	method    as JavaScript sees it; "fetch" for a fetch; empty for a method that
//	          the class does not have
//	outcome   how a call ended that was retried (SPEC I4): recovered,
//	          attempts_exhausted, retry_budget_exhausted, unable_to_retry,
//	          claim_rejected, canceled or other
//	marked    true if the handler is marked retryable, else false
//
//	result    of an attempt: succeeded; failed, and so did the call; retried, which
//	          is failed with another attempt decided on; canceled, by the caller or
//	          the retry timeout
//	replayable, retryable, committed
//	          true or false: the request can be sent again, the stub allows
//	          retries, the result was used before it came
//
// Those of callers:
//
//	limpet_call_attempts_total          {type, binding, method, replayable, retryable, committed, result}
//	                                    attempts that could be lost, each once (SPEC
//	                                    I5, I6); not calls within one process that
//	                                    succeed
//	limpet_call_retries_total           {type, binding, method} retries that
//	                                    started (SPEC I2)
//	limpet_call_retry_outcomes_total    {type, binding, method, outcome} calls with
//	                                    a retry, each once, when it ended (SPEC I3)
//	limpet_call_retry_seconds_total     {type, binding, method, outcome} the time
//	                                    of these calls since their first disconnect
//	limpet_replay_memory_bytes          arguments and buffered bodies kept for
//	                                    retries (SPEC I7)
//	limpet_replay_memory_limit_bytes    the most that may be kept
//	limpet_replay_memory_call_limit_bytes  the most of one call
//	limpet_replay_refused_total         calls that go without retries, since there
//	                                    was no room for their arguments (SPEC G21),
//	                                    or their body was over BufferBody
//
// Those of objects:
//
//	limpet_claims_taken_total           {marked} identities taken (SPEC I8)
//	limpet_claims_rejected_total        attempts refused as already received
//	limpet_outcomes_kept                outcomes of calls that are kept
//	limpet_outcomes_kept_bytes          their bytes in memory
//	limpet_outcomes_dropped_total       those dropped early, to make room
//	limpet_outcomes_replayed_total      attempts answered with the outcome of another
//	limpet_idempotency_keys             idempotency keys that are known
//	limpet_object_loads_total           objects loaded into memory
//	limpet_object_resets_total          objects reset
//	limpet_object_evictions_total       objects dropped from memory
//	limpet_overloads_total              calls refused because a queue was full
//	limpet_output_gate_waits_total      outputs that waited for the disk
//	limpet_objects_live                 objects in memory
//	limpet_queued_bytes                 bytes of queued calls
//	limpet_checkpoint_failing           1 while objects cannot be written to the base store
//	limpet_checkpoint_failures_total    times that it failed
//	limpet_checkpoint_objects_total     objects written to it
//	limpet_checkpoint_waiting_objects   objects of which it does not have the last commit
//	limpet_log_bytes                    bytes of the commit log
//	limpet_page_bytes                   bytes of database pages in memory
//	limpet_page_reads_total             pages read from the base store when they were needed
//	limpet_sqlite_connections           open connections to SQLite
//
// Those of other processes (node.Config.Wire), 0 if the node does not take any:
//
//	limpet_wire_capabilities            stubs, functions and streams given and taken
//	                                    that were not released
//	limpet_wire_connections             connections
//	limpet_wire_connections_refused_total  connections closed because there were
//	                                    too many
//	limpet_wire_held_bytes              what their calls hold
//	limpet_wire_held_limit_bytes        the most that they may hold
//	limpet_wire_calls_refused_total     calls for which there was no room
//	limpet_wire_results_dropped_total   results for which there was no room
type Metric struct {
	Name string
	// Labels are nil where the list has none.
	Labels map[string]string
	Value  float64
}
