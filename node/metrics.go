package node

import (
	"cmp"
	"maps"
	"slices"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/wire"
)

// Metrics reads the node's counters, which limpet.Metric lists, sorted by name
// and labels. It is safe for concurrent use, also after Close.
func (n *Node) Metrics() []limpet.Metric {
	s := n.host.Stats()
	st := n.store.Stats()
	failing := 0.0
	if st.CheckpointError != "" {
		failing = 1
	}
	out := append(n.calls.Metrics(n.engine),
		limpet.Metric{Name: "limpet_claims_taken_total", Labels: map[string]string{"marked": "false"}, Value: float64(s.ClaimsTaken - s.ClaimsTakenMarked)},
		limpet.Metric{Name: "limpet_claims_taken_total", Labels: map[string]string{"marked": "true"}, Value: float64(s.ClaimsTakenMarked)},
		limpet.Metric{Name: "limpet_claims_rejected_total", Value: float64(s.ClaimsRejected)},
		limpet.Metric{Name: "limpet_outcomes_kept", Value: float64(s.OutcomesKept)},
		limpet.Metric{Name: "limpet_outcomes_kept_bytes", Value: float64(s.OutcomeBytes)},
		limpet.Metric{Name: "limpet_outcomes_dropped_total", Value: float64(s.OutcomesDropped)},
		limpet.Metric{Name: "limpet_outcomes_replayed_total", Value: float64(s.OutcomesReplayed)},
		limpet.Metric{Name: "limpet_idempotency_keys", Value: float64(s.Keys)},
		limpet.Metric{Name: "limpet_object_loads_total", Value: float64(s.Loads)},
		limpet.Metric{Name: "limpet_object_resets_total", Value: float64(s.Resets)},
		limpet.Metric{Name: "limpet_object_evictions_total", Value: float64(s.Evictions)},
		limpet.Metric{Name: "limpet_overloads_total", Value: float64(s.Overloads)},
		limpet.Metric{Name: "limpet_output_gate_waits_total", Value: float64(s.GateWaits)},
		limpet.Metric{Name: "limpet_objects_live", Value: float64(s.Live)},
		limpet.Metric{Name: "limpet_queued_bytes", Value: float64(s.QueuedBytes)},
		limpet.Metric{Name: "limpet_checkpoint_failing", Value: failing},
		limpet.Metric{Name: "limpet_checkpoint_failures_total", Value: float64(st.CheckpointFailures)},
		limpet.Metric{Name: "limpet_checkpoint_objects_total", Value: float64(st.Checkpointed)},
		limpet.Metric{Name: "limpet_checkpoint_waiting_objects", Value: float64(st.Waiting)},
		limpet.Metric{Name: "limpet_log_bytes", Value: float64(st.LogSize)},
		limpet.Metric{Name: "limpet_page_bytes", Value: float64(st.PageBytes)},
		limpet.Metric{Name: "limpet_page_reads_total", Value: float64(st.PageReads)},
		limpet.Metric{Name: "limpet_sqlite_connections", Value: float64(st.Connections)},
	)
	var w wire.Stats // zero without a listener
	var capabilities int64
	if n.wire != nil {
		w, capabilities = n.wire.server.Stats(), n.wire.server.Capabilities()
	}
	out = append(out,
		limpet.Metric{Name: "limpet_wire_capabilities", Value: float64(capabilities)},
		limpet.Metric{Name: "limpet_wire_connections", Value: float64(w.Conns)},
		limpet.Metric{Name: "limpet_wire_connections_refused_total", Value: float64(w.ConnsRefused)},
		limpet.Metric{Name: "limpet_wire_held_bytes", Value: float64(w.HeldBytes)},
		limpet.Metric{Name: "limpet_wire_held_limit_bytes", Value: float64(w.HeldLimit)},
		limpet.Metric{Name: "limpet_wire_calls_refused_total", Value: float64(w.CallsRefused)},
		limpet.Metric{Name: "limpet_wire_results_dropped_total", Value: float64(w.ResultsDropped)},
	)
	slices.SortFunc(out, func(a, b limpet.Metric) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(flat(a.Labels), flat(b.Labels)))
	})
	return out
}

// flat is a set of labels as something that can be compared.
func flat(labels map[string]string) (out []string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k, labels[k])
	}
	return out
}
