// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/*
 * The live-frame generator: run by BPF_PROG_TEST_RUN with live frames, it
 * turns each frame of the run's page pool into the next frame of one of its
 * flows and redirects it to the wire. Pages come back from the receiving host
 * with whatever that host wrote into them (TTL, checksums), so the headers are
 * written anew for each frame.
 */

#include "lab.h"

#define HDR_MAX 144
#define SLOTS 1024
#define SPIN_NS 1000

const volatile __u32 wire_ifindex = 0;
const volatile __u32 hdr_len = 42;   /* outer Ethernet to inner UDP, inclusive */
const volatile __u32 ip_off = 14;    /* of the inner IPv4 header; fragments only */
const volatile __u32 frags = 1;	     /* frames per datagram */
const volatile __u32 frag_units = 0; /* inner fragment payload, units of 8 bytes */
const volatile __u32 probe_len = sizeof(struct probe);
const volatile __u32 outer_ip = 0; /* of the outer IPv4 header; 0: there is none */
const volatile __u32 cuts = 0;	   /* sizes of datagrams that come by chance; 0: one size */
const volatile __u16 cut[8] = {};  /* by how much each is smaller, in bytes; even */

/* Set by user space. */
volatile __u64 gap_ns = 0;	       /* between frames; 0: no pause */
volatile __u64 make_up_ns = 1000000;   /* longest delay whose frames are sent in one heap */
volatile __u64 window = 0;	       /* frames under way at most; 0: no limit */
volatile __u64 patience_ns = 50000000; /* without progress for this long: lost */

/* Written by the program, which never runs twice at a time. */
volatile __u64 frames = 0;
volatile __u64 datagrams = 0;
volatile __u64 waited_ns = 0;
volatile __u64 written_off = 0;

static __u64 next_ns;
static __u64 waits_since;
static __u64 seen_arrived;
static __u64 seen_ns;
static __u32 slot;
static __u32 cur_flow;
static __u32 cur_frag;
static __u32 chance = 1;

struct template
{
	__u8 hdr[HDR_MAX];
	__u64 seq;
	__u32 ip_sum; /* of the inner IPv4 header without id, fragment offset and checksum */
	__u16 flow;
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct template);
	__uint(max_entries, 1);
} templates SEC(".maps");

/* Which flow comes next: rates are shares of this table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u16);
	__uint(max_entries, SLOTS);
} schedule SEC(".maps");

/* Shared with the arrivals program, and with generators of other queues. */
#define SENT 0
#define ARRIVED 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 2);
} under_way SEC(".maps");

static __always_inline __u64 shared(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&under_way, &which);

	return n ? *(volatile __u64 *)n : 0;
}

/*
 * Frames that are on their way. Signed: what other senders put into a pod
 * arrives without having been sent here.
 */
static __always_inline __s64 in_flight(__u64 got)
{
	return shared(SENT) - got - written_off;
}

/*
 * false: not yet, and the batch goes on. To wait here is only for what is due almost at once:
 * softirqs of this core, which may be a stage of what is measured, run only between batches. But
 * a frame that is not sent goes back to the pool by its lock, on which the receiving host waits
 * with each frame that it frees: a generator that has time to spare would slow down whom it
 * measures.
 */
static __always_inline bool wait_gap(__u64 gap)
{
	__u64 now = bpf_ktime_get_ns();
	int i;

	if (next_ns > now && next_ns - now < SPIN_NS) {
		if (!waits_since)
			waits_since = now;
		for (i = 0; i < 64 && next_ns > now; i++)
			now = bpf_ktime_get_ns();
	}
	if (next_ns > now) {
		if (!waits_since)
			waits_since = now;
		return false;
	}
	if (waits_since) {
		waited_ns += now - waits_since;
		waits_since = 0;
	}
	/* What was missed is made up for, but not after a long absence. */
	if (now - next_ns > make_up_ns)
		next_ns = now;
	next_ns += gap;
	return true;
}

static __always_inline bool wait_window(__s64 limit)
{
	__u64 start, now, got;
	int i;

	if (in_flight(shared(ARRIVED)) < limit)
		return true;
	start = bpf_ktime_get_ns();
	for (i = 0; i < 16; i++) {
		got = shared(ARRIVED);
		now = bpf_ktime_get_ns();
		if (got != seen_arrived || !seen_ns) {
			seen_arrived = got;
			seen_ns = now;
		}
		if (in_flight(got) < limit) {
			waited_ns += now - start;
			return true;
		}
	}
	waited_ns += now - start;
	if (now - seen_ns > patience_ns) {
		written_off += in_flight(got);
		seen_ns = now;
	}
	return false;
}

