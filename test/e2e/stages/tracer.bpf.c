// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/*
 * A read-only look at the receive path: on which core a packet passes which
 * place, and which NAPI is polled after which. It shares nothing with the
 * product, whose account of itself it checks.
 */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define CORE __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} CORE;

struct net {
	struct ns_common ns;
} CORE;

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} CORE;

struct sk_buff {
	struct net_device *dev;
} CORE;

struct napi_struct {
	struct net_device *dev;
} CORE;

struct task_struct {
	int static_prio;
} CORE;

/* static_prio at nice 0; less is more eager. */
#define DEFAULT_PRIO 120

/* What a device is in the overlay. */
enum role {
	ROLE_NONE,
	ROLE_WIRE,
	ROLE_TUNNEL,
	ROLE_HOST_END, /* of a pod's veth */
	ROLE_POD,
	/* Of what takes frames before they are packets: a lane's thread, by its nice value. */
	ROLE_LANE,
	ROLE_EAGER_LANE,
	NR_ROLES,
};

/* What is counted, in the order in which a packet comes by. */
enum place {
	PLACE_POLLED,	/* by the NIC's NAPI */
	PLACE_UNDERLAY, /* into the stack, as the NIC's */
	PLACE_CELL,	/* out of the tunnel's GRO cell: on the core that decapsulated */
	PLACE_TUNNEL,	/* into the stack, as the tunnel's */
	PLACE_BRIDGED,	/* to the host end of the pod's veth */
	PLACE_POD,	/* into the pod's stack */
	NR_PLACES,
};

struct device {
	__u32 ifindex;
	__u32 netns; /* inode number */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct device);
	__type(value, __u32); /* enum role */
	__uint(max_entries, 256);
} devices SEC(".maps");

/* The cpumaps whose threads are lanes of the product that is looked at, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 16);
} lanes SEC(".maps");

struct core {
	__u64 places[NR_PLACES];
	__u32 received[NR_ROLES]; /* since the last poll that was noted */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct core);
	__uint(max_entries, 1);
} cores SEC(".maps");

struct poll {
	__u32 cpu;
	__u32 role; /* of the polled device; ROLE_NONE: the core's backlog */
	__u32 work;
	__u32 received[NR_ROLES]; /* packets that entered the stack since the poll before */
};

#define POLLS 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct poll);
	__uint(max_entries, POLLS);
} polls SEC(".maps");

volatile __u32 recording = 0;
volatile __u32 recorded = 0; /* may grow beyond POLLS */

static __always_inline struct core *this_core(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cores, &zero);
}

static __always_inline __u32 role_of(struct net_device *dev)
{
	struct device key = {};
	__u32 *role;

	key.ifindex = BPF_CORE_READ(dev, ifindex);
	key.netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	role = bpf_map_lookup_elem(&devices, &key);
	return role ? *role : ROLE_NONE;
}

static __always_inline void note_poll(struct core *core, __u32 role, int work)
{
	struct poll *p;
	__u32 i;

	if (!recording)
		return;
	i = __sync_fetch_and_add(&recorded, 1);
	p = bpf_map_lookup_elem(&polls, &i);
	if (!p)
		return;
	p->cpu = bpf_get_smp_processor_id();
	p->role = role;
	p->work = work;
	__builtin_memcpy(p->received, core->received, sizeof(p->received));
}

SEC("tp_btf/napi_poll")
int BPF_PROG(napi_poll, struct napi_struct *napi, int work, int budget)
{
	struct core *core = this_core();
	struct net_device *dev = napi->dev;
	__u32 role = ROLE_NONE;

	if (!core || work <= 0)
		return 0;
	if (dev) {
		role = role_of(dev);
		if (role == ROLE_WIRE)
			core->places[PLACE_POLLED] += work;
		else if (role == ROLE_TUNNEL)
			core->places[PLACE_CELL] += work;
		else
			return 0;
	} else if (!core->received[ROLE_TUNNEL] && !core->received[ROLE_POD]) {
		return 0; /* a backlog is shared: nothing of this overlay in it */
	}
	note_poll(core, role, work);
	__builtin_memset(core->received, 0, sizeof(core->received));
	return 0;
}

/* A thread has taken frames out of its ring, and handles them right after this. */
SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(lane, int map_id, unsigned int processed)
{
	struct core *core = this_core();
	struct task_struct *self;
	__u32 id = map_id;

	if (!core || !processed || !bpf_map_lookup_elem(&lanes, &id))
		return 0;
	self = (void *)bpf_get_current_task();
	note_poll(core,
		  BPF_CORE_READ(self, static_prio) < DEFAULT_PRIO ? ROLE_EAGER_LANE : ROLE_LANE,
		  processed);
	__builtin_memset(core->received, 0, sizeof(core->received));
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(receive, struct sk_buff *skb)
{
	struct core *core = this_core();
	__u32 role = role_of(skb->dev);

	if (!core)
		return 0;
	switch (role) {
	case ROLE_WIRE:
		core->places[PLACE_UNDERLAY]++;
		break;
	case ROLE_TUNNEL:
		core->places[PLACE_TUNNEL]++;
		break;
	case ROLE_POD:
		core->places[PLACE_POD]++;
		break;
	default:
		return 0;
	}
	if (role < NR_ROLES)
		core->received[role]++;
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(transmit, struct sk_buff *skb, struct net_device *dev)
{
	struct core *core = this_core();

	if (core && role_of(dev) == ROLE_HOST_END)
		core->places[PLACE_BRIDGED]++;
	return 0;
}

/* Names the enums once, so that the Go side gets them. */
enum role role_names __attribute__((unused));
enum place place_names __attribute__((unused));

char LICENSE[] SEC("license") = "Dual BSD/GPL";
