// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

func load(t testing.TB) *Datapath {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	d, err := Load()
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%v\n%+v", err, ve)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestEveryObjectLoadsAndTheSamplerRuns(t *testing.T) {
	load(t)
}
