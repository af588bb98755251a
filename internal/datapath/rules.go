// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/overlane/overlane/internal/rules"
)

// SetRules replaces the rules that give flows their class, all at once: packets
// are judged by the old list or by the new one. An error changes nothing.
func (d *Datapath) SetRules(t *rules.Table) error {
	next := d.policy.RulesTable ^ 1
	if err := d.dropRules(next); err != nil { // of an attempt that failed
		return err
	}
	var shapes underlayOlShapes
	shapes.Nr = uint32(len(t.Shapes))
	for i, s := range t.Shapes {
		shapes.Shape[i].Fields = s.Fields
		if s.V6 {
			shapes.Shape[i].V6 = 1
		}
		shapes.Shape[i].Mask = *(*[4]uint32)(unsafe.Pointer(&s.Mask))
	}
	for k, m := range t.Keys {
		key := underlayOlRuleKey{
			Addr: *(*[4]uint32)(unsafe.Pointer(&k.Addr)), Vni: k.VNI, Port: k.Port,
			Table: uint8(next), Shape: k.Shape, Proto: k.Proto, Dscp: k.DSCP,
		}
		rule := underlayOlRule{At: uint32(m.Rule), Class: uint32(slices.Index(rules.Classes, m.Class))}
		if err := d.xdp.OlRules.Put(&key, &rule); err != nil {
			return errors.Join(fmt.Errorf("write priority rules: %w", err), d.dropRules(next))
		}
	}
	if err := d.xdp.OlRuleShapes.Put(next, &shapes); err != nil {
		return errors.Join(fmt.Errorf("write priority rules: %w", err), d.dropRules(next))
	}
	d.policy.RulesTable = next
	if err := d.writePolicy(); err != nil {
		return err
	}
	return d.dropRules(next ^ 1)
}

// dropRules empties a table that is not in force.
func (d *Datapath) dropRules(table uint32) error {
	var keys []underlayOlRuleKey
	var k underlayOlRuleKey
	var r underlayOlRule
	it := d.xdp.OlRules.Iterate()
	for it.Next(&k, &r) {
		if uint32(k.Table) == table {
			keys = append(keys, k)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read priority rules: %w", err)
	}
	for i := range keys {
		if err := d.xdp.OlRules.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("drop old priority rules: %w", err)
		}
	}
	return nil
}
