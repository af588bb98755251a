/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Constants that the loader sets before a program is loaded. */
#ifndef OVERLANE_CONFIG_H
#define OVERLANE_CONFIG_H

#include "kernel.h"
#include "abi.h"

/* Key of the flow hash: random for each load. */
const volatile __u64 ol_key0 = 0;
const volatile __u64 ol_key1 = 0;

/* Marks of this load on packets that a resequencer is to put in order. */
const volatile __u32 ol_merge_magic = 0;

/* The machine's possible CPUs: the size of the per-core maps. */
const volatile __u32 ol_nr_cpus = 1;

/* Emits the ABI's enums; holds nothing. */
const volatile struct ol_abi ol_abi_enums = {};

#endif
