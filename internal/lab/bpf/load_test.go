// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

func TestEveryObjectLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"gen": LoadGen, "check": LoadCheck, "cpu": LoadCPU, "pass": LoadPass,
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := load()
			if err != nil {
				t.Fatal(err)
			}
			c, err := ebpf.NewCollection(spec)
			var ve *ebpf.VerifierError
			if errors.As(err, &ve) {
				t.Fatalf("%+v", ve)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		})
	}
}
