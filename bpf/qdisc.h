/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a BPF qdisc needs of the kernel (net/sched/bpf_qdisc.c), by CO-RE and as kfuncs. */
#ifndef OVERLANE_QDISC_H
#define OVERLANE_QDISC_H

#include "kernel.h"
#include <bpf/bpf_tracing.h>

#define OL_ENOSPC 28
#define NET_XMIT_SUCCESS 0
#define NET_XMIT_DROP 1

struct sk_buff {
	char cb[48];
} OL_CORE;

struct gnet_stats_queue {
	__u32 qlen;
	__u32 backlog;
} OL_CORE;

struct qdisc_skb_head {
	__u32 qlen;
} OL_CORE;

struct Qdisc {
	__u32 limit;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
} OL_CORE;

struct bpf_sk_buff_ptr {
	struct sk_buff *skb;
};
struct nlattr;
struct netlink_ext_ack;

/* Only what is set here; the loader puts it into the kernel's own. */
struct Qdisc_ops {
	char id[16];
	int (*enqueue)(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free);
	struct sk_buff *(*dequeue)(struct Qdisc *sch);
	int (*init)(struct Qdisc *sch, struct nlattr *arg, struct netlink_ext_ack *extack);
	void (*reset)(struct Qdisc *sch);
	void (*destroy)(struct Qdisc *sch);
};

extern void bpf_kfree_skb(struct sk_buff *p) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *p, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, __u64 expire, __u64 delta_ns) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;

/* struct qdisc_skb_cb: a qdisc's own bytes begin behind the length and what tc keeps there. */
#define OL_CB_PRIVATE 8

static __always_inline __u32 ol_pkt_len(const struct sk_buff *skb)
{
	return *(const __u32 *)skb->cb;
}

/* What tc's cb words hold, as the hook in front of the qdisc has set them. */
static __always_inline const struct ol_merge_mark *ol_mark_of(const struct sk_buff *skb)
{
	return (const void *)(skb->cb + OL_CB_PRIVATE);
}

#endif
