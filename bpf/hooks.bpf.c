// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What is attached to the tcx hooks of all devices of a namespace, in one number: it is another
 * one as soon as a program comes, goes or takes another's place. To ask the kernel device by
 * device takes two system calls for each, and the lock on all devices for each of these.
 *
 * Run on request, by a thread in the namespace. What it reads may go at any time: a number
 * that comes of that is another one, too.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* More than any node has; the walk must end somewhere. */
#define OL_MAX_DEVICES (1 << 20)
/* BPF_MPROG_MAX */
#define OL_MAX_ATTACHED 64

struct list_head {
	struct list_head *next;
} OL_CORE;

struct net___list {
	struct list_head dev_base_head;
} OL_CORE;

struct nsproxy {
	struct net *net_ns;
} OL_CORE;

struct task_struct___ns {
	struct nsproxy *nsproxy;
} OL_CORE;

struct bpf_prog_aux {
	__u32 id;
} OL_CORE;

struct bpf_prog {
	struct bpf_prog_aux *aux;
} OL_CORE;

struct bpf_mprog_fp {
	struct bpf_prog *prog;
} OL_CORE;

struct bpf_mprog_entry {
	struct bpf_mprog_fp fp_items[OL_MAX_ATTACHED];
} OL_CORE;

struct net_device___tcx {
	struct list_head dev_list;
	int ifindex;
	struct bpf_mprog_entry *tcx_ingress, *tcx_egress;
} OL_CORE;

void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

struct ol_attached {
	__u64 digest;
};

/* 64-bit FNV-1a, a word at a time, with the high bits brought down. */
static __always_inline __u64 ol_mix(__u64 digest, __u64 word)
{
	digest = (digest ^ word) * 0x100000001b3;
	return digest ^ digest >> 29;
}

struct ol_walk {
	__u64 digest;
	struct list_head *head, *at;
	struct bpf_mprog_entry *entry;
};

static long ol_program(__u32 n, void *arg)
{
	struct ol_walk *w = arg;
	struct bpf_mprog_entry *entry = w->entry;
	struct bpf_prog *prog;

	/* The first of those that are not there ends them. */
	if (bpf_core_read(&prog, sizeof(prog), &entry->fp_items[n & (OL_MAX_ATTACHED - 1)].prog) ||
	    !prog)
		return 1;
	w->digest = ol_mix(w->digest, BPF_CORE_READ(prog, aux, id));
	return 0;
}

static __always_inline void ol_hook(struct ol_walk *w, struct bpf_mprog_entry *entry)
{
	w->entry = entry;
	if (entry)
		bpf_loop(OL_MAX_ATTACHED, ol_program, w, 0);
	w->digest = ol_mix(w->digest, 0);
}

static long ol_device(__u32 n, void *arg)
{
	struct ol_walk *w = arg;
	struct list_head *at = w->at;
	struct net_device___tcx *dev;

	if (!at || at == w->head)
		return 1;
	dev = (void *)at - bpf_core_field_offset(struct net_device___tcx, dev_list);
	w->digest = ol_mix(w->digest, BPF_CORE_READ(dev, ifindex));
	ol_hook(w, BPF_CORE_READ(dev, tcx_ingress));
	ol_hook(w, BPF_CORE_READ(dev, tcx_egress));
	w->at = BPF_CORE_READ(at, next);
	return 0;
}

SEC("syscall")
int ol_hooks(struct ol_attached *out)
{
	struct task_struct___ns *task = (void *)bpf_get_current_task();
	struct net___list *net = (void *)BPF_CORE_READ(task, nsproxy, net_ns);
	struct list_head *head = &net->dev_base_head;
	struct ol_walk w = {.digest = 0xcbf29ce484222325, .head = head};

	bpf_rcu_read_lock();
	w.at = BPF_CORE_READ(head, next);
	bpf_loop(OL_MAX_DEVICES, ol_device, &w, 0);
	bpf_rcu_read_unlock();
	out->digest = w.digest;
	return w.at == w.head;
}
