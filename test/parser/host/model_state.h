/* SPDX-License-Identifier: Apache-2.0 */
/* What the model is made of: packets, the lists that they wait in, flows, NICs, cores. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model_sched.h"

#define BUDGET 64
#define MAX_NICS 2
#define MAX_FLOWS 24
#define NORMAL_BATCH 8 /* gro_normal_batch */
#define RING_MAX 2048
#define LANE_BATCH 8  /* CPUMAP_BATCH */
#define RING_BATCH 16 /* of struct ptr_ring, as a rule: a cache line of places, doubled */

struct pkt {
	struct pkt *next;
	__u64 nr; /* in its flow */
	int flow;
	int hop;    /* OL_STAGE_TUNNEL: to be bridged; OL_STAGE_POD: to be delivered */
	__u32 lane; /* of the hop before it */
};

struct list {
	struct pkt *head, **tail;
	int len;
};

/* A GRO engine: what it holds for merging, and what it will pass up in one go. */
struct gro {
	struct list held, normal;
	int again; /* its poll used up the budget: the next follows, with work or without */
};

struct flow {
	__u32 slot;
	int nic;
	int held; /* GRO may hold its packets, as it does with TCP */
	__u64 sent, delivered, came, dropped;
	int inflight[OL_NR_STAGES];
};

struct nic {
	struct napi_struct napi;
	struct gro gro;
	int core, polling;
};

struct core {
	struct softnet_data sd;
	struct list backlog;
	struct gro_cell cell;
	struct list cell_queue;
	struct gro cell_gro;
	struct list bulk[MAX_CORES]; /* frames for lanes, until the poll ends */
	struct list ring;	     /* of this core's lane ... */
	int filled;		     /* a core is at it */
	struct ptr_ring places;	     /* ... and its places, as the guard reads them */
	void *in_place[RING_MAX];
	struct task_struct thread;
	struct bpf_cpu_map_entry lane;
	struct list got; /* what the lane's thread has taken from it */
	struct gro lane_gro;
	int lane_packets, in_lane;
	int backlog_again; /* as in struct gro */
	int turn;	   /* whose it is, with opt.turns */
	int busy;	   /* has packets in its hands */
	__u64 slow;	   /* ns more for each packet of its backlog, or of its lane */
};

static struct flow flows[MAX_FLOWS];
static struct nic nics[MAX_NICS];
static struct core cores[MAX_CORES];
static int nr_flows, nr_nics;

/* Options of a run. */
static struct {
	int xdp, lane_gro, no_gro;
	int backlog_max, ring_max;
	__u64 drop;    /* one packet in so many vanishes at each hop; 0: none */
	__u64 foreign; /* one turn in so many is a poll of a foreign device; 0: none */
	__u64 netpoll; /* one decision in so many is followed by a poll without a budget; 0: none */
	int turns;     /* what has work is polled in turn, as net_rx_action() does */
	int window;    /* packets of a flow that may be on their way; 0: any number */
} opt;

static void put(struct list *l, struct pkt *p)
{
	if (!l->head)
		l->tail = &l->head;
	p->next = NULL;
	*l->tail = p;
	l->tail = &p->next;
	l->len++;
}

static struct pkt *take(struct list *l)
{
	struct pkt *p = l->head;

	if (p) {
		l->head = p->next;
		l->len--;
	}
	return p;
}

/* Asked for by a lane's thread alone. */
__u64 model_task(void)
{
	return (__u64)&cores[model_this_cpu()].thread;
}

/* The rings of lanes, <linux/ptr_ring.h>. */
static struct bpf_cpu_map_entry *make_ring(struct core *c)
{
	c->places.size = opt.ring_max;
	c->places.batch = RING_BATCH > opt.ring_max / 2 ? 1 : RING_BATCH;
	c->places.queue = c->in_place;

	c->lane.queue = &c->places;
	c->lane.kthread = &c->thread;
	return &c->lane;
}

static int ring_full(const struct core *c)
{
	return c->in_place[c->places.producer] != NULL;
}

static void put_in_ring(struct core *c, struct pkt *p)
{
	put(&c->ring, p);
	c->in_place[c->places.producer] = p;
	model_step();
	c->places.producer = (c->places.producer + 1) % c->places.size;
}

static struct pkt *take_from_ring(struct core *c)
{
	struct pkt *p = take(&c->ring);
	int next = c->places.consumer_head + 1, i;

	if (!p)
		return NULL;
	/* Places are given back some at a time, before the head moves on. */
	if (next - c->places.consumer_tail >= c->places.batch || next >= c->places.size) {
		for (i = next - 1; i >= c->places.consumer_tail; i--)
			c->in_place[i] = NULL;
		c->places.consumer_tail = next;
	}
	if (next >= c->places.size)
		next = c->places.consumer_tail = 0;
	model_step();
	c->places.consumer_head = next;
	return p;
}

static void lose(struct pkt *p)
{
	flows[p->flow].dropped++;
	free(p);
}

static int lost(void)
{
	return opt.drop && one_in(opt.drop);
}

#endif
