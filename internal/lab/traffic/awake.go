// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
)

// dmaLatency keeps each core of the machine from idle states that take longer to leave than what
// is written to it, in us, as long as it is held open (Documentation/power/pm_qos_interface.rst).
const dmaLatency = "/dev/cpu_dma_latency"

// StayAwake keeps the machine's cores from halting until done is called, or this process ends. What
// is saved on the path of a packet lets a core halt more often, and under a hypervisor
// leaving that takes longer than the path does.
func StayAwake() (done func() error, err error) {
	f, err := os.OpenFile(dmaLatency, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("keep cores awake: %w", err)
	}
	if _, err := f.Write(make([]byte, 4)); err != nil {
		return nil, errors.Join(fmt.Errorf("keep cores awake: write to %s: %w", dmaLatency, err), f.Close())
	}
	return f.Close, nil
}
