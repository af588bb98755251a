// SPDX-License-Identifier: Apache-2.0

package express

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

func TestMeasure(t *testing.T) {
	if os.Getenv("MEASURE") == "" {
		t.Skip()
	}
	configs := map[string]string{
		"plain":   "",
		"default": "metrics: off\naggregate: auto\n",
		"express": "metrics: off\naggregate: auto\nexpress: auto\n",
		"only":    "metrics: off\naggregate: off\nexpress: auto\npipeline: off\n",
	}
	settle, _ := time.ParseDuration(os.Getenv("SETTLE"))
	for round := range 3 {
		for _, name := range strings.Split(os.Getenv("MEASURE"), ",") {
			t.Run(fmt.Sprint(name, round), func(t *testing.T) {
				b := rig.Lab(t, bed.Options{})
				k := startTalk(t, b)
				var d *rig.Daemon
				if configs[name] != "" {
					d = rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: configs[name]})
				}
				time.Sleep(settle)
				from, at := k.read.Load(), time.Now()
				time.Sleep(3 * time.Second)
				rate := float64(k.read.Load()-from) / time.Since(at).Seconds()
				out := fmt.Sprintf("RESULT %-8s %.0f k/s late %d", name, rate/1000, k.late.Load())
				if d != nil {
					st := d.Status()
					for _, m := range st.Mechanisms {
						out += fmt.Sprintf(" | %s %s", m.Name, m.State)
					}
					out += fmt.Sprintf(" express %d drops %d left %d", st.Counters.ExpressPackets, st.Counters.ExpressDrops, st.Counters.ExpressLeft)
				}
				fmt.Println(out)
				snmp(t, b)
			})
		}
	}
}

func snmp(t *testing.T, b *bed.Bed) {
	b.Receiver().Pods[0].NS.Do(func() error {
		data, _ := os.ReadFile("/proc/thread-self/net/snmp")
		for _, l := range strings.Split(string(data), "\n") {
			if strings.HasPrefix(l, "Udp:") {
				fmt.Println("   ", l)
			}
		}
		return nil
	})
}

func TestMain(m *testing.M) { rig.Main(m) }
