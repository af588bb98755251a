// SPDX-License-Identifier: Apache-2.0

// Package shell writes command lines for people to run. The names in them are chosen by others: a pod names its
// devices and its chains, and the line is pasted into root's shell.
package shell

import (
	"fmt"
	"strings"
)

// Line is a command line. Only this package makes one, so that no name comes into it unquoted.
type Line struct{ text string }

// template can be given as a constant only: what others chose comes into a line by its arguments.
type template string

// Command is a line in which each %s stands for a word, for a part of one, or for the words of a list. The rest of the template is the shell's:
// globs, substitutions, comments. A word that begins with '-' stays as it is: a template puts a name where its program
// expects no option.
func Command(t template, words ...any) Line {
	quoted := make([]any, len(words))
	for i, w := range words {
		list, several := w.([]string)
		if !several {
			list = []string{fmt.Sprint(w)}
		}
		quoted[i] = Words(list)
	}
	return Line{fmt.Sprintf(string(t), quoted...)}
}

func (l Line) String() string { return l.text }

// MarshalText makes JSON have it as a string.
func (l Line) MarshalText() ([]byte, error) { return []byte(l.text), nil }

// IsZero tells that there is no command.
func (l Line) IsZero() bool { return l.text == "" }

// In is the command, run in the network namespace that a path leads to; empty: in this one.
func (l Line) In(netns string) Line {
	if netns == "" || l.IsZero() {
		return l
	}
	return Line{Command("nsenter --net=%s ", netns).text + l.text}
}

// plain are the characters that no shell treats specially in a word which does not begin with '='.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_"

// Word spells a name as one word that any POSIX shell reads as that name, and that has printable ASCII only. A blank is
// spelled out as well: no name looks like several words, and a line break cannot come into one. So are quotes and
// backslashes: logs and JSON escape these, and a line that is copied from there would be quoted otherwise. A name ends
// at a NUL, as in the kernel.
func Word(name string) string {
	name, _, _ = strings.Cut(name, "\x00")
	if name != "" && name[0] != '=' && strings.Trim(name, plain) == "" {
		return name
	}
	if !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`'"\`, r) }) {
		return "'" + name + "'"
	}
	// A substitution loses line ends at its end.
	body := strings.TrimRight(name, "\n")
	var b strings.Builder
	for i := range len(body) {
		switch c := body[i]; {
		case c == '%':
			b.WriteString("%%")
		case strings.IndexByte(plain, c) < 0, c == '-' && i == 0: // which would be an option of printf
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return `"$(printf '` + b.String() + `')` + strings.Repeat("${IFS#??}", len(name)-len(body)) + `"`
}

// Words spells several.
func Words(names []string) string {
	words := make([]string, len(names))
	for i, name := range names {
		words[i] = Word(name)
	}
	return strings.Join(words, " ")
}

// see introduces the command at the end of a sentence.
const see = "; see: "

// See is a sentence that ends in a command, if there is one.
func See(sentence string, l Line) string {
	if l.IsZero() {
		return sentence
	}
	return sentence + see + l.text
}

// Cut parts a sentence from the command at its end, "see:" included. Names are the sentence's affair.
func Cut(text string) (sentence, command string) {
	if i := strings.LastIndex(text, see); i >= 0 {
		return text[:i+len("; ")], text[i+len("; "):]
	}
	return text, ""
}
