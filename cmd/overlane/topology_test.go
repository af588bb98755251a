// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestTopologyIsReadAsTheKernelWritesIt(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }
	got := topologyAt(fstest.MapFS{
		"node/node0/cpulist":                      file("0-1,4"),
		"node/node1/cpulist":                      file("2-3"),
		"cpu/cpu0/topology/thread_siblings_list":  file("0,2"),
		"cpu/cpu2/topology/thread_siblings_list":  file("0,2"),
		"cpu/cpu0/cache/index0/shared_cpu_list":   file("0,2"),
		"cpu/cpu0/cache/index3/shared_cpu_list":   file("0-1"),
		"cpu/cpu1/cache/index3/shared_cpu_list":   file("0-1"),
		"cpu/cpu10/topology/thread_siblings_list": file("10"),
		"cpu/cpufreq/policy":                      file(""),
	})
	if got.Node[4] != 0 || got.Node[3] != 1 || len(got.Node) != 5 {
		t.Errorf("nodes: %v", got.Node)
	}
	if !slices.Equal(got.Siblings[0], []int{2}) || !slices.Equal(got.Siblings[2], []int{0}) || got.Siblings[10] != nil {
		t.Errorf("siblings: %v", got.Siblings)
	}
	if got.Cache[0] != 0 || got.Cache[1] != 0 || len(got.Cache) != 2 {
		t.Errorf("last caches: %v", got.Cache)
	}
	if none := topologyAt(fstest.MapFS{}); len(none.Node)+len(none.Cache)+len(none.Siblings) > 0 {
		t.Errorf("of nothing: %+v", none)
	}
}

func TestCoresOfContainersAreReadFromTheKubelet(t *testing.T) {
	for text, want := range map[string][]int{
		`{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"p":{"a":"1-2"},"q":{"b":"9","c":"2"}},"checksum":1}`: {1, 2, 9},
		`{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`:                                                 nil,
	} {
		got, err := exclusiveCores(fstest.MapFS{cpuManagerState: {Data: []byte(text)}})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if got, err := exclusiveCores(fstest.MapFS{}); got != nil || err != nil {
		t.Errorf("without a kubelet: %v, %v", got, err)
	}
	if _, err := exclusiveCores(fstest.MapFS{cpuManagerState: {Data: []byte(`{"entries":{"p":{"a":"x"}}}`)}}); err == nil {
		t.Error("a broken text is no error")
	}
}
