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
	opt.netpoll = one_in(3) ? 50 : 0;
	chance.yield = 1 + below(12);
	chance.stall = one_in(3) ? 1000 : 50000;
	whim_every = one_in(2) ? 200000 : 2000000;
	chance.stall_max = one_in(2) ? 100000 : 5000000;
}

/* Two flows to a slot, which come to two cores. */
static void share_slots(void)
{
	int i;

	the_policy.flags = OL_F_RESTEER;
	nr_nics = 2;
	for (i = 0; i < nr_nics; i++) {
		nics[i].napi.dev = &underlay;
		nics[i].core = (nics[0].core + i) % nr_cores;
	}
	nr_flows += nr_flows & 1;
	for (i = 0; i < nr_flows; i++) {
		flows[i].slot = i / 2 * 37;
		flows[i].nic = i & 1;
	}
}

/* All NICs are polled on one core, and GRO holds packets of all flows. */
static void nics_together(void)
{
	int i;

	nr_nics = MAX_NICS;
	for (i = 0; i < nr_nics; i++) {
		nics[i].napi.dev = &underlay;
		nics[i].core = 0;
	}
	for (i = 0; i < nr_flows; i++) {
		flows[i].nic = i % nr_nics;
		flows[i].held = 1;
	}
	opt.xdp = 1;
	the_policy.flags = OL_F_RESTEER;
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

/* NICs on cores 0 and 3, lanes on cores 1 and 2, where there is nothing yet; core 1 is slow. */
static void one_slow_lane(void)
{
	static const __u16 core_of[OL_NR_STAGES] = {1, 1, 2};
	int i;

	nr_nics = 2;
	for (i = 0; i < nr_nics; i++) {
		nics[i].napi.dev = &underlay;
		nics[i].core = 3 * i;
	}
	for (i = 0; i < nr_flows; i++)
		flows[i].nic = i % nr_nics;
	for (i = 0; i < OL_NR_STAGES; i++) {
		the_policy.stage[i].nr = 1;
		the_policy.stage[i].cpu[0] = core_of[i];
		the_policy.stage[i].instead[0] = 0;
	}
	for (i = 0; i < nr_cores; i++)
		the_policy.core_flags[i] = 0;
	the_policy.flags = 0;
	opt.drop = 0;
	opt.turns = 1;
	chance.stall_max = 100000;
	/* All flows have been drained. */
	to_send = 2000;
	run_cores(gone);
	cores[1].slow = 5000;
}

/* Has a NIC been polled too seldom for its core to forget another one (OL_HOLDING_POLLS)? */
static int seldom_polled(void)
{
	int i;

	for (i = 0; i < nr_flows; i++)
		if (the_cpus[nics[flows[i].nic].core].holding.others[0] <= OL_HOLDING_POLLS)
			return 1;
	return 0;
}

/*
 * A NAPI that held packets is freed, and its memory says that it holds some for ever. Flows leave the
 * stock path all the same.
 */
static void check_freed(void)
{
	static struct napi_struct freed = {.dev = &underlay, .gro_bitmask = 1};
	int i;

	opt.xdp = 1;
	for (i = 0; i < nr_cores; i++) {
		the_cpus[i].holding.napi[0] = (__u64)&freed;
		the_cpus[i].holding.seen[0] = now_ns;
	}
	for (i = 0; i < nr_flows; i++)
		flows[i].held = 0;
	active = ~0u;
	for (i = 0; i < 3 || (i < 100 && seldom_polled()); i++) {
		to_send = 20000;
		run_cores(gone);
		pause_for(250000000);
	}
	check_wishes(OL_STAGE_NIC);
}

/*
 * Another core, which is done with NICs, let packets pass that were dropped on their way to the tunnel's
 * cell, or behind it: no poll of the cell, or of the core's backlog, tells that they are gone. Flows
 * leave the stock path all the same.
 */
static void check_dropped(void)
{
	struct ol_cpu *other = &the_cpus[2];
	struct ol_slot *s;
	int i;

	opt.xdp = 1;
	opt.no_gro = 0;
	for (i = 0; i < nr_nics; i++)
		nics[i].core = 0;
	the_policy.stage[OL_STAGE_NIC].nr = 1;
	the_policy.stage[OL_STAGE_NIC].cpu[0] = 1;
	for (i = 0; i < nr_cores; i++)
		the_policy.core_flags[i] = 0;
	to_send = 2000;
	run_cores(gone);
	for (i = 0; i < nr_flows; i++) {
		s = &the_slots[2 * OL_NR_STAGES * OL_SLOTS + flows[i].slot];
		s[OL_STAGE_NIC * OL_SLOTS].seq = other->seq;
		s[OL_STAGE_NIC * OL_SLOTS].at = now_ns >> OL_TICK_SHIFT;
		s[OL_STAGE_NIC * OL_SLOTS].used = 1;
		s[OL_STAGE_POD * OL_SLOTS] = s[OL_STAGE_NIC * OL_SLOTS];
		the_slots[OL_STAGE_NIC * OL_SLOTS + flows[i].slot].shared = 1;
	}
	ol_mark_add(&the_marks[2 * OL_MAX_TUNNELS], other->seq + 1, other->seq, now_ns);
	other->seq++;
	ol_mark_add(&other->polls, other->seq, other->seq, now_ns);
	other->softnet = 0;
	check_wishes(OL_STAGE_NIC);
}

static __u64 deadline;

/* What the cores of a flow, and of those that share its slot, are to send to lanes. */
static __u32 steered(int flow)
{
	__u32 flags = 0;
	int i;

	for (i = 0; i < nr_flows; i++)
		if (flows[i].slot == flows[flow].slot && flows[i].sent)
			flags |= the_policy.core_flags[nics[flows[i].nic].core];
	return flags;
}

/* Are all flows where the policy wants them, or is it too late? */
static int settled(void)
{
	int i, s, from = opt.xdp ? OL_STAGE_NIC : OL_STAGE_TUNNEL;

	for (s = from; s < OL_NR_STAGES; s++)
		for (i = 0; i < nr_flows; i++) {
			int out = last_lane[s][flows[i].slot] != OL_LANE_LOCAL;
			__u32 flags = steered(i);

			/* A pod's hop goes on from core 1 only. */
			if (s == OL_STAGE_POD && flags)
				flags = the_policy.core_flags[1];
			if (!flows[i].sent)
				continue;
			if (out != (int)(flags >> s & 1))
				return now_ns >= deadline;
		}
	return 1;
}

/*
 * Longer than another core counts as helped that no longer is (67 ms), than packets wait before they
 * are refused, and than two full queues take to go by.
 */
#define FLOOD_MOST_NS 200000000

static void flood_until_settled(const char *what)
{
	deadline = now_ns + FLOOD_MOST_NS;
	to_send = 1 << 30;
	run_cores(settled);
	MUST(now_ns < deadline, "%s: some flow is not where it is to be after %d ms of a flood",
	     what, FLOOD_MOST_NS / 1000000);
}

/*
 * More comes than a core handles: all flows get to their lanes, and drain, in bounded time. What
 * was dropped has been counted, nothing else is missing.
 */
static void check_flood(void)
{
	__u64 dropped = 0;
	int i, stage = opt.xdp ? OL_STAGE_NIC : OL_STAGE_TUNNEL;

	one_slow_lane();
	the_policy.core_flags[0] = the_policy.core_flags[3] = 1 << stage;
	/* As the daemon has it: a core of the tunnel stage sends pods' packets on. */
	if (!opt.xdp)
		the_policy.core_flags[1] = 1 << OL_STAGE_POD;
	flood_until_settled("out");
	pause_for(20000000);
	/*
	 * Others keep the lane full. A ring is to be empty, so all have to leave it, as they have
	 * when the pipeline is switched off.
	 */
	the_policy.core_flags[0] = 0;
	if (opt.xdp)
		the_policy.core_flags[3] = 0;
	flood_until_settled("drained");
	the_policy.core_flags[3] = 0;
	flood_until_settled("all drained");
	to_send = 0;
	pause_for(FLOOD_MOST_NS);
	for (i = 0; i < nr_flows; i++) {
		dropped += flows[i].dropped;
		MUST(flows[i].sent == flows[i].came + flows[i].dropped,
		     "flow %d: of %llu packets %llu came and %llu were dropped", i, flows[i].sent,
		     flows[i].came, flows[i].dropped);
	}
	MUST(dropped, "no lane was full");
}

/* Longer than flows are held before anything is done about it, and than it takes to come round to each. */
#define BUSY_MOST_NS 200000000

/*
 * Something is always in a lane, which has room: a flow that is to leave it does, and loses
 * nothing.
 */
static void check_busy(void)
{
	int i;

	opt.window = opt.xdp ? 4 : 10;
	opt.backlog_max = 1000;
	opt.ring_max = RING_MAX;
	for (i = 0; i < nr_cores; i++)
		make_ring(&cores[i]);
	one_slow_lane();
	cores[1].slow = 2000;
	the_policy.core_flags[0] = the_policy.core_flags[3] =
		1 << (opt.xdp ? OL_STAGE_NIC : OL_STAGE_TUNNEL);
	if (!opt.xdp)
		the_policy.core_flags[1] = 1 << OL_STAGE_POD;
	to_send = 1 << 30;
	pause_for(50000000);
	deadline = ~0ULL;
	/* No slot has to go to a lane: one of which its core always holds something waits for a pause. */
	for (i = 0; i < 3 && !settled(); i++) {
		to_send = 0;
		pause_for(20000000);
		to_send = 1 << 30;
		pause_for(50000000);
	}
	MUST(settled(), "some flow is not on its lanes after 50 ms, nor after pauses");
	/* As when the pipeline is switched off. */
	for (i = 0; i < nr_cores; i++)
		the_policy.core_flags[i] &= 1 << OL_STAGE_POD;
	pause_for(BUSY_MOST_NS);
	MUST(settled(), "some flow is not drained after %d ms", BUSY_MOST_NS / 1000000);
	for (i = 0; i < nr_flows; i++)
		MUST(!flows[i].dropped, "flow %d: %llu packets dropped, %llu for a change of lane",
		     i, flows[i].dropped, refused);
}

/* Of the cores whose flows share slots only one is helped: the others do not undo that. */
static void check_helped(void)
{
	__u32 before[OL_NR_STAGES][OL_SLOTS];
	int i, stage = opt.xdp ? OL_STAGE_NIC : OL_STAGE_TUNNEL;

	opt.window = 4;
	one_slow_lane();
	cores[1].slow = 0;
	the_policy.core_flags[0] = 1 << stage;
	to_send = 1 << 30;
	pause_for(BUSY_MOST_NS);
	memcpy(before, changes, sizeof(before));
	pause_for(BUSY_MOST_NS);
	for (i = 0; i < nr_flows; i++) {
		MUST(last_lane[stage][flows[i].slot] != OL_LANE_LOCAL, "slot %u is not on its lane",
		     flows[i].slot);
		MUST(changes[stage][flows[i].slot] == before[stage][flows[i].slot],
		     "slot %u goes to and fro: %u changes", flows[i].slot,
		     changes[stage][flows[i].slot] - before[stage][flows[i].slot]);
	}
	to_send = 0;
}

/*
 * A core whose flows are to leave lanes on all others stands still for a twentieth of the time, and
 * for no core that stands still for it.
 */
static void check_waits(void)
{
	__u64 begun = now_ns, stood = 0, until;
	int to;

	chance.yield = chance.stall = ~0ULL;
	for (this_core = 0; now_ns - begun < BUSY_MOST_NS; now_ns += 10000)
		for (to = 1; to < nr_cores; to++) {
			until = ol_await_until(&the_cpus[0], &the_cpus[to]);
			if (!until)
				continue;
			MUST(!ol_await_until(&the_cpus[to], &the_cpus[0]),
			     "two cores stand still for each other");
			stood += until - now_ns;
			now_ns = until;
		}
	MUST(stood && stood <= BUSY_MOST_NS / 20, "a core stands still for %llu of %d us",
	     stood / 1000, BUSY_MOST_NS / 1000);
}

/*
 * A pod's hop that has the hook's own core as its lane may lose the lane with packets in that core's backlog:
 * an earlier stage moves the hook to no other core before they are handled.
 */
static void check_own_lane(void)
{
	struct ol_lanes *pods = &the_policy.stage[OL_STAGE_POD];
	struct ol_cpu *cpu = &the_cpus[0];
	__u32 slot = 1;

	chance.yield = chance.stall = ~0ULL;
	pods->nr = 1;
	cpu->softnet = (__u64)&cores[0].sd;
	the_turns[OL_STAGE_POD * OL_SLOTS + slot].turn = ol_next_turn(0, 0);
	the_slots[OL_STAGE_POD * OL_SLOTS + slot] =
		(struct ol_slot){.seq = cpu->seq, .used = 1, .at = ol_tick()};
	ol_mark_add(&cpu->polls, cpu->seq + 1, cpu->seq, now_ns);
	cores[0].sd.input_queue_tail++;
	pods->cpu[0] = 0;
	MUST(!ol_pod_left(slot),
	     "the backlog of the lane that is the hook's core counts as handled");
	pods->cpu[0] = 1;
	MUST(ol_pod_left(slot), "a lane that is another core holds the hook on its core");
	pods->cpu[0] = 0;
	now_ns += 2 * OL_LANE_DONE_NS;
	MUST(ol_pod_left(slot), "what was sent long ago holds the hook on its core");
	now_ns -= 2 * OL_LANE_DONE_NS;
	cores[0].sd.input_queue_head++;
	MUST(ol_pod_left(slot), "an empty backlog counts as not handled");
}

/*
 * On a core whose lane's thread alone receives, and where nothing polls, a slot that has been on another
 * core meanwhile takes the lane that it has by now.
 */
static void check_batches(void)
{
	struct ol_cpu *here = &the_cpus[0], *there = &the_cpus[1];
	__u32 slot = 1, key = OL_STAGE_TUNNEL * OL_SLOTS + slot, lane;
	struct ol_lanes *lanes = &the_policy.stage[OL_STAGE_TUNNEL];
	struct ol_turn *turn = &the_turns[key];
	struct ol_hop h = {
		.policy = &the_policy,
		.lanes = lanes,
		.cpu = here,
		.stage = OL_STAGE_TUNNEL,
		.slot = slot,
		.tunnel = OL_NO_CELL,
	};

	chance.yield = chance.stall = ~0ULL;
	lanes->nr = 2;
	turn->turn = ol_next_turn(0, 0);
	the_slots[key] = (struct ol_slot){.seq = here->seq, .used = 1, .lane = 0, .turn = 1};
	lane = ol_steer(&h);
	MUST(lane == 0, "a batch is not decided for as one: lane %u", lane);
	/* Another core sends of the slot, to another lane, and is not done with it. */
	turn->turn = ol_next_turn(turn->turn, 1);
	the_slots[OL_NR_STAGES * OL_SLOTS + key] = (struct ol_slot){.seq = there->seq, .used = 1};
	the_slots[OL_NR_STAGES * OL_SLOTS + key].at = ol_tick();
	ol_lane_taken(ol_lane_map_id);
	lane = ol_steer(&h);
	MUST(lane == 1, "the next batch goes on where the last one did: lane %u", lane);
}

int main(int argc, char **argv)
{
	void (*instead)(void) = NULL;
	int packets = argc > 2 ? atoi(argv[2]) : 20000, wishes = 1, i;

	rnd_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	start_cores(argc > 3 && (!strcmp(argv[3], "flood") || !strcmp(argv[3], "busy") ||
				 !strcmp(argv[3], "helped") || !strcmp(argv[3], "waits") ||
				 !strcmp(argv[3], "dropped") || !strcmp(argv[3], "own-lane") ||
				 !strcmp(argv[3], "batches"))
			    ? MAX_CORES
			    : 2 + below(MAX_CORES - 1));
	run_setting();
	ol_lane_map_id = 7;
	ol_nr_tunnels = OL_MAX_TUNNELS;
	for (i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "count"))
			strict = wishes = 0;
		else if (!strcmp(argv[i], "order"))
			wishes = 0;
		else if (!strcmp(argv[i], "share"))
			share_slots();
		else if (!strcmp(argv[i], "tcx"))
			opt.xdp = 0;
		else if (!strcmp(argv[i], "xdp"))
			opt.xdp = 1;
		else if (!strcmp(argv[i], "together"))
			nics_together();
		else if (!strcmp(argv[i], "flood"))
			instead = check_flood;
		else if (!strcmp(argv[i], "busy"))
			instead = check_busy;
		else if (!strcmp(argv[i], "freed"))
			instead = check_freed;
		else if (!strcmp(argv[i], "helped"))
			instead = check_helped;
		else if (!strcmp(argv[i], "waits"))
			instead = check_waits;
		else if (!strcmp(argv[i], "dropped"))
			instead = check_dropped;
		else if (!strcmp(argv[i], "batches"))
			instead = check_batches;
		else if (!strcmp(argv[i], "own-lane"))
			instead = check_own_lane;
		else
			FAIL("unknown option %s", argv[i]);
	}
	if (instead) {
		instead();
		printf("lane changes %llu, refused %llu\n", the_counters[OL_CNT_LANE_CHANGES],
		       refused);
		return 0;
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
