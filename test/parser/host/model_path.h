/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's receive path as far as order depends on it (net/core/dev.c,
 * gro.c, gro_cells.c, kernel/bpf/cpumap.c): a NIC's NAPI with GRO and, before
 * it, XDP with cpumap lanes; the tunnel's GRO cell; RPS; the per-core backlog,
 * which tunnel and pod hops share; the pod's socket.
 */
#ifndef MODEL_PATH_H
#define MODEL_PATH_H

#include "model_state.h"

/* What the hooks and the checks do, in model_guard.c. */
static __u32 steer(int stage, struct pkt *p);
static void left(int stage, struct pkt *p);
static void deliver(struct pkt *p);

static void poll_ended(struct napi_struct *napi, int work)
{
	model_step();
	ol_napi_poll(napi, work, BUDGET);
	model_step();
}

/* enqueue_to_backlog() */
static void to_backlog(int core, struct pkt *p, int stage)
{
	struct core *c = &cores[core];

	model_step();
	if (c->backlog.len >= opt.backlog_max) {
		c->sd.dropped.counter++;
		left(stage, p);
		lose(p);
		return;
	}
	p->hop = stage;
	put(&c->backlog, p);
	c->sd.input_queue_tail++;
	model_step();
}

/* Bridge and the host end of the veth, with the egress hook: the pod's hop. */
static void bridge(struct pkt *p)
{
	int flow = p->flow;
	__u32 lane;

	model_step();
	if (lost()) {
		lose(p);
	} else {
		lane = steer(OL_STAGE_POD, p);
		if (lane == OL_LANE_REFUSED)
			lose(p);
		else
			to_backlog(lane < OL_MAX_LANES ? the_policy.stage[OL_STAGE_POD].cpu[lane]
						       : this_core,
				   p, OL_STAGE_POD);
	}
	/* Only now has it left its tunnel lane. */
	flows[flow].inflight[OL_STAGE_TUNNEL]--;
}

/* The tunnel's device receives: RPS by the hash that the underlay's hook set. */
static void tunnel_receive(struct list *l)
{
	struct list here = {0};
	struct pkt *p;

	/* netif_receive_skb_list_internal(): RPS first, then what stays. */
	while ((p = take(l))) {
		left(OL_STAGE_NIC, p);
		if (p->lane < OL_MAX_LANES)
			to_backlog(the_policy.stage[OL_STAGE_TUNNEL].cpu[p->lane], p,
				   OL_STAGE_TUNNEL);
		else if (opt.no_gro) /* netif_rx() */
			to_backlog(this_core, p, OL_STAGE_TUNNEL);
		else
			put(&here, p);
	}
	while ((p = take(&here)))
		bridge(p);
}

/* The underlay receives a list: its hook for all, then the stack for each. */
static void underlay_receive(struct list *l)
{
	struct core *c = &cores[this_core];
	struct list after = {0}, one = {0};
	struct pkt *p;

	while ((p = take(l))) {
		p->lane = steer(OL_STAGE_TUNNEL, p);
		if (p->lane == OL_LANE_REFUSED) {
			left(OL_STAGE_NIC, p);
			lose(p);
		} else {
			put(&after, p);
		}
	}
	while ((p = take(&after))) {
		model_step();
		if (lost() || c->cell_queue.len > opt.backlog_max) {
			left(OL_STAGE_NIC, p);
			left(OL_STAGE_TUNNEL, p);
			lose(p);
		} else if (opt.no_gro) {
			put(&one, p);
			tunnel_receive(&one);
		} else {
			put(&c->cell_queue, p);
			c->cell.napi_skbs.qlen = c->cell_queue.len;
		}
	}
}

/* gro_normal_list() */
static void pass_up(struct gro *g, void (*receive)(struct list *))
{
	struct list l = g->normal;

	g->normal = (struct list){0};
	if (l.len)
		receive(&l);
}

static void gro_receive(struct gro *g, struct pkt *p, void (*receive)(struct list *))
{
	if (flows[p->flow].held) {
		put(&g->held, p);
		return;
	}
	put(&g->normal, p);
	if (g->normal.len >= NORMAL_BATCH)
		pass_up(g, receive);
}

/* napi_gro_flush(): all, or the packets of some flows. */
static void gro_flush(struct gro *g, int all, void (*receive)(struct list *))
{
	struct list held = g->held, keep = {0};
	__u64 which = all ? ~0ULL : rnd();
	struct pkt *p;

	g->held = (struct list){0};
	while ((p = take(&held))) {
		if (!(which >> p->flow & 1)) {
			put(&keep, p);
			continue;
		}
		put(&g->normal, p);
		if (g->normal.len >= NORMAL_BATCH)
			pass_up(g, receive);
	}
	/* Only what was held before is kept: no other poll has this engine. */
	MUST(!g->held.len, "a GRO engine was used by two");
	while ((p = take(&keep)))
		put(&g->held, p);
}

