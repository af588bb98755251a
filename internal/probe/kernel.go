// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/shell"
)

// minRelease is the oldest kernel that overlane runs on: the oldest that the tests run on. Some
// of what it needs is older, but nothing is promised that was not tried. README.md and the
// packages say the same number.
const minRelease = "6.12"

func askKernel(e env) answer {
	older, ok := olderThan(e.release, minRelease)
	switch {
	case !ok:
		return answer{Unknown, "cannot read the release " + strconv.Quote(e.release), shell.Line{}}
	case older:
		return answer{Unsupported, e.release + " is older than " + minRelease + ", the oldest kernel that overlane runs on", newerKernel(e, minRelease)}
	}
	// Firmware may announce many more than there are. A file that cannot be read is found when programs are loaded.
	if list, err := fs.ReadFile(e.root, "sys/devices/system/cpu/possible"); err == nil {
		if cpus, err := config.ParseCPUList(string(list)); err == nil && len(cpus) > datapath.MaxCPUs {
			return answer{Unsupported, fmt.Sprintf("%d possible CPUs, and at most %d are supported", len(cpus), datapath.MaxCPUs),
				shell.Command("cat /sys/devices/system/cpu/present  # no more than %s: boot with possible_cpus=%[1]s", datapath.MaxCPUs)}
		}
	}
	return answer{Supported, e.release, shell.Line{}}
}

// askOrderGuard asks for what bpf/order.h takes for granted: cores see each
// other's stores in order, and nothing gets between the steps of a poll.
func askOrderGuard(e env) answer {
	switch {
	case e.arch != "amd64":
		return answer{Unsupported, "on " + e.arch + " cores may see each other's stores in another order", shell.Command("uname -m  # only x86_64 is supported")}
	case slices.Contains(strings.Fields(e.version), "PREEMPT_RT"):
		return answer{Unsupported, "with PREEMPT_RT, receive processing can be interrupted by itself", shell.Command("uname -v  # boot a kernel without PREEMPT_RT")}
	}
	return answer{Supported, "x86, receive processing runs undivided", shell.Line{}}
}

// olderThan compares the first two numbers of releases.
func olderThan(release, than string) (older, ok bool) {
	var a, b, c, d int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false, false
	}
	if n, _ := fmt.Sscanf(than, "%d.%d", &c, &d); n != 2 {
		return false, false
	}
	return a < c || a == c && b < d, true
}

// newerKernel is the distribution's own way to a newer kernel.
func newerKernel(e env, min string) shell.Line {
	const then = "  # then boot it; needed is %s or newer"
	os := osRelease(e)
	switch os["ID"] {
	case "debian":
		return shell.Command("apt install -t %s-backports linux-image-$(dpkg --print-architecture)"+then, os["VERSION_CODENAME"], min)
	case "ubuntu":
		return shell.Command("apt install linux-generic-hwe-%s"+then, os["VERSION_ID"], min)
	case "fedora", "rhel", "centos", "rocky", "almalinux":
		return shell.Command("dnf upgrade kernel"+then, min)
	case "arch":
		return shell.Command("pacman -Syu linux"+then, min)
	}
	return shell.Command("uname -r  # boot a kernel that is %s or newer", min)
}

func osRelease(e env) map[string]string {
	vars := map[string]string{}
	text, _ := fs.ReadFile(e.root, "etc/os-release")
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, "="); ok {
			vars[k] = strings.Trim(v, "\"'\r\n")
		}
	}
	return vars
}

// option is the remedy when a build option is off in a kernel that is new
// enough, or else a newer kernel.
func option(e env, min, config string) shell.Line {
	if older, ok := olderThan(e.release, min); ok && older {
		return newerKernel(e, min)
	}
	return shell.Command("grep %s /boot/config-$(uname -r)  # boot a kernel that has it", config)
}

