package limpettest_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// TestMetricNames compares what a node counts with the list at limpet.Metric.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "metric.go"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^//	(limpet_[a-z_]+) +(?:\{([a-z, ]+)\})?`).FindAllStringSubmatch(string(source), -1) {
		told[m[1]] = m[2]
	}
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC I7, I8
		s.net.Inject(limpettest.Refuse(limpettest.Times(1)))
		if _, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k"); err != nil {
			t.Fatal(err)
		}
		s.net.Inject(limpettest.DropRequest(limpettest.Times(1)))
		resp, err := s.shop.Fetch(request(t, "GET", "http://shop/", ""))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if n := metric(s.n, "limpet_call_retries_total", "type", "fetch", "binding", "SHOP", "method", "fetch"); n != 1 { // SPEC I1
			t.Errorf("%v retries of fetches", n)
		}
		if n := metric(s.n, "limpet_objects_live"); n != 1 {
			t.Errorf("%v objects live", n)
		}
		if !s.n.Evict(s.shop.ID()) || metric(s.n, "limpet_object_evictions_total") != 1 || metric(s.n, "limpet_objects_live") != 0 {
			t.Errorf("%v evictions, %v objects live", metric(s.n, "limpet_object_evictions_total"), metric(s.n, "limpet_objects_live"))
		}
		for _, m := range s.n.Metrics() {
			labels, ok := told[m.Name]
			if !ok {
				t.Errorf("%s is not in the list", m.Name)
			}
			var want []string
			if labels != "" {
				want = regexp.MustCompile(`[a-z]+`).FindAllString(labels, -1)
			}
			got := slices.Sorted(maps.Keys(m.Labels))
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s has labels %q, the list says %q", m.Name, got, want)
			}
		}
		seen := map[string]bool{}
		for _, m := range s.n.Metrics() {
			seen[m.Name] = true
		}
		for name := range told {
			if !seen[name] {
				t.Errorf("%s is in the list and not counted", name)
			}
		}
	})
}

// TestNodeMetrics reads those of a node without a network, in their order.
func TestNodeMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		n := limpettest.StartConfig(t, node.Config{Classes: []*limpet.Class{w.class()}})
		ns, err := limpet.NamespaceOf[*shop](n, "SHOP")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := limpet.Call1(t.Context(), ns.Named("a"), (*shop).Sell, "k"); err != nil {
			t.Fatal(err)
		}
		// No answer can be lost in this process: nothing is claimed.
		if metric(n, "limpet_object_loads_total") != 1 || metric(n, "limpet_claims_taken_total") != 0 || metric(n, "limpet_call_retries_total") != 0 {
			t.Errorf("%+v", n.Metrics())
		}
		n.Restart()
		if metric(n, "limpet_object_loads_total") != 0 {
			t.Error("objects are counted from the node's last start")
		}
	})
}
