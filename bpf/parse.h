/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Frame -> outer headers -> tunnel header -> inner headers -> flow key.
 *
 * No maps, no helpers: the same code runs in XDP, in tcx and, under sanitizers,
 * on the host. Whatever is not understood has a reason and takes the stock
 * path; a reason is never a verdict on the packet.
 */
#ifndef OVERLANE_PARSE_H
#define OVERLANE_PARSE_H

#include "abi.h"
#include "encap.h"
#include "wire.h"

#define OL_MAX_LEN 0xffff /* for a length that cannot be told */

/* A frame being read. total: its whole length, or 0 where data is but the head of it. */
struct ol_cursor {
	const __u8 *data;
	const __u8 *end;
	__u32 total;
};

/* Outer headers up to and including UDP. */
struct ol_outer {
	__u32 payload; /* offset of the tunnel header */
	__u32 end;     /* of the IP packet, as its length tells */
	__u16 port;    /* UDP destination */
	__u16 udp_len;
	__u8 version; /* of IP */
};

OL_INLINE __u32 ol_word(const __u8 *p)
{
	return *(const __u32 *)p;
}

#ifdef HOST_TEST
/* The host's sanitizers mind alignment; the kernel's targets do not. */
#undef ol_word
OL_INLINE __u32 ol_word_host(const __u8 *p)
{
	__u32 w;

	__builtin_memcpy(&w, p, sizeof(w));
	return w;
}
#define ol_word ol_word_host
#endif

/* Of one sender: neither a group's nor zero. */
OL_INLINE int ol_one_sender(const __u8 *mac)
{
	return !(mac[0] & 1) && (ol_word(mac) | mac[4] | mac[5]);
}

/* Does the frame hold len bytes from off on? */
#define OL_FITS(c, p, len) ((p) + (len) <= (c)->end)

OL_INLINE enum ol_reason ol_outer_udp(const struct ol_cursor *c, __u32 off, struct ol_outer *o)
{
	const __u8 *udp = c->data + off;

	if (!OL_FITS(c, udp, 8))
		return OL_SHORT;
	o->port = ol_be16(udp + 2);
	o->udp_len = ol_be16(udp + 4);
	o->payload = off + 8;
	return OL_OK;
}

/*
 * Reads the outer headers. OL_NOT_OVERLAY: no unfragmented UDP over IP;
 * *may_concern tells whether a packet that was not understood could still end
 * in a tunnel (a fragment, an option, an extension header).
 */
OL_INLINE enum ol_reason ol_parse_outer(const struct ol_cursor *c, struct ol_outer *o,
					__u8 *may_concern)
{
	const __u8 *eth = c->data;
	const __u8 *ip = c->data + OL_ETH_HLEN;
	__u16 proto;

	*may_concern = 0;
	if (!OL_FITS(c, eth, OL_ETH_HLEN + 20))
		return OL_SHORT;
	proto = ol_be16(eth + 12);
	if (proto == OL_ETH_P_IP) {
		if (ip[9] != OL_IPPROTO_UDP)
			return OL_NOT_OVERLAY;
		*may_concern = 1;
		if (ip[0] != 0x45)
			return ip[0] >> 4 == 4 && (ip[0] & 15) > 5 ? OL_OUTER_OPTIONS
								   : OL_BAD_LENGTH;
		if (ol_be16(ip + 6) & 0x3fff)
			return OL_OUTER_FRAGMENT;
		o->version = 4;
		o->end = OL_ETH_HLEN + ol_be16(ip + 2);
		return ol_outer_udp(c, OL_ETH_HLEN + 20, o);
	}
	if (proto == OL_ETH_P_IPV6) {
		if (!OL_FITS(c, ip, 40))
			return OL_SHORT;
		if (ip[6] == OL_IPPROTO_UDP) {
			*may_concern = 1;
			if (ip[0] >> 4 != 6)
				return OL_BAD_LENGTH;
			o->version = 6;
			o->end = OL_ETH_HLEN + 40 + ol_be16(ip + 4);
			return ol_outer_udp(c, OL_ETH_HLEN + 40, o);
		}
		if (ip[6] == OL_IPPROTO_FRAGMENT) {
			*may_concern = 1;
			return OL_OUTER_FRAGMENT;
		}
		if (ip[6] == 0 || ip[6] == 43 || ip[6] == 60) {
			*may_concern = 1;
			return OL_OUTER_EXTENSION;
		}
		return OL_NOT_OVERLAY;
	}
	if (proto == OL_ETH_P_8021Q || proto == OL_ETH_P_8021AD) {
		*may_concern = 1;
		return OL_OUTER_VLAN;
	}
	return OL_NOT_OVERLAY;
}