/* The end of a poll, __napi_poll(): a full one goes on behind the tracepoint. */
static void gro_poll_end(struct gro *g, struct napi_struct *napi, int work,
			 void (*receive)(struct list *))
{
	g->again = work >= BUDGET;
	if (!g->again) {
		gro_flush(g, 1, receive);
		pass_up(g, receive);
		napi->gro_bitmask = 0;
		poll_ended(napi, work);
		return;
	}
	napi->gro_bitmask = g->held.len != 0;
	poll_ended(napi, work);
	gro_flush(g, 0, receive);
	pass_up(g, receive);
	napi->gro_bitmask = g->held.len != 0;
}

/* bq_flush_to_queue() */
static void flush_bulk(int core)
{
	struct list *bulk = &cores[this_core].bulk[core];
	unsigned int processed = 0, drops = 0;
	struct pkt *p;

	if (!bulk->len)
		return;
	/* The ring's producer_lock. */
	while (cores[core].filled)
		sleep_for(100);
	cores[core].filled = 1;
	model_step();
	while ((p = take(bulk))) {
		processed++; /* dropped ones, too */
		if (ring_full(&cores[core])) {
			drops++;
			left(OL_STAGE_NIC, p);
			lose(p);
		} else {
			put_in_ring(&cores[core], p);
		}
	}
	cores[core].filled = 0;
	model_step();
	cores[core].thread.__state = 0;
	ol_lane_enqueue(ol_lane_map_id, processed, drops, core);
}

static void xdp_flush(void)
{
	int i;

	for (i = 0; i < nr_cores; i++)
		flush_bulk(i);
}

static void nic_receive(struct nic *n, struct pkt *p)
{
	__u32 lane = opt.xdp ? steer(OL_STAGE_NIC, p) : OL_LANE_LOCAL;
	int core;

	if (lane == OL_LANE_REFUSED) {
		lose(p);
		return;
	}
	if (lane >= OL_MAX_LANES) {
		gro_receive(&n->gro, p, underlay_receive);
		return;
	}
	core = the_policy.stage[OL_STAGE_NIC].cpu[lane];
	put(&cores[this_core].bulk[core], p);
	if (cores[this_core].bulk[core].len >= LANE_BATCH)
		flush_bulk(core);
}

static void poll_cell(void)
{
	struct core *c = &cores[this_core];
	struct pkt *p;
	int work = 0;

	while (work < BUDGET && (p = take(&c->cell_queue))) {
		c->cell.napi_skbs.qlen = c->cell_queue.len;
		gro_receive(&c->cell_gro, p, tunnel_receive);
		work++;
	}
	gro_poll_end(&c->cell_gro, &c->cell.napi, work, tunnel_receive);
}

/* process_backlog() */
static void poll_backlog(void)
{
	struct core *c = &cores[this_core];
	struct pkt *p;
	int work = 0;

	while (work < BUDGET && (p = take(&c->backlog))) {
		model_step();
		if (c->slow)
			sleep_for(c->slow);
		if (p->hop == OL_STAGE_TUNNEL)
			bridge(p);
		else
			deliver(p);
		work++;
	}
	/* Not before, as in the kernel: hooks that this poll runs see themselves in the queue. */
	c->sd.input_queue_head += work;
	c->backlog_again = work >= BUDGET;
	poll_ended(&c->sd.backlog, work);
}

static void softirq(void);

/* One round of cpu_map_kthread_run(). */
static void run_lane(void)
{
	struct core *c = &cores[this_core];
	struct pkt *p;
	int n = 0;

	c->in_lane = 1;
	c->thread.__state = 0;
	while (n < LANE_BATCH && (p = take_from_ring(c))) {
		put(&c->got, p);
		n++;
	}
	/* A task with interrupts open, up to local_bh_disable(). */
	if (one_in(4))
		softirq();
	model_step();
	ol_lane_taken(ol_lane_map_id);
	model_step();
	if (c->slow)
		sleep_for(n * c->slow);
	if (!opt.lane_gro) {
		underlay_receive(&c->got);
	} else {
		int empty;

		while ((p = take(&c->got)))
			gro_receive(&c->lane_gro, p, underlay_receive);
		c->lane_packets += n;
		model_step();
		empty = !c->ring.len;
		if (c->lane_packets >= BUDGET || empty) {
			gro_flush(&c->lane_gro, empty, underlay_receive);
			pass_up(&c->lane_gro, underlay_receive);
			c->lane_packets = 0;
		}
	}
	c->in_lane = 0;
	/* It looks again once it is marked as asleep, and the core that fills the ring wakes it. */
	c->thread.__state = OL_TASK_INTERRUPTIBLE;
	model_step();
	if (c->ring.len)
		c->thread.__state = 0;
}

#endif
