// SPDX-License-Identifier: Apache-2.0

// Package traffic makes the lab's traffic and judges what arrives: generators,
// a checker that follows the sequence numbers of every flow, a latency probe,
// iperf3 and sockperf, servers with their clients, and the counters that go with them.
//
// It shares no code with the product, whose work it judges.
package traffic
