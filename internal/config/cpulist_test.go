// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCPUListReadsTheKernelsFormat(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want CPUList
		text string
	}{
		{"", nil, ""},
		{"\n", nil, ""},
		{"0", CPUList{0}, "0"},
		{"0-1\n", CPUList{0, 1}, "0-1"},
		{"2-4,9", CPUList{2, 3, 4, 9}, "2-4,9"},
		{" 9 , 2 - 4 ", CPUList{2, 3, 4, 9}, "2-4,9"},
		{"3,1-3,2", CPUList{1, 2, 3}, "1-3"},
		{"007", CPUList{7}, "7"},
		{"8191", CPUList{8191}, "8191"},
	} {
		got, err := ParseCPUList(tc.in)
		if err != nil {
			t.Errorf("%q: %v", tc.in, err)
			continue
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%q: %s", tc.in, d)
		}
		if got.String() != tc.text {
			t.Errorf("%q: text %q, want %q", tc.in, got.String(), tc.text)
		}
	}
}

func TestCPUListRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"x":                      `"x" is not a core number`,
		",":                      `"" is not a core number`,
		"1,":                     `"" is not a core number`,
		"-1":                     `"" is not a core number`,
		"+1":                     `"+1" is not a core number`,
		"1-2-3":                  `"2-3" is not a core number`,
		"4-2":                    `range "4-2" runs backwards`,
		"8192":                   `core 8192 is above the highest possible, 8191`,
		"0-4294967295":           `core 4294967295 is above the highest possible, 8191`,
		"0-99999999999999999999": `"99999999999999999999" is not a core number`,
	} {
		if _, err := ParseCPUList(in); err == nil || err.Error() != want {
			t.Errorf("%q: got error %v, want %s", in, err, want)
		}
	}
}

func TestCPUListSetOperations(t *testing.T) {
	a, b := CPUList{0, 1, 2, 5}, CPUList{1, 5, 7}
	if d := cmp.Diff(CPUList{0, 2}, a.Minus(b)); d != "" {
		t.Error("minus:", d)
	}
	// Lists of isolcpus and of nohz_full come one behind the other.
	if d := cmp.Diff(CPUList{2}, a.Minus(append(b, 0))); d != "" {
		t.Error("minus of what is in no order:", d)
	}
	if d := cmp.Diff(CPUList{0, 1, 2, 5}, a); d != "" {
		t.Error("an operation changed its operand:", d)
	}
}

func TestCPUListIsAStringInJSON(t *testing.T) {
	in := struct{ Cores CPUList }{CPUList{2, 3, 9}}
	data, err := json.Marshal(in)
	if err != nil || string(data) != `{"Cores":"2-3,9"}` {
		t.Fatalf("marshal: %s, %v", data, err)
	}
	out := in
	out.Cores = nil
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, out); d != "" {
		t.Error(d)
	}
}

func FuzzCPUList(f *testing.F) {
	for _, s := range []string{"", "0", "2-7,9", "1-0", "0-8191,0-8191", "a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseCPUList(s)
		if err != nil {
			return
		}
		for i, c := range l {
			if c < 0 || c > MaxCore || i > 0 && c <= l[i-1] {
				t.Fatalf("%q: %v is not an ascending set of cores", s, l)
			}
		}
		again, err := ParseCPUList(l.String())
		if err != nil {
			t.Fatalf("%q -> %q: %v", s, l.String(), err)
		}
		if d := cmp.Diff(l, again); d != "" {
			t.Fatal(d)
		}
	})
}
