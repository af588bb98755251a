// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"math/rand/v2"
)

// Rates is how a generator's packets are shared among its flows.
type Rates string

const (
	Equal    Rates = "equal"
	Skewed   Rates = "skewed"   // by 1/rank, as Zipf has it
	Shifting Rates = "shifting" // skewed, and the ranks move on all the time
)

// slots is the length of the generator's schedule.
const slots = 1024

// Schedule returns which flow each of the generator's slots belongs to. shift
// moves the ranks of skewed flows on by that many.
func (r Rates) Schedule(flows, shift int) ([]uint16, error) {
	s := make([]uint16, slots)
	switch r {
	case Equal, "":
		for i := range s {
			s[i] = uint16(i % flows)
		}
		return s, nil
	case Skewed, Shifting:
	default:
		return nil, fmt.Errorf("rates %q: equal, skewed and shifting are known", r)
	}
	var sum float64
	for i := range flows {
		sum += 1 / float64(i+1)
	}
	at, upTo := 0, 0.0
	for rank := range flows {
		upTo += float64(slots) / sum / float64(rank+1)
		for ; at < slots && float64(at) < upTo; at++ {
			s[at] = uint16((rank + shift) % flows)
		}
	}
	// The same mix every time: a series should not depend on it.
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(slots, func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s, nil
}
