// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"

	"github.com/cilium/ebpf/btf"

	"github.com/overlane/overlane/internal/shell"
)

// types loads the kernel's type information, or says why there is none.
func types(e env) (*btf.Spec, answer) {
	spec, err := e.types()
	if err == nil {
		return spec, answer{}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = btf.ErrNotSupported
	}
	return nil, failed(err, "the kernel has no type information: CONFIG_DEBUG_INFO_BTF is off", option(e, minRelease, "CONFIG_DEBUG_INFO_BTF"))
}

func askBTF(e env) answer {
	if spec, a := types(e); spec == nil {
		return a
	}
	return answer{Supported, "the kernel's types are in /sys/kernel/btf/vmlinux", shell.Line{}}
}

// hasMember looks into anonymous structs and unions, too.
func hasMember(s *btf.Struct, name string) bool {
	for _, m := range s.Members {
		if m.Name == name {
			return true
		}
		if inner, ok := btf.UnderlyingType(m.Type).(*btf.Struct); ok && m.Name == "" && hasMember(inner, name) {
			return true
		}
	}
	return false
}

// viaTypes asks a question of the type information. Without it nothing that
// depends on it can be told.
func viaTypes(e env, ask func(*btf.Spec) answer) answer {
	spec, a := types(e)
	if spec == nil {
		a.state = Unknown
		return a
	}
	return ask(spec)
}

// askSoftnet does not ask for softnet_data as a kernel symbol: without
// CONFIG_KALLSYMS_ALL it has none. Programs learn the address of each core's
// from the tracepoint that sees its backlog polled.
func askSoftnet(e env) answer {
	return viaTypes(e, func(spec *btf.Spec) answer {
		var s *btf.Struct
		if err := spec.TypeByName("softnet_data", &s); err != nil {
			return answer{Unsupported, "the kernel's types do not tell what softnet_data is", newerKernel(e, minRelease)}
		}
		for _, field := range []string{"backlog", "cpu", "input_queue_head", "input_queue_tail"} {
			if !hasMember(s, field) {
				return answer{Unsupported, "softnet_data has no " + field + ": CONFIG_RPS is off", option(e, minRelease, "CONFIG_RPS")}
			}
		}
		var tp *btf.Typedef
		if err := spec.TypeByName("btf_trace_napi_poll", &tp); err != nil {
			return answer{Unsupported, "the kernel has no napi_poll tracepoint", option(e, minRelease, "CONFIG_TRACEPOINTS")}
		}
		return answer{Supported, "the backlog's head and tail can be read, and napi_poll tells where", shell.Line{}}
	})
}

func askCPUMapGRO(e env) answer {
	return viaTypes(e, func(spec *btf.Spec) answer {
		var s *btf.Struct
		if err := spec.TypeByName("bpf_cpu_map_entry", &s); err != nil {
			return answer{Unknown, "the kernel's types do not tell what a cpumap entry is", shell.Line{}}
		}
		if !hasMember(s, "gro") {
			return answer{Unsupported, "cpumap hands packets on without GRO", newerKernel(e, "6.15")}
		}
		return answer{Supported, "cpumap entries have GRO", shell.Line{}}
	})
}

func askBPFQdisc(e env) answer {
	return viaTypes(e, func(spec *btf.Spec) answer {
		var drop *btf.Func
		if err := spec.TypeByName("bpf_qdisc_skb_drop", &drop); err != nil {
			return answer{Unsupported, "the kernel has no BPF queueing disciplines: it is older than Linux 6.16, or CONFIG_NET_SCH_BPF is off", option(e, "6.16", "CONFIG_NET_SCH_BPF")}
		}
		return answer{Supported, "the kernel has BPF queueing disciplines", shell.Line{}}
	})
}
