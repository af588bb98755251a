// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"reflect"
)

// event is a channel to receive from, and what is done then.
type event struct {
	from reflect.Value
	do   func(reflect.Value) error
}

// on is what is done with what comes from a channel; nothing comes from nil.
func on[T any](from <-chan T, do func(T) error) event {
	return event{reflect.ValueOf(from), func(v reflect.Value) error {
		got, _ := v.Interface().(T)
		return do(got)
	}}
}

// first waits for the first of them to come, and does it: a select for as many as there are.
func first(events []event) error {
	cases := make([]reflect.SelectCase, len(events))
	for i, e := range events {
		cases[i] = reflect.SelectCase{Dir: reflect.SelectRecv, Chan: e.from}
	}
	i, v, _ := reflect.Select(cases)
	return events[i].do(v)
}
