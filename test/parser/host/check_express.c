// SPDX-License-Identifier: Apache-2.0
/*
 * Properties of bpf/express.h, beside a judge that adds everything up: a plain frame may
 * take the express path, and none may that the stack would drop, change or give to another
 * receiver. Frames are built, and then bits of them turned over and bytes cut off. Nor may one be
 * taken for the next of a run that is not plain, or of another flow.
 */
#include <string.h>
#include "check.h"
#include "express.h"

enum { FRAMES = 200000, ROOM = 2048 };

/* Where things are in a frame, with IPv4 inside. */
enum {
	IP = 14,
	UDP = 34,
	VXLAN = 42,
	INNER = 50,
	INNER_IP = 64,
	INNER_L4 = 84,
	/* What is looked at of a frame that a buffer does not hold as a whole. */
	HEAD = 92,
};

static const struct ol_express_tunnel tunnel = {
	.version = 4,
	.nic = {2, 0, 0, 0, 0, 2},
	.mac = {2, 0, 0, 0, 0, 9},
};

static struct ol_express_tunnel here;
static __u8 frame[ROOM];
static __u32 length, inner;

static void put16(__u8 *p, __u32 n)
{
	p[0] = n >> 8;
	p[1] = n;
}

static __u32 get16(const __u8 *p)
{
	return p[0] << 8 | p[1];
}

