// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/*
 * The checker: a socket filter on the bound UDP socket of a pod, so that it
 * sees each datagram at the moment and in the order in which the socket layer
 * takes it. It refuses them all (the kernel counts them as InErrors): reading
 * is not what is measured. It shares nothing with the product.
 */

#include "lab.h"

#define FLOWS 256
#define WORDS 2048 /* power of two; 32 datagrams each */
#define BUCKETS 976

struct flow_check {
	__u64 received;
	__u64 next; /* highest sequence number seen, plus one */
	__u64 late; /* came after a higher one */
	__u64 duplicated;
	__u64 stale; /* too far behind the highest to be told apart */
	__u64 first; /* lowest possible start, plus one; 0: nothing yet */
	/*
	 * Which of the last 65536 came. A word carries its own tag (upper half:
	 * seq / 32) beside the bits, and one compare-and-swap changes both, so
	 * that cores that handle one flow at the same time cannot miscount.
	 */
	__u64 seen[WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_check);
	__uint(max_entries, FLOWS);
} flows SEC(".maps");

/* Sender's stamp to socket layer: 16 buckets for each power of two. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, BUCKETS);
} latency SEC(".maps");

const volatile __u16 latency_flow = 0xffff; /* 0xffff: none */
volatile __u32 keep = 0; /* bytes of a datagram that its socket gets; 0: it is refused */
volatile __u64 alien = 0;
volatile __u64 corrupt = 0;
volatile __u64 delivered_on[64] = {};

static __always_inline void note_latency(__u64 ns)
{
	__u32 b, e = 0;
	__u64 v = ns, *n;
	int i;

	for (i = 0; i < 60 && v >= 32; i++) {
		v >>= 1;
		e++;
	}
	b = e * 16 + v;
	n = bpf_map_lookup_elem(&latency, &b);
	if (n)
		*n += 1;
}

/* 1: new, 0: seen before, -1: cannot be told. */
static __always_inline int mark(struct flow_check *f, __u64 seq)
{
	__u64 *word = &f->seen[(seq / 32) % WORDS];
	__u64 tag = (seq / 32) << 32 | 1ull << 63, bit = 1ull << (seq % 32);
	int i;

	/* The tag's top bit is always set: an untouched word has no tag. */
	tag = ((seq / 32) | 0x80000000ull) << 32;
	for (i = 0; i < 8; i++) {
		__u64 old = *(volatile __u64 *)word, new;

		if ((old & 0xffffffff00000000ull) == tag) {
			if (old & bit)
				return 0;
			new = old | bit;
		} else if (old > tag) {
			return -1;
		} else {
			new = tag | bit;
		}
		if (__sync_val_compare_and_swap(word, old, new) == old)
			return 1;
	}
	return -1;
}

static __always_inline void look(struct __sk_buff *skb)
{
	struct flow_check *f;
	struct probe p = {};
	__u32 key, i;
	__u64 next;
	int fresh;

	/* At the socket layer the packet starts with its UDP header. */
	if (bpf_skb_load_bytes(skb, 8, &p, PROBE_SHORT) || p.magic != PROBE_MAGIC) {
		__sync_fetch_and_add(&alien, 1);
		return;
	}
	if (p.flags & PROBE_F_WHEN && bpf_skb_load_bytes(skb, 8 + PROBE_SHORT, &p.when, 8)) {
		__sync_fetch_and_add(&corrupt, 1);
		return;
	}
	if (p.comp != (__u16)~probe_sum(p.seq, p.when)) {
		__sync_fetch_and_add(&corrupt, 1);
		return;
	}
	key = p.flow;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f) {
		__sync_fetch_and_add(&alien, 1);
		return;
	}
	fresh = mark(f, p.seq);
	if (fresh == 0) {
		__sync_fetch_and_add(&f->duplicated, 1);
		return;
	}
	if (fresh < 0)
		__sync_fetch_and_add(&f->stale, 1);
	__sync_fetch_and_add(&f->received, 1);
	if (p.flags & PROBE_F_WHEN && key == latency_flow)
		note_latency(bpf_ktime_get_ns() - p.when);

	for (i = 0; i < 8; i++) {
		next = *(volatile __u64 *)&f->next;
		if (p.seq + 1 <= next) {
			__sync_fetch_and_add(&f->late, 1);
			break;
		}
		if (__sync_val_compare_and_swap(&f->next, next, p.seq + 1) == next)
			break;
	}
}

SEC("socket")
int check(struct __sk_buff *skb)
{
	look(skb);
	return keep;
}

/* The generators' window: how many frames they sent, and how many arrived. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 2);
} under_way SEC(".maps");

SEC("tcx/ingress")
int arrive(struct __sk_buff *skb)
{
	__u32 arrived = 1;
	__u64 *n = bpf_map_lookup_elem(&under_way, &arrived);

	if (n)
		__sync_fetch_and_add(n, skb->gso_segs ?: 1);
	return -1; /* TCX_NEXT */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
