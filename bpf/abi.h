/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the kernel side and the daemon share: limits, enums, structs, map
 * names. The daemon gets all of it through `bpf2go -type`; nothing here is
 * typed a second time.
 */
#ifndef OVERLANE_ABI_H
#define OVERLANE_ABI_H

#ifdef HOST_TEST
#include <linux/types.h>
#endif

#define OL_LANE_LOCAL 0xff     /* no hop: stay on the core that runs the hook */
#define OL_LANE_EXPRESS 0xfe   /* no hop either: from the NIC straight to the pod */
#define OL_LANE_REFUSED 0xfd   /* a verdict only: the packet is dropped */
#define OL_NO_PORT 0xffff      /* of a pod: none yet */
#define OL_VNI_ANY 0xffffffffU /* a tunnel that takes every VNI (collect metadata) */

enum ol_limit {
	OL_MAX_CPUS = 512,   /* per-core arrays are sized to the machine at load */
	OL_MAX_LANES = 64,   /* lanes of one stage */
	OL_MAX_TUNNELS = 16, /* tunnels steered at a time; further ones take the stock path */
	OL_SLOTS = 4096,     /* flows are steered by slot, as RFS does */
	/*
	 * 2^7 * 9 * 5 * 7 * 11 * 13: of the hashes of a flow for one lane and another the difference is a
	 * multiple of it. A program that chooses one of n sockets by hash modulo n chooses the same, for each
	 * n to 16 and many more.
	 */
	OL_HASH_STEP = 5765760,
	OL_FRAGS = 1024, /* fragmented inner datagrams, remembered per core */
	OL_TAG = 0x8000, /* skb->tc_index: "slot number follows", or that of a packet */
	OL_TAG_NUMBERS = 0x8000,
	OL_TAG_LATENCY = 0x4000, /* the same: of the latency class */
	OL_TAG_HASH = 0x1000,	 /* its hash is ours; "branch plus one follows", or 0 */
	OL_TAG_BRANCH = 0xf,
	OL_TAG_MERGED = 0x2000, /* "place among the merging follows", behind a resequencer */
	OL_MAX_RULES = 4096,	/* priority rules, each of up to four keys */
	OL_MAX_SHAPES = 32,	/* sets of fields that rules look at */
	OL_SPARSE = 2048,	/* flows that no rule fits, watched per core */
	OL_SHORTCUTS = 4096,	/* pods, and senders to them */
	OL_ELEPHANTS = 256,	/* flows watched for whether to split them, per core */
	OL_BRANCHES = 8,	/* lanes that a flow is split over, at most */
	OL_ALL_BRANCHES = OL_BRANCHES + 1, /* and the core that polls */
	OL_SETS = 64,			   /* of branches; the first has none */
	OL_MERGES = 32,			   /* flows that are put in order again at a time */
	OL_RESEQUENCERS = 64,		   /* devices where that is done */
	OL_MERGE_DEPTH = 1024,		   /* packets of a flow that wait there for each branch */
	OL_CUTS = 512,			   /* runs of a flow that are under way, counted apart */
	OL_MERGE_READY = 1024,		   /* packets that may go at a time, at each of them */
	OL_PORTS = 1024,		   /* pods that frames go to straight from the NIC */
	OL_SENDERS = 4096,		   /* hosts and pods that send to them */
	OL_WATCHDOG_MS = 2000,		   /* without a heartbeat after which flows drain */
	OL_JOINED_MS = 200, /* after which what has not come out of a resequencer is lost */
	OL_HEADLESS_ENOUGH =
		256, /* frames without headers in their first buffer that tell of the NIC */
	OL_MERGING_GONE_MS = 10000, /* unseen for so long, a flow has no place there any more */
};

/* How a flow is treated. More may follow: append only. */
enum ol_class {
	OL_CLASS_BULK,
	OL_CLASS_LATENCY,
	OL_NR_CLASSES,
};

/* Fields that a shape looks at. */
enum ol_field {
	OL_FIELD_PROTO = 1,
	OL_FIELD_SRC_PORT = 2,
	OL_FIELD_DST_PORT = 4,
	OL_FIELD_SRC_ADDR = 8,
	OL_FIELD_DST_ADDR = 16,
	OL_FIELD_VNI = 32,
	OL_FIELD_DSCP = 64,
	OL_FIELD_TUNNEL = 128, /* in a tunnel */
	OL_FIELD_HOST = 256,   /* in none */
};

