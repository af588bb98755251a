/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the hooks under a NIC's driver share. */
#ifndef OVERLANE_XDP_H
#define OVERLANE_XDP_H

#include "steer.h"

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