/* Reads the VNI. The caller looks the tunnel up by it, then calls ol_parse_tunnel. */
OL_INLINE enum ol_reason ol_parse_vni(const struct ol_cursor *c, const struct ol_outer *o,
				      __u32 *vni)
{
	const __u8 *th = c->data + o->payload;

	if (!OL_FITS(c, th, OL_ENCAP_HLEN))
		return OL_SHORT;
	*vni = ol_encap_vni(th);
	return OL_OK;
}

/*
 * Checks the tunnel header and the outer lengths; *inner becomes the offset of
 * the inner Ethernet header.
 */
OL_INLINE enum ol_reason ol_parse_tunnel(const struct ol_cursor *c, const struct ol_outer *o,
					 __u8 kind, __u32 *inner)
{
	const __u8 *th = c->data + o->payload;
	__u32 len, end = o->payload - 8 + o->udp_len;

	if (!OL_FITS(c, th, OL_ENCAP_HLEN))
		return OL_SHORT;
	len = ol_encap(kind, th);
	if (!len)
		return OL_BAD_TUNNEL_HEADER;
	*inner = o->payload + len;
	if (c->total && (o->end > c->total || end > o->end || end < *inner + OL_ETH_HLEN))
		return OL_BAD_LENGTH;
	return OL_OK;
}

/* room: what the IP header leaves for the transport header, which is at off. */
OL_INLINE enum ol_reason ol_inner_ports(const struct ol_cursor *c, __u32 off, __u32 room,
					struct ol_flow *f)
{
	const __u8 *l4 = c->data + off;

	f->ports = 0;
	f->l4 = off;
	f->len = room;
	if (f->proto != OL_IPPROTO_TCP && f->proto != OL_IPPROTO_UDP && f->proto != OL_IPPROTO_SCTP)
		return OL_OK;
	if (!OL_FITS(c, l4, 4))
		return OL_SHORT;
	if (room < 4)
		return OL_BAD_LENGTH;
	f->ports = ol_word(l4);
	return OL_OK;
}

OL_INLINE enum ol_reason ol_inner_v4(const struct ol_cursor *c, __u32 off, struct ol_flow *f)
{
	const __u8 *ip = c->data + off;
	__u32 ihl, len, frag;

	if (!OL_FITS(c, ip, 20))
		return OL_SHORT;
	ihl = (ip[0] & 15) * 4;
	len = ol_be16(ip + 2);
	if (ip[0] >> 4 != 4 || ihl < 20)
		return OL_BAD_LENGTH;
	/* A super-packet beyond 64 KB has length 0; a frame on the wire never has. */
	if (!len && !c->total)
		len = OL_MAX_LEN;
	if (len < ihl || (c->total && off + len > c->total))
		return OL_BAD_LENGTH;
	f->v6 = 0;
	f->dscp = ip[1] >> 2;
	f->proto = ip[9];
	f->addr[0] = (__u64)ol_word(ip + 12) << 32 | ol_word(ip + 16);
	frag = ol_be16(ip + 6) & 0x3fff;
	f->id = ol_be16(ip + 4);
	f->ports = 0;
	if (frag & 0x1fff) {
		f->fragment = OL_FRAG_LATER;
		return OL_OK;
	}
	f->fragment = frag ? OL_FRAG_FIRST : OL_FRAG_WHOLE;
	return ol_inner_ports(c, off + ihl, len - ihl, f);
}

