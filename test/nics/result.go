// SPDX-License-Identifier: Apache-2.0

package nics

// Row is what became of one mechanism on one NIC.
type Row struct {
	NIC       string
	Driver    string
	Kernel    string
	Mechanism string
	// Acts tells that counters show it; State and Reason are what status says of it.
	Acts          bool
	State, Reason string
	// Exit is the status of a daemon that ended by itself, with what it said last.
	Exit int
	Said string `json:",omitempty"`

	// Before anything of the daemon is there, from its start until two seconds after it acts, and
	// from when it is told to end until two seconds after it has ended.
	Before, Attach, Detach Phase
	// Load is what came of the load meanwhile.
	Load Count
	// Carrier is how often the carrier of a NIC changed.
	Carrier int
	// Left is what differs from before, kernel threads among it.
	Left []string
}

// Phase is the stream in both directions: to the machine, and from it.
type Phase struct{ In, Out Count }

// Mark begins the line of a row in the output of the machine.
const Mark = "ROW "