// askTCX attaches to a device that cannot exist: a kernel that has tcx says so
// only after it has understood everything else.
func askTCX(e env) answer {
	const missing = "the kernel has no tcx links"
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "ovl_probe", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return failed(fmt.Errorf("load program: %w", err), missing, newerKernel(e, minRelease))
	}
	defer prog.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		l.Close()
		return answer{Unknown, "a program could be attached to a device that should not exist", shell.Line{}}
	}
	if errors.Is(err, unix.ENODEV) {
		return answer{Supported, "the kernel attaches tc programs by tcx", shell.Line{}}
	}
	return failed(err, missing, newerKernel(e, minRelease))
}

// askKernelRead asks for the helper that reads fields of the kernel's structures.
func askKernelRead(e env) answer {
	err := features.HaveProgramHelper(ebpf.SchedCLS, asm.FnProbeReadKernel)
	if err == nil {
		return answer{Supported, "BPF programs may read the kernel's memory", shell.Line{}}
	}
	// The word in brackets is in force (security/lockdown/lockdown.c).
	if mode, _ := fs.ReadFile(e.root, "sys/kernel/security/lockdown"); strings.Contains(string(mode), "[confidentiality]") {
		return answer{Unsupported, "the kernel is locked down for confidentiality: BPF programs may not read its memory",
			shell.Command("cat /sys/kernel/security/lockdown  # boot with lockdown=integrity, which allows it")}
	}
	// Without CAP_PERFMON the kernel says the same.
	return answer{Unknown, "the kernel takes no BPF program that reads its memory: " + err.Error(), asRoot}
}

// askTracepoint loads a typed tracepoint program and does not attach it.
func askTracepoint(e env) answer {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "ovl_probe", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "netif_receive_skb", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return failed(err, "the kernel has no typed tracepoint programs, or no type information", option(e, minRelease, "CONFIG_DEBUG_INFO_BTF"))
	}
	prog.Close()
	return answer{Supported, "the kernel loads typed tracepoint programs", shell.Line{}}
}

func askCPUMap(e env) answer {
	if err := features.HaveMapType(ebpf.CPUMap); err != nil {
		return failed(err, "the kernel has no cpumap", option(e, minRelease, "CONFIG_BPF_SYSCALL"))
	}
	return answer{Supported, "the kernel has cpumap", shell.Line{}}
}

// askLo looks for a file of lo, which every namespace has.
func askLo(e env, file, have, missing string, remedy shell.Line) answer {
	if _, err := fs.Stat(e.root, "sys/class/net/lo"); err != nil {
		return answer{Unknown, "sysfs is not mounted on /sys", shell.Command("mount -t sysfs sysfs /sys")}
	}
	_, err := fs.Stat(e.root, "sys/class/net/lo/"+file)
	switch {
	case err == nil:
		return answer{Supported, have, shell.Line{}}
	case errors.Is(err, fs.ErrNotExist):
		return answer{Unsupported, missing, remedy}
	}
	return answer{Unknown, err.Error(), asRoot}
}

func askRPS(e env) answer {
	return askLo(e, "queues/rx-0/rps_cpus", "receive queues have an rps_cpus mask",
		"receive queues have no rps_cpus mask: CONFIG_RPS is off", option(e, minRelease, "CONFIG_RPS"))
}

func askThreaded(e env) answer {
	return askLo(e, "threaded", "devices can run NAPI in threads", "devices have no threaded switch", newerKernel(e, minRelease))
}

// askUDPGRO asks a device of this namespace; each names all features that the kernel knows.
func askUDPGRO(e env) answer {
	const missing = "the kernel's GRO does not join datagrams that are only passed on"
	all, err := ethtool.Features("lo")
	if err != nil {
		return answer{Unknown, err.Error(), asRoot}
	}
	if _, known := all[ethtool.UDPForwarding]; !known {
		return answer{Unsupported, missing, newerKernel(e, minRelease)}
	}
	return answer{Supported, "devices have the feature " + ethtool.UDPForwarding, shell.Line{}}
}