/*
 * A set of fields, with the mask of an address. All rules of one shape are found
 * by one look-up, however many they are.
 */
struct ol_shape {
	__u32 mask[4]; /* network byte order */
	__u16 fields;
	__u8 v6; /* the family that the mask is for */
	__u8 pad;
};

struct ol_shapes {
	__u32 nr;
	__u32 host; /* flows in no tunnel have a class, too */
	struct ol_shape shape[OL_MAX_SHAPES];
};

/* What a shape picks from a flow; ports and addresses in network byte order. */
struct ol_rule_key {
	__u32 addr[4];
	__u32 vni;
	__u16 port;
	__u8 table; /* one of two: rules are replaced as a whole */
	__u8 shape;
	__u8 proto;
	__u8 dscp;
	__u16 pad;
};

/* The rule that a key leads to: its place in the list, from 0, and its class. */
struct ol_rule {
	__u32 at;
	__u32 class;
};

/* A hop of the receive path after which work may go on on another core. */
enum ol_stage {
	OL_STAGE_NIC,
	OL_STAGE_TUNNEL,
	OL_STAGE_POD,
	OL_NR_STAGES,
};

enum ol_tunnel_kind {
	OL_KIND_VXLAN = 1,
	OL_KIND_GENEVE,
};

/* Why a packet took the stock path, or that it did not (OL_OK). Order is ABI: append only. */
enum ol_reason {
	OL_OK,
	OL_NOT_OVERLAY,	       /* not for one of our tunnels: of no concern */
	OL_SHORT,	       /* a header does not fit into the frame */
	OL_OUTER_VLAN,	       /* tagged on the wire */
	OL_OUTER_OPTIONS,      /* outer IPv4 options */
	OL_OUTER_FRAGMENT,     /* outer fragment */
	OL_OUTER_EXTENSION,    /* outer IPv6 extension header */
	OL_BAD_LENGTH,	       /* a length field contradicts its frame or header */
	OL_BAD_TUNNEL_HEADER,  /* reserved bits, version, no VNI, critical option */
	OL_INNER_NOT_IP,       /* ARP and the like */
	OL_INNER_EXTENSION,    /* inner IPv6 extension header that is not read */
	OL_INNER_MULTICAST,    /* inner broadcast or multicast frame */
	OL_FRAGMENT_UNTRACKED, /* later fragment of a datagram whose first fragment was not seen */
	OL_HEADLESS,	       /* XDP: the driver puts headers into another buffer than the first */
	OL_UNFINISHED,	       /* XDP: the sender has left the checksum to the receiver */
	OL_NR_REASONS,
};

enum ol_counter {
	OL_CNT_OVERLAY,	     /* packets for our tunnels, in frames as on the wire */
	OL_CNT_STEERED,	     /* of these, sent to a lane at any stage */
	OL_CNT_POD,	     /* packets that reached a pod's device from a tunnel */
	OL_CNT_POD_STEERED,  /* of these, sent to a lane of the pod stage */
	OL_CNT_LANE_CHANGES, /* a flow slot went on on another lane, drained before */
	OL_CNT_LANE_HELD,    /* a wish to change that waits for the old lane to drain, per poll */
	OL_CNT_ADOPTED,	     /* a flow slot came to a core after another one had sent of it */
	OL_CNT_XDP_OVERLAY,  /* frames for our tunnels, as XDP saw them */
	OL_CNT_XDP_LANE,     /* of these, sent to a cpumap lane */
	OL_CNT_XDP_DROP,     /* frames that a cpumap lane was sent, and lost */
	OL_CNT_SPLIT,	     /* frames of flows that were split when they came */
	OL_CNT_MICROFLOWS,   /* runs that these were cut into */
	OL_CNT_SPLIT_BEGUN,  /* times that a flow began to be split ... */
	OL_CNT_SPLIT_ENDED,  /* ... and was whole again */
	OL_CNT_NO_ROOM, /* datagrams that were dropped: the merge would have no room for them */
	OL_CNT_EXPRESS, /* frames handed from the NIC straight to a pod ... */
	OL_CNT_EXPRESS_DROP, /* ... that did not arrive there */
	OL_CNT_EXPRESS_LEFT, /* times that a flow left that path before it was seen empty */
	OL_CNT_UNREAD,	     /* datagrams for which a UDP socket had no room, while it is counted */
	OL_CNT_REFUSED, /* packets dropped for their flow to leave a full lane, as on the wire */
	OL_CNT_MERGED_LOST, /* dropped behind a resequencer: where to is not known any more */
	OL_NR_COUNTERS,
};