/* So many headers with options, or for routing, are read in front of a fragment's, each of so many times 8 bytes. */
#define OL_EXTENSIONS 3
#define OL_EXTENSION_WORDS 4

OL_INLINE int ol_optional(__u8 proto)
{
	return proto == 0 || proto == 43 || proto == 60;
}

OL_INLINE enum ol_reason ol_inner_v6(const struct ol_cursor *c, __u32 off, struct ol_flow *f)
{
	const __u8 *ip = c->data + off, *ext;
	__u32 len, frag, head;
	int i;

	if (!OL_FITS(c, ip, 40))
		return OL_SHORT;
	if (ip[0] >> 4 != 6)
		return OL_BAD_LENGTH;
	len = ol_be16(ip + 4);
	if (!len && !c->total)
		len = OL_MAX_LEN;
	if (c->total && off + 40 + len > c->total)
		return OL_BAD_LENGTH;
	f->v6 = 1;
	f->dscp = (ip[0] << 4 | ip[1] >> 4) >> 2 & 0x3f;
	f->proto = ip[6];
#pragma unroll
	for (i = 0; i < 4; i++)
		f->addr[i] = (__u64)ol_word(ip + 8 + 8 * i) << 32 | ol_word(ip + 12 + 8 * i);
	f->fragment = OL_FRAG_WHOLE;
	f->ports = 0;
	f->id = 0;
	off += 40;
	/* A flow is one flow, whichever of its packets have them. */
#pragma unroll
	for (i = 0; i < OL_EXTENSIONS && ol_optional(f->proto); i++) {
		ext = c->data + off;
		if (!OL_FITS(c, ext, 8))
			return OL_SHORT;
		head = ext[1];
		if (head >= OL_EXTENSION_WORDS)
			return OL_INNER_EXTENSION;
		head = 8 + 8 * head;
		if (len < head)
			return OL_BAD_LENGTH;
		len -= head;
		off += head;
		f->proto = ext[0];
	}
	if (f->proto == OL_IPPROTO_FRAGMENT) {
		ext = c->data + off;
		if (!OL_FITS(c, ext, 8))
			return OL_SHORT;
		if (len < 8)
			return OL_BAD_LENGTH;
		len -= 8;
		off += 8;
		f->proto = ext[0];
		frag = ol_be16(ext + 2);
		f->id = ol_word(ext + 4);
		if (frag >> 3) {
			f->fragment = OL_FRAG_LATER;
			return OL_OK;
		}
		/* An atomic fragment is a whole datagram. */
		f->fragment = frag & 1 ? OL_FRAG_FIRST : OL_FRAG_WHOLE;
	}
	if (ol_optional(f->proto) || f->proto == OL_IPPROTO_FRAGMENT || f->proto == 51 ||
	    f->proto == 135)
		return OL_INNER_EXTENSION;
	return ol_inner_ports(c, off, len, f);
}

/* Reads the inner Ethernet frame at offset off into f. One VLAN tag is skipped. */
OL_INLINE enum ol_reason ol_parse_inner(const struct ol_cursor *c, __u32 off, __u32 vni,
					struct ol_flow *f)
{
	const __u8 *eth = c->data + off;
	enum ol_reason r;
	__u16 proto;

	if (!OL_FITS(c, eth, OL_ETH_HLEN))
		return OL_SHORT;
	if (eth[0] & 1)
		return OL_INNER_MULTICAST;
	proto = ol_be16(eth + 12);
	off += OL_ETH_HLEN;
	if (proto == OL_ETH_P_8021Q || proto == OL_ETH_P_8021AD) {
		if (!OL_FITS(c, eth, OL_ETH_HLEN + 4))
			return OL_SHORT;
		proto = ol_be16(eth + OL_ETH_HLEN + 2);
		off += 4;
	}
	if (proto == OL_ETH_P_IP)
		r = ol_inner_v4(c, off, f);
	else if (proto == OL_ETH_P_IPV6)
		r = ol_inner_v6(c, off, f);
	else
		return OL_INNER_NOT_IP;
	f->tail = (__u64)f->ports << 32 | (vni ^ (__u32)f->proto << 24);
	return r;
}

