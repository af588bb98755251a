// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// A struct of counters is read by its fields' places: each has the name that the kernel side's enum has in its place.
func TestCountersAreThoseOfTheKernelSide(t *testing.T) {
	for _, tc := range []struct {
		read           func() (*ebpf.CollectionSpec, error)
		counters, enum string
		prefix         string
		is             reflect.Type
	}{
		{loadStages, "ol_counters", "ol_counter", "OL_CNT_", reflect.TypeFor[Counters]()},
		{loadMerge, "ol_merge_counters", "ol_merge_counter", "OL_MERGE_", reflect.TypeFor[MergeCounters]()},
	} {
		spec, err := tc.read()
		if err != nil {
			t.Fatal(err)
		}
		var enum *btf.Enum
		if err := spec.Types.TypeByName(tc.enum, &enum); err != nil {
			t.Fatal(err)
		}
		n := int(spec.Maps[tc.counters].MaxEntries)
		if len(enum.Values) != n+1 {
			t.Errorf("%s has %d entries, the enum %d values, and one that is their number", tc.counters, n, len(enum.Values))
		}
		for i, v := range enum.Values[:n] {
			name := strings.ReplaceAll(strings.TrimPrefix(v.Name, tc.prefix), "_", "")
			if got := tc.is.Field(i); v.Value != uint64(i) || !strings.EqualFold(got.Name, name) {
				t.Errorf("%s is %d in the enum; in that place %v has %s", v.Name, v.Value, tc.is, got.Name)
			}
		}
	}
}

func TestCountersAreAddedFieldByField(t *testing.T) {
	a := PriorityCounters{Latency: 1, Refused: 2}.Add(PriorityCounters{Latency: 10, BulkLane: 4})
	if want := (PriorityCounters{Latency: 11, BulkLane: 4, Refused: 2}); a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
}