/* ol_policy.flags */
enum ol_flag {
	OL_F_RESTEER = 1, /* tests: wish for another lane with every poll */
	OL_F_NEUTRAL = 2, /* RPS masks are overlane's: what is not steered gets hash 0 */
	OL_F_EXPRESS = 4, /* frames may go straight to pods */
	OL_F_APART = 8,	  /* GRO joins datagrams, which bulk lanes are to keep apart */
	OL_F_EXPRESS_HELD =
		16, /* flows are to leave their entries in order, and none to take one */
};

/* A tunnel whose packets are steered; its place in the policy is its index. */
struct ol_tunnel {
	__u32 vni;
	__u16 port;  /* host byte order */
	__u8 kind;   /* enum ol_tunnel_kind; 0: no tunnel here */
	__u8 no_gro; /* no packet passes the device's GRO: no NAPI poll between underlay and RPS */
	__u8 outer;  /* outer IP version that it takes, or 0 for both */
	__u8 pad[3];
};

/* The lanes of a stage: cores in the order in which the kernel's RPS map holds them. */
struct ol_lanes {
	__u32 nr;
	__u16 cpu[OL_MAX_LANES];
	__u8 instead[OL_MAX_LANES]; /* itself, or the lane for the flows of one that leaves */
	__u32 hash[OL_MAX_LANES]; /* a multiple of OL_HASH_STEP, not 0, that RPS maps to the lane */
	__u32 steps;		  /* so many more behind each of these are the lane's, too */
};

/* The branches of what some cores poll of elephants; no lane is in two sets. */
struct ol_set {
	__u8 nr;		/* none: flows stay whole */
	__u8 behind;		/* the pod stage's lane on which flows go on behind the merge */
	__u8 lane[OL_BRANCHES]; /* of the stage whose lanes are the branches */
};

/*
 * One entry, written by the daemon. Lanes change only while no core steers, sets of branches
 * while nothing is split; the rest are single words that may change at any time.
 */
struct ol_policy {
	__u32 flags;
	__u32 nr_tunnels; /* all that are in use are among the first so many */
	__u64 heartbeat;  /* ns, the daemon's last heartbeat; 0: none is asked for */
	struct ol_tunnel tunnel[OL_MAX_TUNNELS];
	__u32 rebalance_queue; /* packets in a lane's queue that make its flows look for another */
	__u32 rules_table;     /* which table of rules is in force: 0 or 1 */
	__u32 latency_window_us; /* latency traffic is about for so long after a packet of it */
	__u32 bulk_room;	 /* frames that a core's bulk lane holds */
	__u32 latency_share;	 /* of a core's time that latency may take, in 1/1000 */
	__u32 sparse_frames;	 /* more in a window are heavy; 0: flows are not watched */
	__u32 sparse_bytes;
	__u32 split_batch;  /* frames of a micro-flow; 0: no flow is split */
	__u32 split_frames; /* more in a window make an elephant ... */
	__u32 split_bytes;  /* ... and so do more bytes */
	__u32 split_epoch;  /* changes once nothing that was split is under way any more */
	__u8 split_here;    /* the core that polls takes its part of a flow, too */
	__u8 split_protos;  /* of enum ol_split_proto: flows that may be split */
	__u8 split_stage;   /* whose lanes are the branches: OL_STAGE_NIC or OL_STAGE_TUNNEL */
	__u8 split_second; /* branches that are lanes of the first have a core more each, for the second */
	__u32 merge_ifindex; /* of the devices with resequencers, the same in each namespace */
	__u32 entries;	     /* changes with the express entries */
	__u32 express_epoch; /* changes when no program saw what took which path */
	struct ol_lanes stage[OL_NR_STAGES];
	struct ol_set set[OL_SETS];
	__u32 pod_stay
		[OL_MAX_CPUS]; /* as ol_lanes.hash, of the core itself at the pod stage; 0: none */
	__u8 set_of[OL_MAX_CPUS];     /* by the core that polls */
	__u8 branch[OL_MAX_LANES];    /* that a lane is in its set */
	__u16 busy[OL_MAX_CPUS];      /* utilisation in 1/1000, from the daemon */
	__u8 core_flags[OL_MAX_CPUS]; /* stages whose lanes its hooks may use, a bit each */
};