/*
 * Where the ports of a frame are that is TCP or UDP and nothing else: no VLAN tag, no options, no
 * fragment. NULL: it is another one.
 */
OL_INLINE const __u8 *ol_plain_ports(const __u8 *data, const __u8 *end, __u8 *proto)
{
	const __u8 *ip = data + OL_ETH_HLEN, *l4 = ip + 20;

	if (l4 + 4 > end)
		return NULL;
	*proto = ip[9];
	switch (ol_be16(data + 12)) {
	case OL_ETH_P_IP:
		if (ip[0] != 0x45 || ol_be16(ip + 6) & 0x3fff)
			return NULL;
		break;
	case OL_ETH_P_IPV6:
		l4 = ip + 40;
		if (ip[0] >> 4 != 6 || l4 + 4 > end)
			return NULL;
		*proto = ip[6];
		break;
	default:
		return NULL;
	}
	return *proto == OL_IPPROTO_TCP || *proto == OL_IPPROTO_UDP ? l4 : NULL;
}

/*
 * SipHash-1-3 over the flow's words: a sender, which chooses inner headers, must not be able
 * to choose slots. Later fragments hash their datagram's id in place of the ports.
 */
#define OL_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define OL_SIPROUND(v0, v1, v2, v3)   \
	do {                          \
		v0 += v1;             \
		v1 = OL_ROTL(v1, 13); \
		v1 ^= v0;             \
		v0 = OL_ROTL(v0, 32); \
		v2 += v3;             \
		v3 = OL_ROTL(v3, 16); \
		v3 ^= v2;             \
		v0 += v3;             \
		v3 = OL_ROTL(v3, 21); \
		v3 ^= v0;             \
		v2 += v1;             \
		v1 = OL_ROTL(v1, 17); \
		v1 ^= v2;             \
		v2 = OL_ROTL(v2, 32); \
	} while (0)
#define OL_SIPWORD(w)                        \
	do {                                 \
		__u64 _w = (w);              \
		v3 ^= _w;                    \
		OL_SIPROUND(v0, v1, v2, v3); \
		v0 ^= _w;                    \
	} while (0)

OL_INLINE __u64 ol_hash_words(const struct ol_flow *f, __u64 tail, __u64 k0, __u64 k1)
{
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;

	OL_SIPWORD(f->addr[0]);
	if (f->v6) {
		OL_SIPWORD(f->addr[1]);
		OL_SIPWORD(f->addr[2]);
		OL_SIPWORD(f->addr[3]);
	}
	OL_SIPWORD(tail);
	v2 ^= 0xff;
	OL_SIPROUND(v0, v1, v2, v3);
	OL_SIPROUND(v0, v1, v2, v3);
	OL_SIPROUND(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}

OL_INLINE __u64 ol_flow_hash(const struct ol_flow *f, __u64 k0, __u64 k1)
{
	return ol_hash_words(f, f->tail, k0, k1);
}

/* Of one flow, so that they hash alike: for datagrams that are whole. */
OL_INLINE int ol_same_flow(const struct ol_flow *a, const struct ol_flow *b)
{
	if (a->addr[0] != b->addr[0] || a->tail != b->tail || a->v6 != b->v6)
		return 0;
	return !a->v6 ||
	       (a->addr[1] == b->addr[1] && a->addr[2] == b->addr[2] && a->addr[3] == b->addr[3]);
}

/* The flow in whatever tunnel, as behind it: the VNI is no part of it. Never 0. */
OL_INLINE __u64 ol_inner_hash(const struct ol_flow *f, __u64 k0, __u64 k1)
{
	return ol_hash_words(f, (__u64)f->ports << 32 | (__u32)f->proto << 24, k0, ~k1) | 1;
}

/* Names a fragmented datagram: all of its fragments agree on it. Never 0. */
OL_INLINE __u64 ol_fragment_hash(const struct ol_flow *f, __u64 k0, __u64 k1)
{
	return ol_hash_words(f, (__u64)f->id << 32 | (__u32)f->tail, ~k0, k1) | 1;
}

#endif
