// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/*
 * CPU time of packet reception, per core: while a receive softirq runs or one
 * of the named kernel threads (NAPI, cpumap) is on the core. One clock for
 * both, so that a softirq inside of such a thread is not counted twice. Tick
 * sampling would be useless in windows of a second.
 */

#include "lab.h"

#define NET_RX 3

#define PF_KTHREAD 0x00200000

struct task_struct {
	int pid;
	int tgid;
	unsigned int flags;
	struct task_struct *real_parent;
} __attribute__((preserve_access_index));

const volatile int self = 0; /* the lab's own process */

struct core {
	__u64 busy_ns;
	__u64 since;
	__u32 softirq;
	__u32 thread;
	/* Programs that are neither the lab's nor the kernel's. */
	__u64 foreign_ns;
	__u64 foreign_since;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct core);
	__uint(max_entries, 1);
} cores SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u8);
	__uint(max_entries, 4096);
} threads SEC(".maps");

static __always_inline struct core *this_core(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cores, &zero);
}

/* The reader adds the stretch that goes on. */
static __always_inline void change(struct core *c, __u32 softirq, __u32 thread)
{
	bool was = c->softirq || c->thread, is = softirq || thread;
	__u64 now;

	c->softirq = softirq;
	c->thread = thread;
	if (!was && !is)
		return;
	now = bpf_ktime_get_ns();
	if (was)
		c->busy_ns += now - c->since;
	c->since = now;
}

static __always_inline bool is_foreign(struct task_struct *t)
{
	struct task_struct *parent = t->real_parent;

	if (t->pid == 0 || t->flags & PF_KTHREAD || t->tgid == self)
		return false;
	/* iperf3, the daemon, and what the daemon starts. */
	return parent->tgid != self && parent->real_parent->tgid != self;
}

SEC("tp_btf/softirq_entry")
int softirq_entry(__u64 *ctx)
{
	struct core *c = this_core();

	if (c && (__u32)ctx[0] == NET_RX)
		change(c, 1, c->thread);
	return 0;
}

/* A thread may have been named since it came onto its core, where it stays. */
SEC("tp_btf/softirq_exit")
int softirq_exit(__u64 *ctx)
{
	struct core *c = this_core();
	__u32 pid;

	if (!c || (__u32)ctx[0] != NET_RX)
		return 0;
	pid = bpf_get_current_pid_tgid();
	change(c, 0, bpf_map_lookup_elem(&threads, &pid) != 0);
	return 0;
}

SEC("tp_btf/sched_switch")
int sched_switch(__u64 *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx[2];
	struct core *c = this_core();
	__u32 pid = next->pid;

	if (!c)
		return 0;
	change(c, c->softirq, bpf_map_lookup_elem(&threads, &pid) != 0);
	if (c->foreign_since) {
		c->foreign_ns += bpf_ktime_get_ns() - c->foreign_since;
		c->foreign_since = 0;
	}
	if (is_foreign(next))
		c->foreign_since = bpf_ktime_get_ns();
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
