/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the hooks under a NIC's driver share. */
#ifndef OVERLANE_XDP_H
#define OVERLANE_XDP_H

#include "steer.h"

struct rtnl_link_ops {
	const char *kind;
} OL_CORE;

struct net_device___kind {
	struct rtnl_link_ops *rtnl_link_ops; /* NULL: hardware */
} OL_CORE;

struct xdp_rxq_info {
	struct net_device___kind *dev;
} OL_CORE;

struct xdp_buff {
	void *data_hard_start;
	struct xdp_rxq_info *rxq;
} OL_CORE;

struct sk_buff___sum {
	unsigned char *head;
	__u8 ip_summed : 2;
} OL_CORE;

#define OL_CHECKSUM_PARTIAL 3

void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

/* What the kernel has for veth's kind of device, and for another one that was met. */
volatile __u64 ol_kind_veth, ol_kind_other;

static __always_inline int ol_by_veth(const struct xdp_buff *xdp)
{
	struct rtnl_link_ops *kind = xdp->rxq->dev->rtnl_link_ops;
	char name[5] = {};

	if (!kind || (__u64)kind == ol_kind_other)
		return 0;
	if ((__u64)kind == ol_kind_veth)
		return 1;
	bpf_probe_read_kernel(name, sizeof(name), BPF_CORE_READ(kind, kind));
	if (__builtin_memcmp(name, "veth", sizeof(name))) {
		ol_kind_other = (__u64)kind;
		return 0;
	}
	ol_kind_veth = (__u64)kind;
	return 1;
}

/*
 * Has the frame's sender, on the same machine, left its checksum to the receiver? The skb knows, and
 * neither a frame that a program sends on nor the skb that a lane makes of it: it would be dropped as
 * corrupt. In front of veth's programs an skb stands behind its xdp_buff (struct veth_xdp_buff,
 * drivers/net/veth.c); NULL: another XDP program has sent the frame.
 */
__noinline int ol_unfinished_frame(struct xdp_md *ctx)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);
	__u32 nic = ctx->ingress_ifindex, one = 1;
	struct sk_buff___sum *skb = NULL;

	if (!ol_by_veth(xdp))
		return 0;
	bpf_probe_read_kernel(&skb, sizeof(skb), (void *)xdp + bpf_core_type_size(struct xdp_buff));
	if (!skb || (BPF_CORE_READ(skb, head) == xdp->data_hard_start &&
		     BPF_CORE_READ_BITFIELD_PROBED(skb, ip_summed) != OL_CHECKSUM_PARTIAL))
		return 0;
	if (!bpf_map_lookup_elem(&ol_unfinished, &nic))
		bpf_map_update_elem(&ol_unfinished, &nic, &one, BPF_NOEXIST);
	ol_reason(OL_UNFINISHED);
	return 1;
}

static __always_inline void ol_cursor_at(struct xdp_md *ctx, struct ol_cursor *c)
{
	/* Of a frame in several buffers only the first is read. */
	c->data = (void *)(long)ctx->data;
	c->end = (void *)(long)ctx->data_end;
	c->total = 0;
}

/*
 * The driver has put nothing of a frame into its first buffer, where alone a program can read and the
 * kernel's cpumap looks: mlx5 with a striding receive queue and an MTU above some 3500, for each frame.
 */
static __always_inline int ol_headless_frame(struct xdp_md *ctx)
{
	__u32 nic = ctx->ingress_ifindex, one = 1, *n = bpf_map_lookup_elem(&ol_headless, &nic);

	if (!n)
		bpf_map_update_elem(&ol_headless, &nic, &one, BPF_NOEXIST);
	else if (*n < OL_HEADLESS_ENOUGH)
		__sync_fetch_and_add(n, 1);
	ol_reason(OL_HEADLESS);
	return OL_HEADLESS;
}

/* What is this frame? lengths: those that its headers tell have to agree with its own. */
__noinline int ol_read_xdp(struct xdp_md *ctx, struct ol_frame *f, int lengths)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_cursor c;

	if (!f || !policy)
		return OL_NOT_OVERLAY;
	ol_cursor_at(ctx, &c);
	if (!OL_FITS(&c, c.data, OL_ETH_HLEN + 20) &&
	    bpf_xdp_get_buff_len(ctx) > (__u64)(c.end - c.data))
		return ol_headless_frame(ctx);
	if (lengths)
		c.total = bpf_xdp_get_buff_len(ctx);
	return ol_classify(&c, policy, f);
}

/*
 * Gives a frame a word to take along, as metadata. After that its bytes have to be looked for
 * anew. Returns 0 where the driver knows none.
 */
__noinline int ol_put_word(struct xdp_md *ctx, __u32 word)
{
	__u32 *meta;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*meta)))
		return 0;
	meta = (void *)(long)ctx->data_meta;
	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return 0;
	*meta = word;
	return 1;
}

#endif
