// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
)

// bytesOfMaps is what those maps of the objects take that are not known yet, on a machine that may have so
// many CPUs: by their declaration, to which the kernel adds little.
func bytesOfMaps(t *testing.T, cpus int, known map[string]bool, objects ...func() (*ebpf.CollectionSpec, error)) (bytes int) {
	t.Helper()
	for _, load := range objects {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		if err := (&Datapath{cpus: cpus}).prepare(spec); err != nil {
			t.Fatal(err)
		}
		for name, m := range spec.Maps {
			if known[name] {
				continue
			}
			known[name] = true
			size := int(m.ValueSize+7) / 8 * 8 * int(m.MaxEntries)
			if m.Type == ebpf.PerCPUArray {
				size *= cpus
			}
			bytes += size
		}
	}
	return bytes
}

// The kernel charges maps to the service. Beyond the limit of its unit they cannot be made, or the daemon is
// killed.
func TestTheUnitAllowsForTheMapsAndThePageSaysWhatTheyTake(t *testing.T) {
	const mb = 1_000_000
	need := func(cpus int) (without, with int) {
		known := map[string]bool{}
		without = bytesOfMaps(t, cpus, known, loadStages, loadTrace, loadBranches, loadUnderlay, loadMerge, loadAggregate, loadCensus, loadClock)
		return without, without + bytesOfMaps(t, cpus, known, loadPriority, loadSync)
	}
	read := func(path, pattern string, least int) [][][]byte {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindAllSubmatch(data, -1)
		if len(found) < least {
			t.Fatalf("%s has %d times %s, want %d or more", path, len(found), pattern, least)
		}
		return found
	}
	number := func(b []byte) int {
		n, err := strconv.Atoi(string(b))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}

	for _, row := range read("../../docs/install.md", `(?m)^\| (\d+)[^|]*\| (\d+) \| (\d+) \|$`, 4) {
		cpus := number(row[1])
		without, with := need(cpus)
		for i, want := range []int{without, with} {
			if said := number(row[2+i]); said != (want+mb/2)/mb {
				t.Errorf("docs/install.md says %d MB for %d CPUs in column %d, and the maps take %d bytes", said, cpus, 2+i, want)
			}
		}
	}

	_, maps := need(MaxCPUs)
	// Each lane has a queue of 96 bytes on each core (struct xdp_bulk_queue), and a core may have two lanes.
	lanes := 2 * MaxCPUs * MaxCPUs * 96
	const daemon = 100 * mb // 30 with 200 pods
	allowed := number(read("../../deploy/overlane.service", `(?m)^MemoryMax=(\d+)M$`, 1)[0][1]) << 20
	if allowed < maps+lanes+daemon {
		t.Errorf("the unit allows %d bytes; with %d CPUs maps take %d, lanes %d and the daemon up to %d", allowed, MaxCPUs, maps, lanes, daemon)
	}
}
