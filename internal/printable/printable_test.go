// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestWhatATerminalObeysIsSpelledOut(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"eth0: 93 % → core 1": "eth0: 93 % → core 1",
		"\x1b[2Jeth0":         `\x1b[2Jeth0`,
		"a\nb\tc\rd\x7f":      `a\nb\tc\rd\x7f`,
		"csi\u009b31m":        `csi\u009b31m`,
		"byte\x9b31m":         `byte\x9b31m`, // CSI of a terminal that does not read UTF-8
		"\u202egnp.exe":       `\u202egnp.exe`,
		"\U000e0041tag":       `\U000e0041tag`,
		`back\slash "quoted"`: `back\slash "quoted"`,
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %s, want %s", in, got, want)
		}
	}
	if got, want := Lines("a\x1bb\nc\x1bd\n"), "a\\x1bb\nc\\x1bd\n"; got != want {
		t.Errorf("Lines: %q, want %q", got, want)
	}
}

func TestJSONKeepsItsMeaning(t *testing.T) {
	const name = "\x1b\u009b\u202e\U000e0041\x7f→ \\"
	data, err := json.Marshal(name)
	if err != nil {
		t.Fatal(err)
	}
	text := JSON(string(data) + "\n")
	if text != Lines(text) {
		t.Errorf("%q has what a terminal obeys", text)
	}
	var back string
	if err := json.Unmarshal([]byte(text), &back); err != nil || back != name {
		t.Errorf("%s means %q, %v", text, back, err)
	}
}

// A part of a command would be another one: a line break in front of a name that is a program's makes it one.
func TestACommandIsNotBroken(t *testing.T) {
	got := Wrap("rule 1 of a chain  tells; see: nft -a list chain ip x reboot", 20)
	want := []string{"rule 1 of a chain", "tells;", "see: nft -a list chain ip x reboot"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