/* RFC 1071, byte by byte, with nothing in common with what is checked. */
static __u32 add(const __u8 *p, __u32 len, __u32 sum)
{
	for (__u32 i = 0; i < len; i++)
		sum += i & 1 ? p[i] : p[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Of a transport's segment, with the pseudo header: ~0 if it is right. */
static __u32 transport(const __u8 *addrs, __u32 addr_len, __u8 proto, const __u8 *p, __u32 len)
{
	return add(p, len, add(addrs, addr_len, 0) + proto + len);
}

static void fill(__u8 *p, __u32 len)
{
	for (__u32 i = 0; i < len; i++)
		p[i] = rnd();
}

/* The checksum of an IPv4 header, made right again. */
static void mend(__u8 *ip)
{
	put16(ip + 10, 0);
	put16(ip + 10, ~add(ip, 20, 0));
}

static __u32 ip4(__u8 *ip, __u8 proto, __u32 payload)
{
	ip[0] = 0x45;
	ip[1] = below(4) << 2 | below(4);
	put16(ip + 2, 20 + payload);
	fill(ip + 4, 2);
	put16(ip + 6, one_in(2) ? 0x4000 : 0);
	ip[8] = 64;
	ip[9] = proto;
	mend(ip);
	return 20;
}

/* The ECN bits that a tunnel sends with a packet (RFC 6040, 4.1): its own, but for congestion. */
static void ecn_of_tunnel(__u8 *outer, __u8 inner)
{
	outer[1] = (outer[1] & ~3) | ((inner & 3) == 3 ? 2 : inner & 3);
	mend(outer);
}

/* A frame as a tunnel sends it, with or without an outer checksum. */
static void build_of(int summed, int v6, int tcp)
{
	__u32 payload = below(1200), head = tcp ? 20 : 8, l4 = head + payload,
	      ip_len = v6 ? 40 : 20;
	__u8 *eth = frame, *ip = eth + 14, *udp = ip + 20, *vx = udp + 8, *in = vx + 8;
	__u8 *in_ip = in + 14, *seg = in_ip + ip_len;
	__u32 inside = 8 + 14 + ip_len + l4;

	fill(frame, sizeof(frame));
	memcpy(eth, tunnel.nic, 6);
	memcpy(eth + 6, "\2\0\0\0\0\1", 6);
	put16(eth + 12, 0x0800);
	memcpy(ip + 12, "\300\0\2\3\300\0\2\2", 8);
	ip4(ip, 17, 8 + inside);
	put16(udp + 2, 4789);
	put16(udp + 4, 8 + inside);
	memcpy(vx, "\10\0\0\0\0\0\52\0", 8);
	memcpy(in, "\2\0\0\0\1\2\2\0\0\0\1\1", 12);
	put16(in + 12, v6 ? 0x86dd : 0x0800);
	if (v6) {
		in_ip[0] = 0x60;
		put16(in_ip + 4, l4);
		in_ip[6] = tcp ? 6 : 17;
	} else {
		memcpy(in_ip + 12, "\12\364\0\1\12\364\0\2", 8);
		ip4(in_ip, tcp ? 6 : 17, l4);
	}
	ecn_of_tunnel(ip, v6 ? in_ip[1] >> 4 : in_ip[1]);
	if (!tcp)
		put16(seg + 4, l4);
	put16(seg + (tcp ? 16 : 6), 0);
	__u32 sum = ~transport(in_ip + (v6 ? 8 : 12), v6 ? 32 : 8, tcp ? 6 : 17, seg, l4) & 0xffff;
	put16(seg + (tcp ? 16 : 6), !tcp && !sum ? 0xffff : sum);
	put16(udp + 6, 0);
	if (summed) {
		sum = ~transport(ip + 12, 8, 17, udp, 8 + inside) & 0xffff;
		put16(udp + 6, sum ? sum : 0xffff);
	}
	inner = in - frame;
	length = in - frame + inside - 8;
	memcpy(&here.local[0], ip + 16, 4);
}

static void build(int summed)
{
	build_of(summed, one_in(3), one_in(2));
}

/* What the stack does with it, up to the tunnel. */
static int accepts(const __u8 *f)
{
	const __u8 *ip = f + 14, *udp = ip + 20;

	return !memcmp(f, tunnel.nic, 6) && get16(f + 12) == 0x0800 && ip[0] == 0x45 &&
	       add(ip, 20, 0) == 0xffff && get16(ip + 2) == length - 14 &&
	       get16(udp + 4) == length - 34 && ip[12] && ip[12] != 127 && ip[12] < 224 &&
	       !memcmp(ip + 16, &here.local[0], 4) && memcmp(ip + 12, &here.local[0], 4) &&
	       (!(udp[6] | udp[7]) || transport(ip + 12, 8, 17, udp, length - 34) == 0xffff);
}

/*
 * RFC 6040, figure 4: may a packet leave the tunnel as it was sent, and without a word about it? By
 * what is inside, then outside: none, ECT(1), ECT(0), congestion.
 */
static const __u8 ecn_stays[4][4] = {
	{1, 0, 0, 0},
	{1, 1, 1, 0},
	{1, 0, 1, 0},
	{1, 1, 1, 1},
};

/* And behind the tunnel: it goes where its address says, as it is. */
static int plain_inside(const __u8 *f)
{
	const __u8 *in = f + inner, *ip = in + 14;
	__u32 kind = get16(in + 12), proto, len;
	__u8 ecn;

	if (in[6] & 1 || !memcmp(in + 6, "\0\0\0\0\0\0", 6) || !memcmp(in + 6, tunnel.mac, 6) ||
	    !memcmp(in, in + 6, 6))
		return 0;
	ecn = kind == 0x86dd ? ip[1] >> 4 & 3 : ip[1] & 3;
	if (!ecn_stays[ecn][f[15] & 3])
		return 0;
	if (kind == 0x0800) {
		if (ip[0] != 0x45 || get16(ip + 6) & 0x3fff || add(ip, 20, 0) != 0xffff)
			return 0;
		proto = ip[9];
		len = get16(ip + 2);
	} else if (kind == 0x86dd) {
		if (ip[0] >> 4 != 6)
			return 0;
		proto = ip[6];
		len = 40 + get16(ip + 4);
	} else {
		return 0;
	}
	return (proto == 6 || proto == 17) && inner + 14 + len == length;
}

/* Does the pod take the packet, as far as its checksum goes? */
static int pod_takes(const __u8 *f)
{
	const __u8 *in = f + inner, *ip = in + 14;
	int v6 = get16(in + 12) == 0x86dd;
	__u32 off = inner + 14 + (v6 ? 40 : 20), proto = v6 ? ip[6] : ip[9];
	const __u8 *seg = f + off;

	if (proto == 17 && !(seg[6] | seg[7]))
		return 1;
	return transport(ip + (v6 ? 8 : 12), v6 ? 32 : 8, proto, seg, length - off) == 0xffff;
}

/* Of exactly so many bytes: what is read beyond them is found out. */
static enum ol_express_unfit ask(const __u8 *f, __u32 len)
{
	__u8 *copy = malloc(len);
	struct ol_cursor c = {.data = copy, .end = copy + len, .total = length};
	enum ol_express_unfit r;

	memcpy(copy, f, len);
	r = ol_express_plain(&c, inner, &here);
	free(copy);
	return r;
}

/* Is the frame the next of the run, as far as so many bytes of it tell? */
static int goes_on(const struct ol_head *run, __u32 len)
{
	__u8 *copy = malloc(len ? len : 1);
	struct ol_cursor c = {.data = copy, .end = copy + len, .total = length};
	int yes;

	memcpy(copy, frame, len);
	yes = ol_run_goes_on(&c, run);
	free(copy);
	return yes;
}

/* Begins a run with the frame, if it may begin one. */
static int begin(struct ol_head *run, __u32 len)
{
	__u8 *copy = malloc(len ? len : 1);
	struct ol_cursor c = {.data = copy, .end = copy + len, .total = length};
	int yes;

	memcpy(copy, frame, len);
	yes = ol_run_begin(&c, inner, run);
	free(copy);
	return yes;
}

/* All that has to be the same within a run; what is no part of it is zero. */
struct whose {
	struct ol_flow flow;
	__u32 vni, port, kind;
	__u8 outer[8]; /* addresses */
	__u8 macs[12];
};

static enum ol_reason read_whose(struct whose *w)
{
	struct ol_cursor c = {.data = frame, .end = frame + length, .total = length};
	struct ol_outer outer = {0};
	enum ol_reason r;
	__u8 may_concern;
	__u32 at;

	memset(w, 0, sizeof(*w));
	r = ol_parse_outer(&c, &outer, &may_concern);
	if (!r)
		r = ol_parse_vni(&c, &outer, &w->vni);
	if (!r)
		r = ol_parse_tunnel(&c, &outer, OL_KIND_VXLAN, &at);
	if (!r)
		r = ol_parse_inner(&c, at, w->vni, &w->flow);
	if (r)
		return r;
	w->flow.id = w->flow.len = 0; /* of a whole datagram, no part of its flow */
	w->port = outer.port;
	w->kind = get16(frame + at + 12);
	memcpy(w->outer, frame + IP + 12, sizeof(w->outer));
	memcpy(w->macs, frame + at, sizeof(w->macs));
	return OL_OK;
}

/*
 * Of the frame makes the next of its flow, with so much behind its IP header, and with new
 * numbers and sums.
 */
static void next_of_run(__u32 l4)
{
	__u8 *ip = frame + IP, *in = frame + INNER_IP, *seg = frame + INNER_L4;
	int tcp = in[9] == 6;

	fill(seg + 4, l4 - 4);
	put16(in + 2, 20 + l4);
	fill(in + 4, 2);
	mend(in);
	if (!tcp)
		put16(seg + 4, l4);
	length = INNER_L4 + l4;
	put16(frame + UDP + 4, length - UDP);
	put16(ip + 2, length - IP);
	fill(ip + 4, 2);
	mend(ip);
}

/* Makes something else of it. What was done is what is returned, for the counts. */
enum change { NONE, BITS, CUT, LENGTHS, OTHER, NO_HEADER, CHANGES };

static enum change change(void)
{
	/* Of each of these fields a byte. */
	static const __u8 flows[] = {INNER_IP + 12, INNER_IP + 19, INNER_L4,	 INNER_L4 + 3,
				     INNER,	    INNER + 5,	   INNER + 6,	 INNER + 11,
				     VXLAN + 4,	    VXLAN + 6,	   IP + 12,	 IP + 15,
				     IP + 19,	    UDP + 3,	   INNER_IP + 9, INNER_IP + 7};
	static const __u8 lengths[] = {IP + 2, UDP + 4, INNER_IP + 2, INNER_L4 + 4};
	enum change how = below(CHANGES);
	__u32 at, n, i;

	switch (how) {
	case BITS:
		for (n = 1 + below(3); n; n--) {
			at = one_in(8) ? below(length) : below(HEAD);
			frame[at] ^= 1 << below(8);
		}
		break;
	case CUT: /* shorter or longer than it tells, or told so by some of its lengths */
		n = 1 + below(one_in(2) ? 16 : length - 1);
		length = one_in(2) && length + n <= ROOM ? length + n : length - n;
		break;
	case LENGTHS:
		n = 1 + below(one_in(2) ? 4 : 0xffff);
		for (i = 0; i < sizeof(lengths); i++)
			if (one_in(2))
				put16(frame + lengths[i], get16(frame + lengths[i]) + n);
		break;
	case OTHER: /* in all else as it should be */
		at = flows[below(sizeof(flows))];
		frame[at] ^= 1 << below(8);
		mend(frame + INNER_IP);
		break;
	case NO_HEADER: /* of TCP: in all else as it should be */
		next_of_run(8 + below(12));
		break;
	default:
		break;
	}
	/* That the sum tells of it must not hide that nothing else does. */
	if (how != NONE && !one_in(4))
		mend(frame + IP);
	return how;
}

static void check_runs(void)
{
	__u32 asked[CHANGES] = {0}, yes[CHANGES] = {0};
	struct whose kept, got;
	struct ol_head run;
	enum change how;
	int i, k, summed, v6, tcp;

	for (i = 0; i < FRAMES / 8; i++) {
		summed = one_in(8);
		v6 = one_in(8);
		tcp = one_in(2);
		build_of(summed, v6, tcp);
		MUST(begin(&run, one_in(2) ? HEAD : length) == (!summed && !v6),
		     "run %d: %s IPv%d begins one, or does not", i,
		     summed ? "with an outer checksum," : "", v6 ? 6 : 4);
		MUST(!begin(&run, below(OL_HEAD_TUNNEL)), "run %d: begins with what is not there",
		     i);
		inner += 4;
		MUST(!begin(&run, length), "run %d: begins behind options", i);
		inner -= 4;
		if (summed || v6)
			continue;
		MUST(ask(frame, length) == OL_PLAIN && !read_whose(&kept), "run %d: not plain", i);
		for (k = 0; k < 8; k++) {
			__u8 was[ROOM];
			__u32 was_long;

			next_of_run((tcp ? 20 : 8) + (one_in(8) ? 0 : below(1200)));
			memcpy(was, frame, sizeof(was));
			was_long = length;
			how = change();
			asked[how]++;
			goes_on(&run, below(HEAD)); /* reads nothing that is not there */
			MUST(how == CUT || goes_on(&run, length) == goes_on(&run, HEAD),
			     "run %d, frame %d: its payload matters", i, k);
			if (goes_on(&run, length)) {
				yes[how]++;
				MUST(ask(frame, length) == OL_PLAIN && accepts(frame) &&
					     plain_inside(frame),
				     "run %d, frame %d, change %d: goes on and is not plain: %d", i,
				     k, how, ask(frame, length));
				MUST(!read_whose(&got) && !memcmp(&got, &kept, sizeof(got)),
				     "run %d, frame %d, change %d: goes on for another flow", i, k,
				     how);
			} else {
				MUST(how != NONE, "run %d, frame %d: a proper next frame is not", i,
				     k);
			}
			memcpy(frame, was, sizeof(was));
			length = was_long;
		}
	}
	MUST(yes[BITS] > asked[BITS] / 50 && yes[BITS] < asked[BITS] / 2,
	     "of %u frames with turned bits %u go on", asked[BITS], yes[BITS]);
	/* Of TCP, whatever a UDP header's length would be is data. */
	MUST(yes[LENGTHS] && yes[LENGTHS] < asked[LENGTHS] / 4,
	     "of %u frames with other lengths %u go on", asked[LENGTHS], yes[LENGTHS]);
	MUST(yes[NO_HEADER] && yes[NO_HEADER] < asked[NO_HEADER], "of %u short frames %u go on",
	     asked[NO_HEADER], yes[NO_HEADER]);
	MUST(!yes[CUT] && !yes[OTHER],
	     "%u frames that are not as long as they tell go on, %u of "
	     "other flows",
	     yes[CUT], yes[OTHER]);
}

int main(int argc, char **argv)
{
	__u32 i, turned = 0, refused = 0, plain = 0;

	if (argc > 1)
		rnd_state = strtoull(argv[1], NULL, 0);
	here = tunnel;
	check_runs();
	for (i = 0; i < FRAMES; i++) {
		int summed = one_in(2);
		enum ol_express_unfit r;

		build(summed);
		r = ask(frame, length);
		MUST(r == OL_PLAIN, "frame %u, %s outer checksum: refused for %d", i,
		     summed ? "with" : "without", r);
		MUST(accepts(frame) && plain_inside(frame), "frame %u: the judge refuses it", i);
		ask(frame, below(length));
		for (__u32 n = 1 + below(3); n; n--) {
			/* Mostly headers, which are what it goes by. */
			__u32 at = one_in(4) ? below(length) : below(120);

			if (at < length)
				frame[at] ^= 1 << below(8);
		}
		/* Or the outer header's sum is all that tells of it. */
		if (one_in(2))
			mend(frame + IP);
		r = ask(frame, length);
		turned++;
		if (r != OL_PLAIN) {
			refused++;
			continue;
		}
		plain++;
		MUST(plain_inside(frame), "frame %u: the inner frame is not plain", i);
		/* What is wrong with its payload the pod finds out, as it would have. */
		MUST(accepts(frame) || !pod_takes(frame),
		     "frame %u: the stack would not take it for the tunnel, and the pod takes it",
		     i);
	}
	MUST(plain > FRAMES / 100 && refused > FRAMES / 10, "of %u frames %u were plain, %u not",
	     turned, plain, refused);
	/* Two errors of the payload that cancel each other out, or a wrong inner checksum. */
	build(1);
	frame[length - 1] ^= 1;
	MUST(ask(frame, length) == OL_PLAIN,
	     "of a payload nothing is known: its own checksum guards it");
	build(1);
	frame[inner - 3] ^= 1; /* the network identifier: in the outer sum only */
	MUST(ask(frame, length) == OL_UNFIT_UNCHECKED, "a wrong outer checksum passes");
	return 0;
}
