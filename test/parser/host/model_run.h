/* SPDX-License-Identifier: Apache-2.0 */
/* What a run of the model is made of: its setting, the daemon's whims, the two phases. */
#ifndef MODEL_RUN_H
#define MODEL_RUN_H

static __u64 next_whim, whim_every;

static void random_lanes(int stage)
{
	struct ol_lanes *l = &the_policy.stage[stage];
	int i;

	l->nr = 0;
	while (!l->nr)
		for (i = 0; i < nr_cores; i++)
			if (one_in(2))
				l->cpu[l->nr++] = i;
	for (i = 0; i < (int)l->nr; i++)
		l->instead[i] = i;
}

/* The daemon changes single words of the policy at any time. */
static void whim(void)
{
	struct ol_lanes *l = &the_policy.stage[below(OL_NR_STAGES)];
	int core = below(nr_cores);

	switch (below(9)) {
	case 0:
		the_policy.flags ^= OL_F_RESTEER;
		break;
	case 1:
	case 2:
		the_policy.core_flags[core] = below(8);
		break;
	case 3: /* a lane leaves, or comes back */
		l->instead[below(l->nr)] = one_in(4) ? OL_LANE_LOCAL : below(l->nr);
		break;
	case 4:
		the_policy.busy[core] = below(1001);
		break;
	case 5: { /* a NIC's interrupt moves, when nothing of it is left behind */
		struct nic *n = &nics[below(nr_nics)];

		if (!n->polling && !n->gro.held.len && !n->gro.normal.len && idle_core(n->core))
			n->core = core;
		break;
	}
	default: /* flows pause */
		active = one_in(4) ? ~0u : 1 | ((__u32)rnd() & (__u32)rnd());
	}
}

static int sent_all(void)
{
	if (now_ns >= next_whim) {
		next_whim = now_ns + below(whim_every);
		whim();
	}
	return to_send <= 0 && !on_the_way();
}

static int gone(void)
{
	return !on_the_way() && to_send <= 0;
}

static __u64 pause_until;

static int paused(void)
{
	return now_ns >= pause_until;
}

static void run_setting(void)
{
	int i;

	nr_nics = 1 + below(MAX_NICS);
	for (i = 0; i < nr_nics; i++) {
		nics[i].napi.dev = &underlay;
		nics[i].core = below(nr_cores);
	}
	nr_flows = 1 + below(MAX_FLOWS);
	for (i = 0; i < nr_flows; i++) {
		flows[i].slot = i * 37;
		flows[i].nic = below(nr_nics);
		flows[i].held = one_in(3);
	}
	for (i = 0; i < nr_cores; i++) {
		struct core *c = &cores[i];

		c->sd.cpu = i;
		c->cell.napi.dev = &tunnel;
		c->sd.input_queue_head = c->sd.input_queue_tail = 0u - (__u32)below(5000);
		the_cpus[i].seq = the_cpus[i].nic_seq = the_cpus[i].lane_seq =
			the_cpus[i].backlog_seq = 0u - (__u32)below(2000);
		the_policy.core_flags[i] = 7;
	}
	for (i = 0; i < OL_NR_STAGES; i++)
		random_lanes(i);
	the_policy.rebalance_queue = 1 + below(64);
	the_policy.settle_us = 10000;
	the_policy.flags = one_in(2) ? OL_F_RESTEER : 0;

	opt.xdp = one_in(2);
	opt.lane_gro = one_in(2);
	opt.no_gro = one_in(4);
	opt.drop = one_in(2) ? 1000 : 0;
	opt.backlog_max = one_in(2) ? 1000 : 60;
	opt.ring_max = one_in(2) ? 2048 : 32;
	for (i = 0; i < nr_cores; i++)
		the_cpus[i].lane[OL_CLASS_BULK] = (__u64)make_ring(&cores[i]);
	opt.foreign = one_in(3) ? 0 : 10;
	chance.yield = 1 + below(12);
	chance.stall = one_in(3) ? 1000 : 50000;
	whim_every = one_in(2) ? 200000 : 2000000;
	chance.stall_max = one_in(2) ? 100000 : 5000000;
}

static void pause_for(__u64 ns)
{
	pause_until = now_ns + ns;
	run_cores(paused);
}

/*
 * Nothing is on the way and one stage may be steered: with OL_F_RESTEER a packet
 * wishes for another lane. A slot that sends a few, some time apart, has to get
 * one: neither drops nor idle cores nor a core that it left may block that.
 */
static void check_wishes(int stage)
{
	int i, round;

	for (i = 0; i < nr_cores; i++)
		the_policy.core_flags[i] = 1 << stage;
	for (i = 0; i < OL_MAX_LANES; i++)
		the_policy.stage[stage].instead[i] = i;
	the_policy.flags = OL_F_RESTEER;
	chance.stall_max = 1000;
	for (i = 0; i < nr_flows; i++) {
		__u32 before = changes[stage][flows[i].slot];

		active = 1u << i;
		for (round = 0; round < 24 && changes[stage][flows[i].slot] == before; round++) {
			to_send = 3;
			run_cores(gone);
			/* Longer than a slot settles, and at times than a lane is thought to be busy. */
			pause_for(round % 4 == 3 ? 250000000 : 12000000);
		}
		MUST(changes[stage][flows[i].slot] != before,
		     "%s stage: slot %u does not get another lane, though nothing of it is left",
		     stage_name[stage], flows[i].slot);
	}
}

int main(int argc, char **argv)
{
	int packets = argc > 2 ? atoi(argv[2]) : 20000, wishes = 1, i;

	rnd_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	start_cores(2 + below(MAX_CORES - 1));
	run_setting();
	ol_lane_map_id = 7;
	ol_nr_tunnels = OL_MAX_TUNNELS;
	for (i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "count"))
			strict = wishes = 0;
		else if (!strcmp(argv[i], "order"))
			wishes = 0;
		else if (!strcmp(argv[i], "share"))
			for (int f = 0; f < nr_flows; f++)
				flows[f].slot = flows[f / 2 * 2].slot;
		else if (!strcmp(argv[i], "tcx"))
			opt.xdp = 0;
		else if (!strcmp(argv[i], "xdp"))
			opt.xdp = 1;
		else
			FAIL("unknown option %s", argv[i]);
	}
	to_send = packets;
	run_cores(sent_all);
	for (i = opt.xdp ? OL_STAGE_NIC : OL_STAGE_TUNNEL; wishes && i < OL_NR_STAGES; i++)
		check_wishes(i);
	printf("%d packets, %d cores, %s: lane changes %llu, moves %llu %llu %llu, overtaken "
	       "%llu\n",
	       packets, nr_cores, opt.xdp ? "xdp" : "tcx", the_counters[OL_CNT_LANE_CHANGES],
	       moves[0], moves[1], moves[2], overtaken);
	return 0;
}

#endif
