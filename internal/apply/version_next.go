// SPDX-License-Identifier: Apache-2.0

//go:build next

package apply

// With the build tag "next", for tests of upgrade and downgrade, this is a later overlane,
// whose journal the present one does not know.
const journalVersion = 3
