// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"slices"
)

// Effect is what a driver does to a NIC when the first XDP program comes to it, and when the last
// one goes.
type Effect string

// Effects. Only a driver without any is harmless.
const (
	RestartsLink   Effect = "restarts the link"
	ResetsQueues   Effect = "resets the queues, which loses packets"
	GivesUpOffload Effect = "gives up receive offloads, which TCP pays for"
)

// Driver is what is known of one driver, from reading it.
type Driver struct {
	// Name is the driver's in sysfs, or the link kind of a virtual device.
	Name    string
	Effects []Effect
	// Limits say when it refuses, or what it cannot do.
	Limits string
	// Source is where in Linux 6.12 this is to be read.
	Source string
}

// Drivers are those that were read. A driver that is not listed is not known to be harmless.
var Drivers = []Driver{
	{Name: "atlantic", Effects: []Effect{RestartsLink, GivesUpOffload}, Source: "drivers/net/ethernet/aquantia/atlantic/aq_main.c: aq_xdp_setup closes and opens the device, and clears LRO"},
	{Name: "bnxt_en", Effects: []Effect{RestartsLink, GivesUpOffload}, Limits: "refuses without combined channels",
		Source: "drivers/net/ethernet/broadcom/bnxt/bnxt_xdp.c: bnxt_xdp_set closes and opens the NIC, also to replace a program; bnxt_set_rx_skb_mode changes LRO and hardware GRO"},
	{Name: "bond", Limits: "refuses modes other than round-robin, active-backup, 802.3ad and xor, and ports without XDP; a program that is replaced is never freed",
		Source: "drivers/net/bonding/bond_main.c: bond_xdp_set does to each port what the port's driver does"},
	{Name: "ena", Effects: []Effect{RestartsLink}, Limits: "refuses above an MTU of some 3500, and with more than half of the channels in use",
		Source: "drivers/net/ethernet/amazon/ena/ena_xdp.c: ena_xdp_set calls ena_down, which switches the carrier off, and ena_up; taking the program off ena_destroy_and_free_all_xdp_queues"},
	{Name: "gve", Effects: []Effect{RestartsLink}, Limits: "refuses with LRO, in other queue formats than GQI-QPL, above an MTU of some 2000, and with more than half of the queues in use; no metadata",
		Source: "drivers/net/ethernet/google/gve/gve_main.c: gve_set_xdp calls gve_turndown, which switches the carrier off, and gve_turnup, also to replace a program; verify_xdp_configuration"},
	{Name: "hv_netvsc", Limits: "refuses with LRO, and where a frame does not fit a page; no metadata",
		Source: "drivers/net/hyperv/netvsc_bpf.c: netvsc_xdp_set writes a pointer for each channel; netvsc_vf_setxdp has the driver of a virtual function beside it do what that does"},
	{Name: "i40e", Effects: []Effect{RestartsLink}, Limits: "programs without frags: refuses above the size of a buffer",
		Source: "drivers/net/ethernet/intel/i40e/i40e_main.c: i40e_xdp_setup calls i40e_prep_for_reset and i40e_reset_and_rebuild"},
	{Name: "ice", Effects: []Effect{RestartsLink}, Limits: "refuses where there are too few transmit queues",
		Source: "drivers/net/ethernet/intel/ice/ice_main.c: ice_xdp_setup_prog calls ice_down and ice_up"},
	{Name: "igb", Effects: []Effect{RestartsLink}, Limits: "refuses where a frame does not fit a receive buffer",
		Source: "drivers/net/ethernet/intel/igb/igb_main.c: igb_xdp_setup calls igb_close and igb_open"},
	{Name: "igc", Effects: []Effect{RestartsLink}, Limits: "refuses above an MTU of 1500",
		Source: "drivers/net/ethernet/intel/igc/igc_xdp.c: igc_xdp_set_prog calls igc_close and igc_open, also to replace a program"},
	{Name: "ixgbe", Effects: []Effect{RestartsLink}, Limits: "refuses with SR-IOV, DCB or LRO, where a frame does not fit a receive buffer, and on machines with more than 128 possible CPUs",
		Source: "drivers/net/ethernet/intel/ixgbe/ixgbe_main.c: ixgbe_xdp_setup calls ixgbe_setup_tc, which closes and opens the device"},
	{Name: "ixgbevf", Effects: []Effect{RestartsLink}, Limits: "refuses where a frame does not fit a receive buffer",
		Source: "drivers/net/ethernet/intel/ixgbevf/ixgbevf_main.c: ixgbevf_xdp_setup calls ixgbevf_close and ixgbevf_open"},
	{Name: "mana", Limits: "refuses above an MTU of some 3500; no metadata",
		Source: "drivers/net/ethernet/microsoft/mana/mana_bpf.c: mana_xdp_set and mana_chn_setxdp write a pointer for each queue, and lower the largest MTU"},
	{Name: "mlx4_en", Effects: []Effect{RestartsLink}, Limits: "refuses where a frame does not fit a page",
		Source: "drivers/net/ethernet/mellanox/mlx4/en_netdev.c: mlx4_xdp_set calls mlx4_en_stop_port and mlx4_en_start_port"},
	{Name: "mlx5_core", Effects: []Effect{RestartsLink}, Limits: "refuses with LRO",
		Source: "drivers/net/ethernet/mellanox/mlx5/core/en_main.c: mlx5e_xdp_set has mlx5e_switch_priv_channels open new channels, and switch the carrier off until they are in use"},
	{Name: "qede", Effects: []Effect{RestartsLink}, Source: "drivers/net/ethernet/qlogic/qede/qede_filter.c: qede_xdp_set calls qede_reload, which unloads and loads the device, also to replace a program"},
	{Name: "stmmac", Effects: []Effect{RestartsLink}, Limits: "refuses above an MTU of 1500",
		Source: "drivers/net/ethernet/stmicro/stmmac/stmmac_xdp.c: stmmac_xdp_set_prog calls stmmac_xdp_release and stmmac_xdp_open"},
	{Name: "tun", Limits: "no metadata for large frames; XDP only for frames that come by vhost or one at a time",
		Source: "drivers/net/tun.c: tun_xdp_set writes a pointer"},
	{Name: "veth", Limits: "the other end makes no super-packets as long as a program is there, which TCP pays for; refuses where the other end has more queues",
		Source: "drivers/net/veth.c: veth_xdp_set, veth_enable_xdp"},
	{Name: "virtio_net", Effects: []Effect{ResetsQueues, GivesUpOffload}, Limits: "refuses where the host offers offloads, and no way to switch them off",
		Source: "drivers/net/virtio_net.c: virtnet_xdp_set stops the queues; virtnet_clear_guest_offloads"},
	{Name: "vmxnet3", Effects: []Effect{RestartsLink, GivesUpOffload}, Limits: "refuses where a frame does not fit a page; no metadata",
		Source: "drivers/net/vmxnet3/vmxnet3_xdp.c: vmxnet3_xdp_set calls vmxnet3_quiesce_dev, which switches the carrier off, and vmxnet3_activate_dev, and clears LRO"},
	{Name: "vif", Effects: []Effect{RestartsLink}, Limits: "refuses above an MTU of some 3800",
		Source: "drivers/net/xen-netfront.c: xennet_xdp_set reconnects to the backend"},
}

// driver is what is known of one, by its name.
func driver(name string) (Driver, bool) {
	i := slices.IndexFunc(Drivers, func(d Driver) bool { return d.Name == name })
	if i < 0 {
		return Driver{}, false
	}
	return Drivers[i], true
}
