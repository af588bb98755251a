#include <linux/bpf.h>
#include <linux/types.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
struct net_device { int ifindex; } __attribute__((preserve_access_index));
struct napi_struct { struct net_device *dev; } __attribute__((preserve_access_index));
const volatile __u32 mode = 0, cpu = 0, limit = 8, ifindex = 0, map_id = 0, port = 9001;
struct { __uint(type, BPF_MAP_TYPE_CPUMAP); __uint(max_entries, 64); __type(key, __u32); __type(value, struct bpf_cpumap_val);} lanes SEC(".maps");
volatile __u64 st_high=0, st_inline=0, st_lane=0, st_enq=0, st_deq=0, st_drop=0, st_full=0, st_polls=0;
static __u32 full, inlane, in_poll;
SEC("xdp.frags")
int hi(struct xdp_md *ctx)
{
	__u8 *d = (void *)(long)ctx->data, *e = (void *)(long)ctx->data_end;
	if (d + 14+20+8+8+14+20+8 > e) return XDP_PASS;
	if (*(__u16*)(d+12) != bpf_htons(0x0800) || d[23] != 17 || *(__u16*)(d+36) != bpf_htons(4789)) return XDP_PASS;
	__u8 *in = d + 50;
	if (*(__u16*)(in+12) != bpf_htons(0x0800)) return XDP_PASS;
	if (*(__u16*)(in+36) == bpf_htons(port)) { st_high++; return XDP_PASS; }
	if (mode == 1) {
		if (!inlane) {
			if (full || in_poll >= limit) inlane = 1;
		} else if (st_enq == st_deq) {
			/* empty and nothing of it in this poll */
			if (!full && in_poll == 0) inlane = 0;
		}
		in_poll++;
		if (!inlane) { st_inline++; return XDP_PASS; }
	}
	if (mode == 2) { st_inline++; return XDP_PASS; }
	st_lane++;
	return bpf_redirect_map(&lanes, cpu, XDP_PASS);
}
SEC("tp_btf/napi_poll")
int BPF_PROG(poll, struct napi_struct *napi, int work, int budget)
{
	struct net_device *dev = napi->dev;
	if (!dev || dev->ifindex != ifindex) return 0;
	full = work >= budget;
	in_poll = 0;
	st_polls++;
	if (full) st_full++;
	return 0;
}
SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(enq, int id, unsigned int processed, unsigned int drops, int to)
{
	if (id != map_id) return 0;
	st_enq += processed; st_drop += drops;
	return 0;
}
SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(deq, int id, unsigned int processed, unsigned int drops, int sched)
{
	if (id != map_id) return 0;
	st_deq += processed;
	return 0;
}
char LICENSE[] SEC("license") = "Dual BSD/GPL";