/*
 * Key of the cells map: a device of ours as the tracepoint sees it. The value is
 * a tunnel's index, OL_MAX_TUNNELS for an underlay, or above that the port of a pod's end.
 */
struct ol_cell_key {
	__u32 ifindex;
	__u32 netns; /* inode number */
};

/*
 * One flow slot on one core at one stage; only that core writes it.
 * seq: the core's poll count when the slot's last packet passed.
 */
struct ol_slot {
	__u32 seq;
	__u8 lane;
	__u8 used;   /* it has sent something from this core */
	__u16 at;    /* ol_tick() when it did last */
	__u32 turn;  /* the slot's last one that this core has seen */
	__u16 port;  /* of the pod that it goes straight to */
	__u8 due;    /* the stack is to see the sender */
	__u8 epoch;  /* of the policy when it began to */
	__u64 since; /* ns, when the slot took this lane or came to this core; of one that is refused
			by when all that it sent before was handed on, if that is known yet */
	__u32 held; /* us, since when it is to leave its lane, or its packets are refused; 0: neither */
	__u16 lost;   /* last bits of what the lane had dropped by then */
	__u8 refuses; /* its packets are refused, until it has left its lane */
	__u8 shared;  /* what other cores sent of it may still be on its way */
};

/*
 * A slot's lane at a stage, the same on all cores: plus one, in the last byte of turn, none: 0. Above
 * it its turns are counted: a core takes one before it sends the first packet of the slot in a poll.
 * Each has a cache line of its own.
 */
struct ol_turn {
	__u64 turn;
	__u16 met; /* ol_tick() when a core that steers the stage last found it in turns with others */
	__u16 pad[27];
};

/* Everything that passed the hook before poll `seq` was in its lane at `time`. */
struct ol_mark {
	__u64 time;
	__u32 seq;
	__u32 nic_seq; /* ... and what the NIC's GRO let go before this poll, too */
};

#define OL_MARKS 8
#define OL_MARK_SPACING_NS 200000

struct ol_marks {
	struct ol_mark mark[OL_MARKS];
	__u32 at;
	__u32 pending; /* poll count of a round whose tail is still being handed on, or 0 */
	__u64 napi;    /* of a tunnel's cell: its address, once it was polled */
};

/* Progress of a queue, as its core proves it. */
struct ol_progress {
	__u64 safe;	    /* what was in the queue before this time has been handled */
	__u64 pending_time; /* candidate for safe ... */
	__u32 pending_tail; /* ... once the head has come this far */
	__u32 armed;
};

/* A pod's end of a veth, polled by one core at a time. */
struct ol_port {
	__u64 napi;	    /* address, once it was polled */
	__u64 safe;	    /* what was in its ring before this time has been handled */
	__u64 pending_time; /* candidate for safe ... */
	__u32 left;	    /* ... once so many more frames have been handled */
	__u32 armed;
};

/* Where frames came in, for which network, and which pod they are for. */
struct ol_express_key {
	__u32 nic; /* ifindex */
	__u32 vni;
	__u16 port; /* UDP, host byte order */
	__u8 mac[6];
};

/* One tunnel, as far as frames for it can be told from others. Addresses as on the wire. */
struct ol_express_tunnel {
	__u32 local[4];	 /* the outer destination; IPv4: the first word */
	__u32 remote[4]; /* the only outer source that it takes; zero: any */
	__u8 version;	 /* of IP outside; 0: no frame is plain */
	__u8 nic[6];	 /* the NIC's address */
	__u8 mac[6];	 /* the tunnel's own: what comes from it are echoes */
	__u8 pad[3];
};