static __always_inline void write_probe(struct probe *p, __u64 seq, __u16 flow)
{
	__u64 when = 0;

	p->magic = PROBE_MAGIC;
	p->pad = 0;
	p->flow = flow;
	p->seq = seq;
	if (probe_len == sizeof(*p)) {
		when = bpf_ktime_get_ns();
		p->flags = PROBE_F_WHEN;
		p->when = when;
	} else {
		p->flags = 0;
	}
	p->comp = ~probe_sum(seq, when);
}

static __always_inline void write_fragment(void *data, void *data_end, struct template *t)
{
	__u16 *ip = data + ip_off;
	__u16 id, off;

	if ((void *)(ip + 10) > data_end)
		return;
	id = bpf_htons(t->seq);
	off = bpf_htons(cur_frag * frag_units | (cur_frag + 1 < frags ? 0x2000 : 0));
	ip[2] = id;
	ip[3] = off;
	ip[5] = ~fold(t->ip_sum + id + off);
}

/* A word of a header that gets smaller, and the checksum that counts it so many times. */
static __always_inline void lessen(__u16 *len, __u16 *check, __u16 by, __u32 times)
{
	__u16 now = bpf_htons(bpf_ntohs(*len) - by);
	__u32 sum = (__u16) ~*check, i;

	for (i = 0; i < times; i++)
		sum += (__u16) ~*len + now;
	*len = now;
	*check = ~fold(sum);
}

/* Makes a datagram of IPv4 smaller: what it ends with is zero. */
static __always_inline int shrink(struct xdp_md *ctx, void *data, void *data_end)
{
	__u32 which, udp = hdr_len - 8;
	__u16 by;

	chance = chance * 1664525 + 1013904223;
	which = (chance >> 16) % cuts;
	barrier_var(which);
	by = cut[which & 7];
	if (!by)
		return 0;
	if (data + ip_off + 20 > data_end || data + udp + 8 > data_end)
		return -1;
	lessen(data + ip_off + 2, data + ip_off + 10, by, 1);
	lessen(data + udp + 4, data + udp + 6, by, 2); /* and the pseudo header */
	if (outer_ip) {
		__u16 *len;

		if (data + outer_ip + 28 > data_end)
			return -1;
		lessen(data + outer_ip + 2, data + outer_ip + 10, by, 1);
		len = data + outer_ip + 24;
		*len = bpf_htons(bpf_ntohs(*len) - by);
	}
	return bpf_xdp_adjust_tail(ctx, -(int)by);
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 gap = gap_ns, limit = window;
	struct template *t;
	__u32 i;

	if (gap && !wait_gap(gap))
		return XDP_DROP;
	if (limit && !wait_window(limit))
		return XDP_DROP;

	if (cur_frag == 0) {
		__u32 s = slot++ % SLOTS;
		__u16 *f = bpf_map_lookup_elem(&schedule, &s);

		if (!f)
			return XDP_ABORTED;
		cur_flow = *f;
	}
	t = bpf_map_lookup_elem(&templates, &cur_flow);
	if (!t)
		return XDP_ABORTED;

#pragma unroll
	for (i = 0; i < HDR_MAX / 8; i++) {
		__u64 *to = data + i * 8;

		if (i * 8 >= hdr_len)
			break;
		if ((void *)(to + 1) > data_end)
			break;
		*to = *(__u64 *)(t->hdr + i * 8);
	}
	/* The last word may reach past the end of a short frame: halves. */
	if (hdr_len % 8) {
		__u16 *to = data + (hdr_len & ~7u);

#pragma unroll
		for (i = 0; i < 3; i++) {
			if (i * 2 >= hdr_len % 8 || (void *)(to + i + 1) > data_end)
				break;
			to[i] = *(__u16 *)(t->hdr + (hdr_len & ~7u) + i * 2);
		}
	}

	if (frags > 1)
		write_fragment(data, data_end, t);
	if (cur_frag == 0) {
		struct probe *p = data + hdr_len;

		if ((void *)p + probe_len > data_end)
			return XDP_ABORTED;
		if (probe_len == sizeof(*p) && (void *)(p + 1) > data_end)
			return XDP_ABORTED;
		write_probe(p, t->seq, t->flow);
		if (cuts && shrink(ctx, data, data_end))
			return XDP_ABORTED;
	} else {
		/* Where the first fragment has its UDP header and probe. */
		__u64 *z = data + hdr_len - 8;

		if ((void *)(z + 4) > data_end)
			return XDP_ABORTED;
		z[0] = z[1] = z[2] = z[3] = 0;
	}
	if (++cur_frag >= frags) {
		cur_frag = 0;
		t->seq++;
		datagrams++;
	}
	frames++;
	if (limit) {
		__u32 key = SENT;
		__u64 *n = bpf_map_lookup_elem(&under_way, &key);

		if (n)
			__sync_fetch_and_add(n, 1);
	}
	return bpf_redirect(wire_ifindex, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
