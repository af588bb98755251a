// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* A relay between devices, and loss inside of the receive path. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* The other end of a wire: what comes is sent on as a frame, with nothing else to it. */
const volatile __u32 relay_to = 0;

SEC("xdp.frags")
int relay(struct xdp_md *ctx)
{
	return bpf_redirect(relay_to, 0);
}

/* Of so many packets, the last few are dropped. */
const volatile __u32 drop_every = 1000;
const volatile __u32 drop_burst = 1;
volatile __u64 dropped = 0;

static __u64 count;

SEC("tcx/ingress")
int drop(struct __sk_buff *skb)
{
	if (__sync_fetch_and_add(&count, 1) % drop_every < drop_every - drop_burst)
		return -1; /* TCX_NEXT */
	__sync_fetch_and_add(&dropped, skb->gso_segs ?: 1);
	return 2; /* TCX_DROP */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