/* What leads a frame straight to a pod. */
struct ol_express_entry {
	__u64 withdrawn; /* ns; 0: it is in force */
	__u32 port;
	__u32 max_len;	  /* of an inner frame; the stack is to judge longer ones */
	__u32 refresh_us; /* so often the stack is to see a frame of each sender; 0: never */
	__u32 fixed;	  /* the tunnel drops frames of some senders that come from another host */
	struct ol_express_tunnel tunnel;
};

/* Why a frame takes the full path, or that it need not (OL_PLAIN). */
enum ol_express_unfit {
	OL_PLAIN,
	OL_UNFIT_NIC,	    /* not sent to this NIC's address */
	OL_UNFIT_OUTER,	    /* lengths, checksum, addresses or marks of the outer headers */
	OL_UNFIT_UNCHECKED, /* whether the outer checksum is right cannot be told from the headers */
	OL_UNFIT_FRAME,	    /* the inner frame: a group's or no sender, an echo, a tag */
	OL_UNFIT_INNER,	    /* options, fragments, neither TCP nor UDP, lengths */
	OL_UNFIT_LONG,	    /* longer than the pod's veth takes */
	OL_UNFIT_SENDER,    /* the tunnel was told that its sender is behind another host */
	OL_NR_UNFIT,
};

struct ol_sender_key {
	__u32 vni;
	__u16 port;
	__u8 mac[6];
};

/* What the stack has learned of a sender. */
struct ol_sender {
	__u32 seen; /* us */
	__u32 from; /* outer source */
};

/* Receive work of one kind on one core, from saturated polls only. */
struct ol_cost {
	__u64 ns;
	__u64 packets;
};

/* NICs' NAPIs of one core that are remembered to hold packets in GRO. */
#define OL_HOLDING 8

struct ol_holding {
	__u64 napi[OL_HOLDING];	  /* their addresses, or 0 */
	__u64 seen[OL_HOLDING];	  /* ns, when they were polled last ... */
	__u32 others[OL_HOLDING]; /* ... and polls of NICs since */
	__u64 more;		  /* ns, when one was last seen for which there was no place */
};

/* Per core, written by that core alone where nothing else is said. */
struct ol_cpu {
	__u64 now;     /* ns, end of the last poll */
	__u32 seq;     /* polls finished, and batches that threads of cpumaps took */
	__u8 full;     /* the last poll used up its budget: the next follows at once */
	__u8 nic_full; /* the same of the last poll of a NIC */
	__u8 stage;    /* whose poll was the last */
	__u8 ours;     /* the last poll of a device was of one of ours */
	__u64 softnet; /* address of this core's softnet_data, once its backlog was polled */
	struct ol_marks polls;
	struct ol_progress backlog;
	__u64 lane
		[OL_NR_CLASSES]; /* addresses of this core's entries of the cpumaps, or 0; by the daemon */
	struct ol_holding holding;
	__u64 lane_time;   /* ns, when this core's cpumap thread last took frames */
	__u32 lane_head;   /* how far in its ring it had come then */
	__u32 nic_seq;	   /* the last poll after which no NIC's GRO held anything */
	__u32 queue;	   /* packets left in the backlog after its last poll ... */
	__u32 backlog_seq; /* ... which was this one */
	__u32 lane_seq;	   /* seq when its cpumap thread last took frames */
	__u32 polled;	   /* polls finished */
	__u64 lane_lost;   /* frames that its lane has lost; written by those that lose them */
	__u32 lane_pid[OL_NR_CLASSES]; /* the threads of its lanes, or 0; by the daemon */
	struct ol_cost cost[OL_NR_STAGES];
	__u64 packets
		[OL_NR_STAGES]; /* in all polls; nic: as the driver counts, tunnel, pod: after GRO */
	__u64 came; /* frames that an XDP program of ours saw: drivers may count what they sent, too */
	__u64 samples[4];
	__u64 stretch; /* ns, end of the first of the NIC's polls that followed directly on each other */
	__u64 waited; /* ns, for each frame of such polls: how long it waited in the NIC, at most */
	__u64 queued; /* ns, for each packet that a poll of the backlog left there: until the next poll */
	__u64 awaited_until; /* ns, until when others stand still for its queue; written by them */
} __attribute__((aligned(64)));

