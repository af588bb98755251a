// SPDX-License-Identifier: Apache-2.0
/*
 * Properties of bpf/express.h, beside a judge that adds everything up: a plain frame may
 * take the express path, and none may that the stack would drop, change or give to somebody
 * else. Frames are built, and then bits of them turned over and bytes cut off.
 */
#include <string.h>
#include "check.h"
#include "express.h"

enum { FRAMES = 200000, ROOM = 2048 };

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

static __u32 ip4(__u8 *ip, __u8 proto, __u32 payload)
{
	ip[0] = 0x45;
	ip[1] = below(4) << 2 | below(3); /* no congestion yet */
	put16(ip + 2, 20 + payload);
	fill(ip + 4, 2);
	put16(ip + 6, one_in(2) ? 0x4000 : 0);
	ip[8] = 64;
	ip[9] = proto;
	put16(ip + 10, 0);
	put16(ip + 10, ~add(ip, 20, 0));
	return 20;
}

/* A frame as a tunnel sends it, with or without an outer checksum. */
static void build(int summed)
{
	int v6 = one_in(3), tcp = one_in(2);
	__u32 payload = below(1200), head = tcp ? 20 : 8, l4 = head + payload,
	      ip_len = v6 ? 40 : 20;
	__u8 *eth = frame, *ip = eth + 14, *udp = ip + 20, *vx = udp + 8, *in = vx + 8;
	__u8 *in_ip = in + 14, *seg = in_ip + ip_len;
	__u32 inside = 8 + 14 + ip_len + l4;

	fill(frame, sizeof(frame));
	memcpy(eth, tunnel.nic, 6);
	memcpy(eth + 6, "\2\0\0\0\0\1", 6);
	put16(eth + 12, 0x0800);
	memcpy(ip + 12, "\300\0\2\1\300\0\2\2", 8);
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

/* What the stack does with it, up to the tunnel. */
static int accepts(const __u8 *f)
{
	const __u8 *ip = f + 14, *udp = ip + 20;

	return !memcmp(f, tunnel.nic, 6) && get16(f + 12) == 0x0800 && ip[0] == 0x45 &&
	       add(ip, 20, 0) == 0xffff && get16(ip + 2) == length - 14 &&
	       get16(udp + 4) == length - 34 && (ip[1] & 3) != 3 && ip[12] && ip[12] != 127 &&
	       ip[12] < 224 && !memcmp(ip + 16, &here.local[0], 4) &&
	       memcmp(ip + 12, &here.local[0], 4) &&
	       (!(udp[6] | udp[7]) || transport(ip + 12, 8, 17, udp, length - 34) == 0xffff);
}

/* And behind the tunnel: it goes where its address says, as it is. */
static int plain_inside(const __u8 *f)
{
	const __u8 *in = f + inner, *ip = in + 14;
	__u32 kind = get16(in + 12), proto, len;

	if (in[6] & 1 || !memcmp(in + 6, "\0\0\0\0\0\0", 6) || !memcmp(in + 6, tunnel.mac, 6))
		return 0;
	if (kind == 0x0800) {
		if (ip[0] != 0x45 || get16(ip + 6) & 0x3fff)
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

int main(int argc, char **argv)
{
	__u32 i, turned = 0, refused = 0, plain = 0;

	if (argc > 1)
		rnd_state = strtoull(argv[1], NULL, 0);
	here = tunnel;
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
