/* SPDX-License-Identifier: Apache-2.0 */
/* What the model is made of: packets, the lists that they wait in, flows, NICs, cores. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include "model_sched.h"

#define BUDGET 64
#define MAX_NICS 2
#define MAX_FLOWS 24
#define NORMAL_BATCH 8 /* gro_normal_batch */
#define LANE_BATCH 8   /* CPUMAP_BATCH */

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
	__u64 sent, delivered, dropped;
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
	struct list ring;	     /* of this core's lane */
	struct list got;	     /* what the lane's thread has taken from it */
	struct gro lane_gro;
	int lane_packets, in_lane;
	int backlog_again; /* as in struct gro */
	int busy;	   /* has packets in its hands */
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
	__u64 foreign; /* one turn in so many is a poll of somebody else's device; 0: none */
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