/* A core on its way offline; told by whichever core takes it there. */
struct ol_leave {
	__u32 leaving; /* it is */
	__u32 strayed; /* it was since its lane was made: the lane's thread may run elsewhere */
	__u32 returns; /* how often it was, and is no more, whether it got there or not */
};

/* The verdict on a frame that priority judged: where it goes. */
enum ol_verdict {
	OL_VERDICT_STOCK,
	OL_VERDICT_BULK_LANE,
	OL_VERDICT_LATENCY_LANE,
	OL_VERDICT_REFUSED, /* dropped: the lane was full, or is emptied */
	OL_NR_VERDICTS,
};

/* How far a lane's thread has come, as the core that fills the lane sees it. */
struct ol_lane_watch {
	__u32 taken;	/* frames that the thread took, at least; once they are .. */
	__u32 until;	/* .. so many, what came before .. */
	__u32 before;	/* .. this time has been handled */
	__u32 consumer; /* place in the ring at the last look */
	__u32 safe;	/* what was redirected in polls up to then has been handled */
	__u32 empty;	/* the same, and GRO has let go of it */
	__u32 room;	/* frames that the lane still takes in this poll */
	__u32 armed;	/* until and before are set */
};

/*
 * Priority on one core, written by that core alone: by the tracepoint behind a poll,
 * and by the hook in the NIC's poll. Times are in us where nothing else is said.
 */
struct ol_prio {
	struct ol_holding holding;
	__u64 charged; /* ns, up to when latency's time was taken off the budget */
	__s64 budget;  /* ns of this core that the latency class has left */
	__u32 polls;   /* NICs' polls finished */
	__u32 holds;   /* a NIC's GRO held packets when the last of them ended */
	__u32 task;    /* that polled the NIC last, if that brought latency frames, or 0 */
	__u32 latency; /* of 256 parts of that poll's frames, theirs */

	/* From here on the hook's. */
	__u32 poll;    /* the one under way, once it has brought a frame */
	__u32 now;     /* when that began, and ... */
	__u64 now_ns;  /* ... the same in ns */
	__u32 brought; /* frames of the latency class in it */
	__u32 seen;    /* the last poll with such */
	__u32 reserve; /* of the bulk lane's room, what latency's frames leave to bulk */
	__u32 apart;   /* bulk's frames are told apart ... */
	__u32 number;  /* ... by this, see ol_prio_number */
	__u32 looked;  /* when it was last looked whether bulk's lane is to join frames */
	__u32 calm;    /* so many looks in a row nothing had been refused */
	__u32 owed;    /* once bulk's lane took so many it is to be emptied, see ol_prio_turn */
	__u8 ever;     /* there has been one */
	__u8 demoted;  /* bulk goes to the lane */
	__u8 over;     /* the budget is used up: latency joins bulk */
	__u8 table;    /* of rules, in force on this core */
	__u8 host;     /* by which flows in no tunnel have a class, too */
	__u8 about;    /* latency traffic is */
	__u8 join;     /* bulk's lane is to join frames, see ol_prio_join */
	__u8 joins;    /* it does */
	__u8 empties;  /* bulk's lane is emptied by refusing frames */
	__u64 refused; /* of bulk, and ... */
	__u64 laned;   /* ... sent to the lane, at that look */
	struct ol_lane_watch lane[OL_NR_CLASSES];
	__u64 frames[OL_NR_CLASSES][OL_NR_VERDICTS];
	__u64 held;   /* of latency in the bulk lane: behind what the flow has in it */
	__u64 excess; /* of latency in the bulk lane: over budget */
	__u64 short_cut[OL_NR_CLASSES]; /* from the tunnel straight to the pod */
	__u64 bridged[OL_NR_CLASSES];	/* not so, although that is asked for */
} __attribute__((aligned(64)));

/* How fragments of an inner datagram are told apart. */
enum ol_fragment {
	OL_FRAG_WHOLE,
	OL_FRAG_FIRST,
	OL_FRAG_LATER,
};

/*
 * The inner flow as words to hash: addresses, then protocol, VNI and ports.
 * ports is zero for protocols without them. id names the datagram that a fragment
 * belongs to, among those of the same addresses and protocol.
 */
