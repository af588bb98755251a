// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What receiving costs, for as long as aggregation is judged: the time that each core spends in receive softirqs, or in
 * a kernel thread that polls a device or a lane, and the datagrams for which a UDP socket had no room. One clock for
 * both, so that a softirq in such a thread is not counted twice. What the kernel itself counts of this it counts in
 * ticks, of which a core that has little to do gets a few in a second.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define OL_NET_RX_SOFTIRQ 3
#define OL_PF_KTHREAD 0x00200000

struct task_struct___named {
	unsigned int flags;
	char comm[16];
} OL_CORE;

struct ol_clock {
	__u64 busy;   /* ns */
	__u64 since;  /* ns, when what goes on now began */
	__u64 unread; /* datagrams for which a UDP socket had no room */
	__u32 softirq;
	__u32 thread;
};

OL_MAP(PERCPU_ARRAY, ol_clocks, 1, __u32, struct ol_clock);

static __always_inline void ol_clock_goes(struct ol_clock *c, __u32 softirq, __u32 thread)
{
	int was = c->softirq || c->thread;
	__u64 now;

	c->softirq = softirq;
	c->thread = thread;
	if (!was && !softirq && !thread)
		return;
	now = bpf_ktime_get_ns();
	/* What went on as the programs came has no beginning. */
	if (was)
		c->busy += now - c->since;
	c->since = now;
}

SEC("tp_btf/softirq_entry")
int ol_clock_enters(__u64 *ctx)
{
	struct ol_clock *c = ol_at(&ol_clocks, 0);

	if (c && (__u32)ctx[0] == OL_NET_RX_SOFTIRQ)
		ol_clock_goes(c, 1, c->thread);
	return 0;
}

SEC("tp_btf/softirq_exit")
int ol_clock_leaves(__u64 *ctx)
{
	struct ol_clock *c = ol_at(&ol_clocks, 0);

	if (c && (__u32)ctx[0] == OL_NET_RX_SOFTIRQ)
		ol_clock_goes(c, 0, c->thread);
	return 0;
}

/* Does a task poll a device (napi/eth0-7), or a lane (cpumap/1/map:5)? */
static __always_inline int ol_polls(struct task_struct___named *t)
{
	if (!(t->flags & OL_PF_KTHREAD))
		return 0;
	return !__builtin_memcmp(t->comm, "napi/", 5) || !__builtin_memcmp(t->comm, "cpumap", 6);
}

SEC("tp_btf/sched_switch")
int ol_clock_switches(__u64 *ctx)
{
	struct ol_clock *c = ol_at(&ol_clocks, 0);

	if (c)
		ol_clock_goes(c, c->softirq, ol_polls((void *)ctx[2]));
	return 0;
}

SEC("tp_btf/udp_fail_queue_rcv_skb")
int ol_clock_unread(void *ctx)
{
	struct ol_clock *c = ol_at(&ol_clocks, 0);

	if (c)
		c->unread++;
	return 0;
}
