// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxCore is the highest core number a list may name: Linux is built for at
// most 8192 cores.
const MaxCore = 8191

// CPUList is a set of cores, ascending and without duplicates. Its text form
// is the kernel's list format, such as "2-7,9".
type CPUList []int

// ParseCPUList reads the kernel's list format. Spaces around numbers and a
// trailing newline are accepted, so that files of sysfs can be passed as they
// are; an empty text is the empty set.
func ParseCPUList(text string) (CPUList, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var list CPUList
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		lo, err := parseCore(first)
		if err != nil {
			return nil, err
		}
		hi := lo
		if isRange {
			if hi, err = parseCore(last); err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, fmt.Errorf("range %q runs backwards", strings.TrimSpace(part))
			}
		}
		// Checked here and not after the loop, so that a text of many
		// overlapping ranges cannot make the list grow beyond the cores.
		for c := lo; c <= hi; c++ {
			if i, found := slices.BinarySearch(list, c); !found {
				list = slices.Insert(list, i, c)
			}
		}
	}
	return list, nil
}

func parseCore(s string) (int, error) {
	s = strings.TrimSpace(s)
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a core number", s)
	}
	if n > MaxCore {
		return 0, fmt.Errorf("core %d is above the highest possible, %d", n, MaxCore)
	}
	return int(n), nil
}

// String returns the shortest list that ParseCPUList reads back.
func (l CPUList) String() string {
	var b strings.Builder
	for i := 0; i < len(l); {
		j := i
		for j+1 < len(l) && l[j+1] == l[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(l[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(l[j]))
		}
		i = j + 1
	}
	return b.String()
}

// Minus returns the cores of l that are not in other.
func (l CPUList) Minus(other CPUList) CPUList {
	return slices.DeleteFunc(slices.Clone(l), func(core int) bool { return slices.Contains(other, core) })
}

// MarshalText makes the set a string in JSON, in the kernel's list format.
func (l CPUList) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads the kernel's list format.
func (l *CPUList) UnmarshalText(text []byte) error {
	list, err := ParseCPUList(string(text))
	if err != nil {
		return err
	}
	*l = list
	return nil
}
