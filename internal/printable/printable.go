// SPDX-License-Identifier: Apache-2.0

// Package printable makes text fit for a terminal. Names of devices and of containers are chosen by others, and
// may hold what a terminal obeys: a device's name can have any byte but white space, '/' and ':'.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/overlane/overlane/internal/shell"
)

// Text is s with each character that is not printable written as in a Go string: \x1b, \n, \u202e. It is
// for the place where text is shown; data keeps what the kernel says.
func Text(s string) string {
	return escape(s, func(rune) bool { return false }, func(part string) string {
		q := strconv.Quote(part)
		return q[1 : len(q)-1]
	})
}

// Lines is Text for text of several lines, which are kept.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Text(l)
	}
	return strings.Join(lines, "\n")
}

// JSON is Lines for what an encoder has written. It stays the same JSON: of what is not printable, an
// encoder leaves in strings what is beyond ASCII.
func JSON(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' }, func(part string) string {
		r, _ := utf8.DecodeRuneInString(part)
		if r > 0xffff {
			a, b := utf16.EncodeRune(r)
			return fmt.Sprintf(`\u%04x\u%04x`, a, b)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
}

// Plural counts things: "1 rule", "2 rules".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Wrap breaks a text at blanks into lines of at most width characters; a longer word has a line of its own. So has a
// command at its end: a part of it would be another command, and a name in it may be one.
func Wrap(text string, width int) []string {
	sentence, command := shell.Cut(text)
	parts := strings.Fields(sentence)
	if command != "" {
		parts = append(parts, command)
	}
	return Fill(parts, width)
}

// Fill puts parts beside one another on lines of at most width characters.
func Fill(parts []string, width int) (lines []string) {
	for _, part := range parts {
		n := len(lines)
		if n > 0 && utf8.RuneCountInString(lines[n-1])+1+utf8.RuneCountInString(part) <= width {
			lines[n-1] += " " + part
		} else {
			lines = append(lines, part)
		}
	}
	return lines
}

func escape(s string, keep func(rune) bool, spell func(part string) string) string {
	var b strings.Builder
	done := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if (r == utf8.RuneError && n == 1) || !unicode.IsPrint(r) && !keep(r) {
			b.WriteString(s[done:i])
			b.WriteString(spell(s[i : i+n]))
			done = i + n
		}
		i += n
	}
	if done == 0 {
		return s
	}
	b.WriteString(s[done:])
	return b.String()
}
