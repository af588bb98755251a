/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * What every datagram of the lab carries at the start of its payload.
 * comp makes the 16-bit ones' complement sum of {comp, seq, when} constant, so
 * that the UDP checksum of a flow is the same for all of its datagrams.
 * Without F_WHEN the header ends before when: datagrams of 16 bytes exist.
 */
#define PROBE_MAGIC 0x4f6c
#define PROBE_F_WHEN 1

struct probe {
	__u16 magic;
	__u8 flags;
	__u8 pad;
	__u16 flow;
	__u16 comp;
	__u64 seq;
	__u64 when; /* CLOCK_MONOTONIC, ns */
};

#define PROBE_SHORT 16

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Sum of the words that comp has to cancel. */
static __always_inline __u16 probe_sum(__u64 seq, __u64 when)
{
	return fold((seq & 0xffffffff) + (seq >> 32) + (when & 0xffffffff) + (when >> 32));
}
