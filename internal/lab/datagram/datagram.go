// SPDX-License-Identifier: Apache-2.0

// Package datagram is the payload that all of the lab's UDP traffic carries: a flow, a number, and
// the time of sending (struct probe of internal/lab/bpf/lab.h). A reader tells by it what is lost,
// late, twice or changed. It needs nothing of the machine.
package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	magic   = 0x4f6c
	hasWhen = 1
	filled  = 2 // for readers; the checker (check.bpf.c) does not look at it
	// MinSize is the smallest UDP payload that can be checked, and StampedSize
	// the smallest that also carries its time of sending.
	MinSize     = 16
	StampedSize = 24
)

// Put writes the header for number seq of a flow into a payload of at least MinSize bytes; when is
// its time of sending, in ns of CLOCK_MONOTONIC, which one of fewer than StampedSize bytes leaves
// out. The 16-bit sum of what Put writes depends on the flow only: so does the UDP checksum.
func Put(p []byte, flow uint16, seq, when uint64) {
	stamped := len(p) >= StampedSize
	binary.NativeEndian.PutUint16(p[0:], magic)
	p[2], p[3] = 0, 0
	binary.NativeEndian.PutUint16(p[4:], flow)
	binary.NativeEndian.PutUint64(p[8:], seq)
	if stamped {
		p[2] = hasWhen
		binary.NativeEndian.PutUint64(p[16:], when)
	} else {
		when = 0
	}
	binary.NativeEndian.PutUint16(p[6:], ^sum(seq, when))
}

// PutFilled is Put for an unstamped header, and writes the rest of the payload too: words of 8 bytes
// that follow from the number, so that Parse notices any byte of them that was changed.
func PutFilled(p []byte, flow uint16, seq uint64) {
	Put(p[:MinSize], flow, seq, 0)
	p[2] = filled
	for at := MinSize; at+8 <= len(p); at += 8 {
		binary.NativeEndian.PutUint64(p[at:], seq*uint64(at))
	}
}

// ErrAlien: the payload was not written by Put, or was changed or cut since.
var ErrAlien = errors.New("not a datagram of the lab")

var errChanged = fmt.Errorf("%w: its bytes were changed", ErrAlien)

// Parse reads what Put or PutFilled wrote; when is 0 if it is not stamped.
func Parse(p []byte) (flow uint16, seq, when uint64, err error) {
	if len(p) < MinSize || binary.NativeEndian.Uint16(p) != magic || p[2]&^(hasWhen|filled) != 0 || p[3] != 0 {
		return 0, 0, 0, ErrAlien
	}
	flow, seq = binary.NativeEndian.Uint16(p[4:]), binary.NativeEndian.Uint64(p[8:])
	if p[2]&hasWhen != 0 {
		if len(p) < StampedSize {
			return 0, 0, 0, fmt.Errorf("%w: cut short", ErrAlien)
		}
		when = binary.NativeEndian.Uint64(p[16:])
	}
	if binary.NativeEndian.Uint16(p[6:]) != ^sum(seq, when) {
		return 0, 0, 0, errChanged
	}
	if p[2]&filled != 0 {
		for at := MinSize; at+8 <= len(p); at += 8 {
			if binary.NativeEndian.Uint64(p[at:]) != seq*uint64(at) {
				return 0, 0, 0, errChanged
			}
		}
	}
	return flow, seq, when, nil
}

// Flags are the bytes of a payload by which stamped ones differ from others, as its checksum counts
// them.
func Flags(stamped bool) [2]byte {
	if stamped {
		return [2]byte{hasWhen}
	}
	return [2]byte{}
}

func sum(seq, when uint64) uint16 {
	return Fold(seq&0xffffffff + seq>>32 + when&0xffffffff + when>>32)
}

// Fold carries over what a sum of 16-bit words has beyond 16 bits.
func Fold(sum uint64) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