struct ol_flow {
	__u64 addr[4];
	__u64 tail;
	__u32 ports;
	__u32 id;
	__u8 v6;
	__u8 proto;
	__u8 fragment;
	/* No part of what tells flows apart: */
	__u8 dscp;
	__u16 l4;  /* where the packet's transport header begins in its frame ... */
	__u16 len; /* ... and its length, with all that follows; 0 of later fragments */
};

/* A device and an Ethernet address: of a pod behind a tunnel, or of a sender to it. */
struct ol_shortcut_key {
	__u32 ifindex; /* of the tunnel */
	__u8 mac[6];
	__u8 pad[2];
};

/* Where frames for a pod may go from the tunnel. */
struct ol_shortcut {
	__u32 host;	  /* ifindex of the host's end of its veth */
	__u32 max_len;	  /* longer frames are the bridge's to judge */
	__u32 refresh_us; /* so often the bridge is to see a frame of each sender; 0: never */
};

/*
 * A flow that no rule fits, watched: small and sparse ones become latency. Or what one source sends in
 * all of its flows that are small and sparse.
 */
struct ol_sparse {
	struct ol_flow flow;
	__u32 window; /* us, when the one under way began */
	__u32 seen;   /* us, the last poll with a packet */
	__u32 frames; /* in the window under way */
	__u32 bytes;
	__u32 was_frames; /* in the last whole one that brought any */
	__u32 was_bytes;
	__u32 quiet; /* windows since it was last too much */
	__u32 since; /* windows for which it has its class */
	__u8 class;
	__u8 heavy; /* it was too much once */
	__u8 used;
	__u8 host;  /* in no tunnel */
	__u8 bound; /* bulk nevertheless: its source sends too much in such flows */
	__u8 pad[3];
};

/* ol_policy.split_protos */
enum ol_split_proto {
	OL_SPLIT_UDP = 1,
	OL_SPLIT_TCP = 2,      /* where a resequencer puts them in order again */
	OL_SPLIT_NUMBERED = 4, /* and UDP as well, by overlane's numbers */
};

/* Why UDP frames get no numbers: bits. */
enum ol_unnumbered_by {
	OL_BY_DRIVER = 1, /* a frame had no room for one */
	OL_BY_LOADER = 2, /* they would get lost on the way */
};

enum ol_split_state {
	OL_WHOLE, /* takes the lane of its slot */
	OL_SPLIT, /* cut into micro-flows */
	OL_JOINS, /* one branch takes all that comes, while what is in others leaves them */
};

/* A flow that is watched, on the core that polls its NIC: is it an elephant? */
struct ol_elephant {
	struct ol_flow flow;
	__u64 window; /* ns, when the one under way began */
	__u32 frames; /* in it */
	__u32 bytes;
	__u32 seq;		     /* the poll that it last came in */
	__u32 left;		     /* frames of the micro-flow under way that are to come */
	__u32 last[OL_ALL_BRANCHES]; /* the poll of its last frame in each branch */
	__u32 used;		     /* branches that may hold frames of it, a bit each */
	__u32 epoch;		     /* of the policy, when it was split */
	__u16 heavy;		     /* windows in a row with too much for one core ... */
	__u16 light;		     /* ... and, of an elephant, with little */
	__u8 branch;		     /* of the micro-flow under way */
	__u8 state;		     /* enum ol_split_state */
	__u8 elephant;
	__u8 taken;	/* the place is */
	__u8 merge;	/* its place among those that are merged, plus one, or 0 */
	__u8 begins;	/* to be split, with the next frame that has a number */
	__u8 astray;	/* does not come by a resequencer any more, where it should */
	__u8 fragments; /* some of its datagrams come in fragments: it cannot be split */
	__u32 number;	/* of UDP that is put in order: the next frame's */
	__u32 pad;
	__u64 key;    /* of the inner flow, once it has such a place */
	__u64 joined; /* ns, when it began to join */
	__u64 turned; /* ns, the poll that it last came in */
	__u64 passed; /* ns, as ol_merging.passed was when ... */
	__u64 since;  /* ... it last was another, or after a pause */
};

/*
 * A flow that is put in order again, or shall be: what the hooks on its way tell each
 * other. Each field is written by one of them.
 */
