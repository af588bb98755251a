// SPDX-License-Identifier: Apache-2.0

package xdp

// Effect is what a driver does to a NIC when the first XDP program comes to it, and when the last
// one goes.
type Effect string

// Effects. Only a driver without any is harmless.
const (
	RestartsLink   Effect = "restarts the link"
	ResetsQueues   Effect = "resets the queues, which loses packets"
	GivesUpOffload Effect = "gives up receive offloads, which TCP pays for"
)

// drivers are those that were read, in Linux 6.12, by a driver's name in sysfs or the link kind of a virtual device. One
// that is not listed is not known to be harmless.
var drivers = map[string][]Effect{
	// drivers/net/ethernet/aquantia/atlantic/aq_main.c: aq_xdp_setup closes and opens the device, and clears LRO.
	"atlantic": {RestartsLink, GivesUpOffload},
	// drivers/net/ethernet/broadcom/bnxt/bnxt_xdp.c: bnxt_xdp_set closes and opens the NIC, also to replace a program; bnxt_set_rx_skb_mode changes LRO and hardware GRO. It refuses without combined channels.
	"bnxt_en": {RestartsLink, GivesUpOffload},
	// drivers/net/bonding/bond_main.c: bond_xdp_set does to each port what the port's driver does. It refuses modes other than round-robin, active-backup, 802.3ad and xor, and ports without XDP; a program that is replaced is never freed.
	"bond": {},
	// drivers/net/ethernet/amazon/ena/ena_xdp.c: ena_xdp_set calls ena_down, which switches the carrier off, and ena_up; taking the program off ena_destroy_and_free_all_xdp_queues. It refuses above an MTU of some 3500, and with more than half of the channels in use.
	"ena": {RestartsLink},
	// drivers/net/ethernet/google/gve/gve_main.c: gve_set_xdp calls gve_turndown, which switches the carrier off, and gve_turnup, also to replace a program; verify_xdp_configuration. It refuses with LRO, in other queue formats than GQI-QPL, above an MTU of some 2000, and with more than half of the queues in use; no metadata.
	"gve": {RestartsLink},
	// drivers/net/hyperv/netvsc_bpf.c: netvsc_xdp_set writes a pointer for each channel; netvsc_vf_setxdp has the driver of a virtual function beside it do what that does. It refuses with LRO, and where a frame does not fit a page; no metadata.
	"hv_netvsc": {},
	// drivers/net/ethernet/intel/i40e/i40e_main.c: i40e_xdp_setup calls i40e_prep_for_reset and i40e_reset_and_rebuild. Limits: programs without frags: refuses above the size of a buffer.
	"i40e": {RestartsLink},
	// drivers/net/ethernet/intel/ice/ice_main.c: ice_xdp_setup_prog calls ice_down and ice_up. It refuses where there are too few transmit queues.
	"ice": {RestartsLink},
	// drivers/net/ethernet/intel/igb/igb_main.c: igb_xdp_setup calls igb_close and igb_open. It refuses where a frame does not fit a receive buffer.
	"igb": {RestartsLink},
	// drivers/net/ethernet/intel/igc/igc_xdp.c: igc_xdp_set_prog calls igc_close and igc_open, also to replace a program. It refuses above an MTU of 1500.
	"igc": {RestartsLink},
	// drivers/net/ethernet/intel/ixgbe/ixgbe_main.c: ixgbe_xdp_setup calls ixgbe_setup_tc, which closes and opens the device. It refuses with SR-IOV, DCB or LRO, where a frame does not fit a receive buffer, and on machines with more than 128 possible CPUs.
	"ixgbe": {RestartsLink},
	// drivers/net/ethernet/intel/ixgbevf/ixgbevf_main.c: ixgbevf_xdp_setup calls ixgbevf_close and ixgbevf_open. It refuses where a frame does not fit a receive buffer.
	"ixgbevf": {RestartsLink},
	// drivers/net/ethernet/microsoft/mana/mana_bpf.c: mana_xdp_set and mana_chn_setxdp write a pointer for each queue, and lower the largest MTU. It refuses above an MTU of some 3500; no metadata.
	"mana": {},
	// drivers/net/ethernet/mellanox/mlx4/en_netdev.c: mlx4_xdp_set calls mlx4_en_stop_port and mlx4_en_start_port. It refuses where a frame does not fit a page.
	"mlx4_en": {RestartsLink},
	// drivers/net/ethernet/mellanox/mlx5/core/en_main.c: mlx5e_xdp_set has mlx5e_switch_priv_channels open new channels, and switch the carrier off until they are in use. It refuses with LRO. Limits: en_rx.c, mlx5e_skb_from_cqe_mpwrq_nonlinear leaves the first buffer empty, with a striding receive queue and an MTU above some 3500.
	"mlx5_core": {RestartsLink},
	// drivers/net/ethernet/qlogic/qede/qede_filter.c: qede_xdp_set calls qede_reload, which unloads and loads the device, also to replace a program.
	"qede": {RestartsLink},
	// drivers/net/ethernet/stmicro/stmmac/stmmac_xdp.c: stmmac_xdp_set_prog calls stmmac_xdp_release and stmmac_xdp_open. It refuses above an MTU of 1500.
	"stmmac": {RestartsLink},
	// drivers/net/tun.c: tun_xdp_set writes a pointer. Limits: no metadata for large frames; XDP only for frames that come by vhost or one at a time.
	"tun": {},
	// drivers/net/veth.c: veth_xdp_set, veth_enable_xdp. Limits: the other end makes no super-packets as long as a program is there, which TCP pays for; refuses where the other end has more queues.
	"veth": {},
	// drivers/net/virtio_net.c: virtnet_xdp_set stops the queues; virtnet_clear_guest_offloads. It refuses where the host offers offloads, and no way to switch them off; so no frame comes whose checksum is left to the receiver.
	"virtio_net": {ResetsQueues, GivesUpOffload},
	// drivers/net/vmxnet3/vmxnet3_xdp.c: vmxnet3_xdp_set calls vmxnet3_quiesce_dev, which switches the carrier off, and vmxnet3_activate_dev, and clears LRO. It refuses where a frame does not fit a page; no metadata.
	"vmxnet3": {RestartsLink, GivesUpOffload},
	// drivers/net/xen-netfront.c: xennet_xdp_set reconnects to the backend, and does not have it compute checksums. It refuses above an MTU of some 3800.
	"vif": {RestartsLink},
}
