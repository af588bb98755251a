// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// sampleHz is how often each core is looked at; odd, so that it does not run in
// step with the tick.
const sampleHz = 199

// sampler looks at what tasks do, by the clock of every core that is online, but for those that are spared.
type sampler struct {
	spared []int
	events []int // perf
	links  []link.Link
	on     bool
}

// Sample switches the sampling of tasks on or off. It is on after Load.
func (d *Datapath) Sample(on bool) error {
	if on == d.sample.on {
		return nil
	}
	req := uint(unix.PERF_EVENT_IOC_DISABLE)
	if on {
		req = unix.PERF_EVENT_IOC_ENABLE
	}
	for _, fd := range d.sample.events {
		if err := unix.IoctlSetInt(fd, req, 0); err != nil {
			return fmt.Errorf("switch sampling: %w", err)
		}
	}
	d.sample.on = on
	return nil
}

// Resample starts sampling anew, on the cores that are online now and are not spared: the events
// of a core die when it goes offline, and do not come back with it.
func (d *Datapath) Resample(spared ...int) error {
	was := d.sample.on
	err := d.sample.close()
	d.sample = sampler{spared: spared}
	return errors.Join(err, d.startSampling(), d.Sample(was))
}

func (d *Datapath) startSampling() error {
	for cpu := range d.cpus {
		if slices.Contains(d.sample.spared, cpu) {
			continue
		}
		attr := unix.PerfEventAttr{
			Type:   unix.PERF_TYPE_SOFTWARE,
			Config: unix.PERF_COUNT_SW_CPU_CLOCK,
			Size:   unix.PERF_ATTR_SIZE_VER5,
			Sample: sampleHz,
			Bits:   unix.PerfBitFreq,
		}
		// CAP_PERFMON is enough for the kernel, and not for those of distributions that have
		// more levels of perf_event_paranoid than it has.
		fd, err := privilege.Read(unix.CAP_SYS_ADMIN, func() (int, error) {
			return unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		})
		if errors.Is(err, unix.ENODEV) {
			continue // possible, but not online
		}
		if err != nil {
			return fmt.Errorf("open clock event of core %d: %w", cpu, err)
		}
		d.sample.events = append(d.sample.events, fd)
		l, err := link.AttachRawLink(link.RawLinkOptions{
			Target:  fd,
			Program: d.trace.OlSample,
			Attach:  ebpf.AttachPerfEvent,
		})
		if err != nil {
			return fmt.Errorf("attach sampler to core %d: %w", cpu, err)
		}
		d.sample.links = append(d.sample.links, l)
	}
	d.sample.on = true
	return nil
}

func (s *sampler) close() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	for _, fd := range s.events {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
