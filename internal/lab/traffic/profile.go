// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bpf"
)

// profileHz is how often each core is looked at; odd, so that it does not run in step with the
// tick.
const profileHz = 3989

// Profile looks at what the kernel does on every core, by the clock.
type Profile struct {
	objs   bpf.ProfileObjects
	events []int // perf
	links  []link.Link
}

// Look is how long the kernel was seen with a stack, on a core.
type Look struct {
	Core  int
	Stack []string // functions, the innermost first
	Spent time.Duration
}

// StartProfile begins to look.
func StartProfile() (*Profile, error) {
	p := &Profile{}
	if err := bpf.LoadProfileObjects(&p.objs, nil); err != nil {
		return nil, fmt.Errorf("load profiler: %w", err)
	}
	for cpu := range runtime.NumCPU() {
		if err := p.watch(cpu); err != nil {
			return nil, errors.Join(fmt.Errorf("profile core %d: %w", cpu, err), p.Close())
		}
	}
	return p, nil
}

func (p *Profile) watch(cpu int) error {
	fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size: unix.PERF_ATTR_SIZE_VER5, Sample: profileHz, Bits: unix.PerfBitFreq,
	}, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return err
	}
	p.events = append(p.events, fd)
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: fd, Program: p.objs.Profile, Attach: ebpf.AttachPerfEvent})
	if err != nil {
		return err
	}
	p.links = append(p.links, l)
	return nil
}

// End stops looking, and returns what was seen.
func (p *Profile) End() ([]Look, error) {
	for _, fd := range p.events {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("stop profiler: %w", err), p.Close())
		}
	}
	looks, err := p.read()
	return looks, errors.Join(err, p.Close())
}

func (p *Profile) read() ([]Look, error) {
	names, err := kernelSymbols()
	if err != nil {
		return nil, err
	}
	var looks []Look
	var at bpf.ProfilePlace
	var n uint64
	it := p.objs.Seen.Iterate()
	for it.Next(&at, &n) {
		var addrs [64]uint64
		if err := p.objs.Stacks.Lookup(at.Stack, &addrs); err != nil {
			return nil, fmt.Errorf("read stack: %w", err)
		}
		l := Look{Core: int(at.Core), Spent: spent(n)}
		for _, a := range addrs {
			if a == 0 {
				break
			}
			l.Stack = append(l.Stack, names.of(a))
		}
		looks = append(looks, l)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	var missed uint64
	if err := p.objs.Missed.Get(&missed); err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if missed > 0 {
		looks = append(looks, Look{Spent: spent(missed)})
	}
	return looks, nil
}

func spent(looks uint64) time.Duration {
	return time.Duration(float64(looks) / profileHz * float64(time.Second))
}

// Close ends it without a result.
func (p *Profile) Close() error {
	return errors.Join(forAll(p.links, link.Link.Close), forAll(p.events, unix.Close), p.objs.Close())
}

// symbols are the kernel's functions, by address.
type symbols []symbol

type symbol struct {
	addr uint64
	name string
}

func kernelSymbols() (symbols, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("read kernel symbols: %w", err)
	}
	defer f.Close()
	var list symbols
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text()) // address type name [module]
		if len(fields) < 3 || !strings.ContainsAny(fields[1], "tT") {
			continue
		}
		addr, err := strconv.ParseUint(fields[0], 16, 64)
		if err != nil || addr == 0 {
			continue
		}
		list = append(list, symbol{addr, fields[2]})
	}
	if len(list) == 0 {
		return nil, errors.New("read kernel symbols: they are hidden (kernel.kptr_restrict)")
	}
	slices.SortFunc(list, func(a, b symbol) int { return cmp.Compare(a.addr, b.addr) })
	return list, nil
}

// of names the function that an address is in.
func (s symbols) of(addr uint64) string {
	i, found := slices.BinarySearchFunc(s, addr, func(f symbol, a uint64) int { return cmp.Compare(f.addr, a) })
	if !found {
		i--
	}
	if i < 0 {
		return ""
	}
	return s[i].name
}