struct ol_merging {
	/* The core that polls the NIC. */
	__u64 key;		     /* of the inner flow in whatever tunnel; 0: a free place */
	__u64 seen;		     /* ns, when it came last */
	__u32 generation;	     /* odd while it is split; never the same again */
	__u32 first;		     /* the sequence number with which that began */
	__u32 sent[OL_ALL_BRANCHES]; /* the end of what each branch was sent, at most */

	/* The hook in front of its pod. */
	__u32 ifindex;	 /* of the device that leads there */
	__u32 ambiguous; /* there are two such, in two tunnels: it cannot be split */
	__u64 passed;	 /* ns, when it last came there, about */
	__u32 entered;	 /* packets sent there, by count */

	/* The hook behind the resequencer. */
	__u32 left; /* packets that came out, by count */

	/* The resequencer. */
	__u32 held;    /* packets that wait there */
	__u32 next;    /* what is to come: all before has left, or is lost */
	__u32 refused; /* packets that it had no room for, by count */

	/* The core that polls the NIC. */
	__u32 slot;
	__u32 behind; /* the pod stage's lane on which it goes on */
};

/* Packets that a branch got in a row. */
struct ol_cut {
	__u32 end; /* of the last of them */
	__u32 packets;
	__u32 branch;
};

/* What is under way of a flow of numbered datagrams, known to the core that splits it. */
struct ol_cuts {
	__u32 made;		      /* runs that have ended, by count ... */
	__u32 passed;		      /* ... and those that have left the merge */
	__u32 end;		      /* of all that was sent */
	__u32 run;		      /* packets of the run under way ... */
	__u32 branch;		      /* ... and its branch */
	__u32 next;		      /* how far the merge had come when it last was asked */
	__u32 under[OL_ALL_BRANCHES]; /* packets under way by each branch, at most */
	__u32 pad;
	__u64 since; /* ns, when it last had come on, or nothing was under way */
	struct ol_cut cut[OL_CUTS];
};

/* What that hook leaves in a packet's control block for the resequencer. */
struct ol_merge_mark {
	__u32 magic; /* of this load */
	__u8 place;  /* among the merging */
	__u8 branch;
	__u16 segs; /* packets that it was on the wire */
	__u32 seq;
	__u32 end;
	__u32 generation;
};

/* A qdisc of ours, used under its lock. */
struct ol_resequencer {
	__u32 active; /* flows that have packets waiting here, a bit each */
	__u32 used;
	__u32 head;  /* packets that may go, by count: taken ... */
	__u32 tail;  /* ... and put */
	__u32 held;  /* packets that wait */
	__u32 look;  /* flows of which one may go since, a bit each */
	__u64 until; /* when one of those that wait may at the latest; 0: none waits */
};

/* What the merge has done so far, all resequencers together. */
enum ol_merge_counter {
	OL_MERGE_PASSED, /* packets of split flows that came in order, or behind what was sent on */
	OL_MERGE_LATE,	 /* of these, the latter: retransmitted, or given up before */
	OL_MERGE_HELD,	 /* packets that had to wait */
	OL_MERGE_GAPS,	 /* times that what was waited for had been lost on the way here */
	OL_MERGE_EXPIRED,   /* times that it did not come within the limit */
	OL_MERGE_UNWATCHED, /* packets that went on out of turn: the daemon is gone or hangs */
	OL_MERGE_REFUSED,   /* packets that were dropped: their queue was full */
	OL_MERGE_DROPPED,   /* packets that the qdisc had when it was taken away */
	OL_NR_MERGE_COUNTERS,
};

/* Names every enum once, so that the daemon gets all of them from the object's BTF. */
struct ol_abi {
	enum ol_limit limit;
	enum ol_stage stage;
	enum ol_tunnel_kind kind;
	enum ol_reason reason;
	enum ol_counter counter;
	enum ol_flag flag;
	enum ol_class class;
	enum ol_verdict verdict;
	enum ol_field field;
	enum ol_split_proto split_proto;
	enum ol_unnumbered_by unnumbered;
	enum ol_merge_counter merge_counter;
	enum ol_express_unfit express_unfit;
};

/* Which core handled a slot last, per stage: cpu + 1, or 0. */
struct ol_owner {
	__u16 cpu[OL_NR_STAGES + 1];
};

#endif
