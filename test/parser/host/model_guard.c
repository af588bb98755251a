// SPDX-License-Identifier: Apache-2.0
/*
 * The order guard at work: bpf/steer.h and bpf/trace.bpf.c as they are, on a
 * model of the receive path, with cores that interleave at random. In each run
 * lanes, loads, GRO, drops, stalls, what may be steered and by whom are chosen
 * by the seed, and change while it runs. What must hold:
 *
 *  - while a packet of a flow is on its way to or in a queue, the flow goes on in
 *    no other queue of that stage;
 *  - each flow is delivered in order;
 *  - once the packets of a slot are gone, its wish for another lane comes true, and before that
 *    where its lane is full.
 *
 * Arguments: seed, packets, and options of a run by name. Exit status 1: broken.
 *
 *   order     the first two only
 *   count     go on after a broken rule, and tell how many packets were overtaken
 *   share     two flows to a slot, also on two cores, which keep their order and leave their lane
 *   tcx, xdp  without or with the nic stage, instead of by chance
 *   flood     a lane is offered more than it handles, and flows are to get to theirs and drain
 *   freed     on each core a NIC's NAPI went that held packets
 *   dropped   on another core the flows' last packets were dropped before the tunnel's cell
 *   helped    one of two cores sends flows to lanes
 *   batches   a core where a lane's thread receives, and nothing polls
 *   own-lane  a pod's hop whose lane is the core of its hook
 *   waits     how long a core stands still for lanes
 *   busy      a lane is never empty, and never full: no packet is dropped for a change of lane
 */
/* The loader would set it. */
#define ol_nr_cpus ol_nr_cpus_unset
#include "config.h"
#undef ol_nr_cpus
#define ol_nr_cpus 4

#include "trace.bpf.c"

static struct ol_policy the_policy;

#include "model_path.h"

static struct ol_cpu the_cpus[MAX_CORES];
static struct ol_marks the_marks[MAX_CORES * OL_MAX_TUNNELS];
static struct ol_slot the_slots[MAX_CORES * OL_NR_STAGES * OL_SLOTS];
static struct ol_owner the_owners[OL_SLOTS];
static struct ol_change the_changes[MAX_CORES];
static struct ol_turn the_turns[OL_NR_STAGES * OL_SLOTS];
static __u64 the_counters[OL_NR_COUNTERS];
static struct net nets = {.ns.inum = 1};
static struct net_device underlay = {.ifindex = 1, .nd_net.net = &nets};
static struct net_device tunnel = {.ifindex = 2, .nd_net.net = &nets};
static struct net_device foreign = {.ifindex = 3, .nd_net.net = &nets};
static struct napi_struct other_nic = {.dev = &foreign};

void *model_lookup(const void *map, const void *key)
{
	static __u32 cell_of_tunnel = 0, cell_of_underlay = OL_MAX_TUNNELS;
	const struct ol_cell_key *cell = key;
	__u32 i = *(const __u32 *)key;

	model_step();
#define ENTRY(array) (i < sizeof(array) / sizeof((array)[0]) ? &(array)[i] : NULL)
	if (map == &ol_policies)
		return &the_policy;
	if (map == &ol_cpus)
		return ENTRY(the_cpus);
	if (map == &ol_cell_marks)
		return ENTRY(the_marks);
	if (map == &ol_slots)
		return ENTRY(the_slots);
	if (map == &ol_owners)
		return ENTRY(the_owners);
	if (map == &ol_turns)
		return ENTRY(the_turns);
	if (map == &ol_changes)
		return &the_changes[this_core];
	if (map == &ol_counters)
		return ENTRY(the_counters);
	if (map == &ol_cells)
		return cell->ifindex == 1   ? &cell_of_underlay
		       : cell->ifindex == 2 ? &cell_of_tunnel
					    : NULL;
	return NULL;
}

