// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Hooks reads what is attached to the tcx hooks of all devices of a namespace, by a program that does so in
// the kernel. Watchers may share one, which has to outlive them.
type Hooks struct{ objs hooksObjects }

// LoadHooks loads the program. It needs CAP_BPF and CAP_PERFMON.
func LoadHooks() (*Hooks, error) {
	var h Hooks
	if err := loadHooksObjects(&h.objs, nil); err != nil {
		return nil, fmt.Errorf("load the program that reads tcx hooks: %w", err)
	}
	return &h, nil
}

// Close unloads it.
func (h *Hooks) Close() error { return h.objs.Close() }

// digest is of the namespace that the calling thread is in. It is the same as long as the
// same programs are attached to the same devices in the same order.
func (h *Hooks) digest() (uint64, error) {
	var out hooksOlAttached
	whole, err := h.objs.OlHooks.Run(&ebpf.RunOptions{Context: out, ContextOut: &out})
	if err == nil && whole == 0 {
		err = errors.New("devices came and went meanwhile")
	}
	if err != nil {
		return 0, fmt.Errorf("read tcx hooks: %w", err)
	}
	return out.Digest, nil
}
