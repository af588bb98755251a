/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What it takes that a cache line comes from another core: a plug-in of the emulator. A directory says
 * of each line of the kernel's memory which vCPUs have it, and whether it was changed, as MESI does
 * with caches that never forget. A load of a line that the vCPU does not have, and a store to one that
 * others have, take it time; an instruction that does both fetches the line once.
 *
 * Arguments, in instructions: changed (a load of a line that another has changed), clean (of one that
 * others only have), taken (a store to a line that others have).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <glib.h>
#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define LINE_BITS 6
#define DIR_BITS 23 /* lines in the directory: 8 M, of 64 bytes each */
#define MAX_CPUS 16

static struct line {
    uint32_t tag;
    uint16_t have; /* vCPUs, a bit each */
    bool changed;
} *directory;

static int64_t changed, clean, taken;

static struct {
    uint64_t loads, stores, changed, clean, taken;
    char pad[24];
} counts[MAX_CPUS];

/* The line that the vCPU has just fetched, by a load that was its last access. */
static struct line *fetched[MAX_CPUS];

static void charge(unsigned int cpu, uint64_t *count, int64_t insns)
{
    ++*count;
    qemu_plugin_manycore_charge(cpu, insns);
}

/* The line of an address, as one that this vCPU alone has where the directory knows it not. */
static struct line *find(uint64_t addr, unsigned int cpu)
{
    uint64_t n = addr >> LINE_BITS;
    struct line *l = &directory[n & ((1ull << DIR_BITS) - 1)];
    uint32_t tag = n >> DIR_BITS;

    if (l->tag != tag) {
        *l = (struct line) { .tag = tag, .have = 1u << cpu };
    }
    return l;
}

static void load(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t addr, void *unused)
{
    struct line *l;
    uint16_t me = 1u << cpu;

    if ((int64_t)addr >= 0) {
        return; /* not the kernel's */
    }
    l = find(addr, cpu);
    counts[cpu].loads++;
    fetched[cpu] = NULL;
    if (l->have & me) {
        return;
    }
    fetched[cpu] = l;
    if (l->changed) {
        charge(cpu, &counts[cpu].changed, changed);
    } else {
        charge(cpu, &counts[cpu].clean, clean);
    }
    l->have |= me;
    l->changed = false;
}

static void store(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t addr, void *unused)
{
    struct line *l;
    uint16_t me = 1u << cpu;

    if ((int64_t)addr >= 0) {
        return;
    }
    l = find(addr, cpu);
    counts[cpu].stores++;
    if (l->have & ~me && l != fetched[cpu]) {
        charge(cpu, &counts[cpu].taken, taken);
    }
    fetched[cpu] = NULL;
    l->have = me;
    l->changed = true;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    size_t n = qemu_plugin_tb_n_insns(tb);

    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

        if ((int64_t)qemu_plugin_insn_vaddr(insn) >= 0) {
            continue; /* what programs do to the kernel's memory the kernel does for them */
        }
        qemu_plugin_register_vcpu_mem_cb(insn, load, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R, NULL);
        qemu_plugin_register_vcpu_mem_cb(insn, store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W, NULL);
    }
}

static void ended(qemu_plugin_id_t id, void *unused)
{
    for (int i = 0; i < MAX_CPUS; i++) {
        if (counts[i].loads) {
            fprintf(stderr, "lines: vCPU %d loads %" PRIu64 " stores %" PRIu64 " moved: changed %" PRIu64
                    " clean %" PRIu64 " taken %" PRIu64 "\n", i, counts[i].loads, counts[i].stores,
                    counts[i].changed, counts[i].clean, counts[i].taken);
        }
    }
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    struct {
        const char *name;
        int64_t *to;
    } known[] = { { "changed=", &changed }, { "clean=", &clean }, { "taken=", &taken } };

    for (int i = 0; i < argc; i++) {
        size_t k;

        for (k = 0; k < G_N_ELEMENTS(known); k++) {
            if (g_str_has_prefix(argv[i], known[k].name)) {
                *known[k].to = atoll(argv[i] + strlen(known[k].name));
                break;
            }
        }
        if (k == G_N_ELEMENTS(known)) {
            fprintf(stderr, "lines: no argument %s\n", argv[i]);
            return -1;
        }
    }
    if (info->system.max_vcpus > MAX_CPUS) {
        fprintf(stderr, "lines: more than %d vCPUs\n", MAX_CPUS);
        return -1;
    }
    directory = calloc(1ull << DIR_BITS, sizeof(*directory));
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