/* Which queue a flow's packets went to last: a core of a lane, or this one's own path. */
static int last_queue[OL_NR_STAGES][MAX_FLOWS];
static __u32 last_lane[OL_NR_STAGES][OL_SLOTS], changes[OL_NR_STAGES][OL_SLOTS];
static __u64 moves[OL_NR_STAGES], overtaken, refused;
static int strict = 1, to_send;
static __u32 active = ~0u; /* flows that send at present */

static const char *stage_name[] = {"nic", "tunnel", "pod"};

static void look_in(const struct list *l, int flow, const char *name, int core)
{
	const struct pkt *p = l->head;
	int n = 0, i;

	for (i = 0; i < l->len; i++, p = p->next)
		n += p->flow == flow;
	if (n)
		fprintf(stderr, "core %d: %d of the flow's packets in the %s\n", core, n, name);
}

/* Where are a flow's packets? What a function has in its hands is not found. */
static void tell_where(int flow)
{
	int i, j;

	for (i = 0; i < nr_cores; i++) {
		struct core *c = &cores[i];

		for (j = 0; j < nr_cores; j++)
			look_in(&c->bulk[j], flow, "bulk for a lane", i);
		look_in(&c->ring, flow, "lane's ring", i);
		look_in(&c->got, flow, "hands of the lane's thread", i);
		look_in(&c->lane_gro.held, flow, "lane's GRO", i);
		look_in(&c->lane_gro.normal, flow, "lane's next batch", i);
		look_in(&c->cell_queue, flow, "tunnel's cell", i);
		look_in(&c->cell_gro.held, flow, "cell's GRO", i);
		look_in(&c->cell_gro.normal, flow, "cell's next batch", i);
		look_in(&c->backlog, flow, "backlog", i);
	}
	for (i = 0; i < nr_nics; i++) {
		look_in(&nics[i].gro.held, flow, "NIC's GRO", nics[i].core);
		look_in(&nics[i].gro.normal, flow, "NIC's next batch", nics[i].core);
	}
}

static __u32 steer(int stage, struct pkt *p)
{
	struct flow *f = &flows[p->flow];
	struct ol_hop h = {
		.policy = &the_policy,
		.lanes = &the_policy.stage[stage],
		.cpu = &the_cpus[this_core],
		.this_cpu = this_core,
		.stage = stage,
		.slot = f->slot,
		.tunnel = stage == OL_STAGE_POD || opt.no_gro ? OL_NO_CELL : 0,
	};
	__u32 lane = ol_steer(&h);
	int queue = lane < OL_MAX_LANES ? the_policy.stage[stage].cpu[lane] : this_core;

	if (lane == OL_LANE_REFUSED) {
		refused++;
		return lane;
	}
	/* A pod's packet waits in a backlog in either case; else a lane is a queue of its own. */
	if (stage != OL_STAGE_POD && lane >= OL_MAX_LANES)
		queue += MAX_CORES;
	if (last_queue[stage][p->flow] != queue + 1) {
		moves[stage]++;
		if (strict && f->inflight[stage])
			tell_where(p->flow);
		MUST(!strict || !f->inflight[stage],
		     "%s stage: flow %d goes on in queue %d while %d packets of it are in %d, at "
		     "%llu ns",
		     stage_name[stage], p->flow, queue, f->inflight[stage],
		     last_queue[stage][p->flow] - 1, (__u64)now_ns);
		last_queue[stage][p->flow] = queue + 1;
	}
	changes[stage][f->slot] += last_lane[stage][f->slot] != lane;
	last_lane[stage][f->slot] = lane;
	f->inflight[stage]++;
	/* Whatever writes to the log here may have netpoll poll a device, with no budget. */
	if (opt.netpoll && one_in(opt.netpoll))
		ol_napi_poll(&other_nic, 0, 0);
	return lane;
}

static void left(int stage, struct pkt *p)
{
	if (stage == OL_STAGE_NIC && !opt.xdp)
		return;
	MUST(--flows[p->flow].inflight[stage] >= 0, "the model itself is wrong");
}

static void deliver(struct pkt *p)
{
	struct flow *f = &flows[p->flow];

	left(OL_STAGE_POD, p);
	if (p->nr < f->delivered) {
		overtaken++;
		MUST(!strict, "flow %d: packet %llu comes after %llu", p->flow, p->nr,
		     f->delivered);
	}
	f->came++;
	f->delivered = p->nr > f->delivered ? p->nr : f->delivered;
	free(p);
}

/* The flow's packets that are anywhere between NIC and socket. */
static int on_the_way(void)
{
	int i, s, n = 0;

	for (i = 0; i < nr_flows; i++)
		for (s = 0; s < OL_NR_STAGES; s++)
			n += flows[i].inflight[s];
	return n;
}

static int may_send(const struct flow *f)
{
	return !opt.window || (int)(f->sent - f->came - f->dropped) < opt.window;
}

static void poll_nic(struct nic *n)
{
	int work = one_in(3) ? BUDGET : (int)below(BUDGET), i;
	struct pkt *p;

	n->polling = 1;
	for (i = 0; i < work && to_send > 0; i++) {
		int flow = below(nr_flows), tries = nr_flows;

		while (tries-- && !(&nics[flows[flow].nic] == n && active >> flow & 1 &&
				    may_send(&flows[flow])))
			flow = (flow + 1) % nr_flows;
		if (tries < 0)
			break;
		p = calloc(1, sizeof(*p));
		p->flow = flow;
		p->nr = ++flows[flow].sent;
		to_send--;
		nic_receive(n, p);
	}
	xdp_flush();
	gro_poll_end(&n->gro, &n->napi, i, underlay_receive);
	n->polling = 0;
}

static int idle_core(int core)
{
	struct core *c = &cores[core];
	int i, n = c->backlog.len + c->cell_queue.len + c->ring.len + c->busy;

	n += c->cell_gro.held.len + c->cell_gro.normal.len + c->lane_gro.held.len +
	     c->lane_gro.normal.len;
	for (i = 0; i < nr_cores; i++)
		n += c->bulk[i].len;
	return !n;
}

/* One poll of something that has work on this core; 0: nothing has. */
static int poll_something(int lanes)
{
	struct core *c = &cores[this_core];
	int start = opt.turns ? c->turn : (int)below(5), i, j;

	for (i = 0; i < 5; i++) {
		c->turn = (start + i + 1) % 5;
		switch ((start + i) % 5) {
		case 0:
			for (j = 0; j < nr_nics; j++) {
				struct nic *n = &nics[(start + j) % nr_nics];

				if (n->core == this_core && !n->polling &&
				    (to_send > 0 || n->gro.again || n->gro.held.len)) {
					poll_nic(n);
					return 1;
				}
			}
			break;
		case 1:
			if (c->cell_queue.len || c->cell_gro.again || c->cell_gro.held.len) {
				poll_cell();
				return 1;
			}
			break;
		case 2:
			if (c->backlog.len || c->backlog_again) {
				poll_backlog();
				return 1;
			}
			break;
		case 3:
			if (lanes && !c->in_lane &&
			    (c->ring.len || c->lane_gro.held.len || c->lane_gro.normal.len)) {
				run_lane();
				return 1;
			}
			break;
		case 4:
			if (opt.foreign && one_in(opt.foreign)) {
				poll_ended(&other_nic, below(BUDGET + 1));
				return 1;
			}
		}
	}
	return 0;
}

static void softirq(void)
{
	poll_something(0);
}

static void core_main(int core)
{
	for (;;) {
		int busy;

		cores[core].busy = 1;
		busy = poll_something(1);
		cores[core].busy = 0;
		if (!busy || one_in(8))
			sleep_for(below(50000));
		else
			model_step();
	}
}

#include "model_run.h"
