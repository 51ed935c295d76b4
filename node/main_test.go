package node

import (
	"os"
	"syscall"
	"testing"
)

// TestUntilSignal: the first signal asks, the second ends at once.
func TestUntilSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		exited := make(chan int, 1)
		ctx, stop := untilSignal(func(code int) { exited <- code })
		send := func() {
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				t.Fatal(err)
			}
		}
		send()
		<-ctx.Done()
		select {
		case code := <-exited:
			t.Fatalf("%v: exit %d after one signal", sig, code)
		default:
		}
		send()
		if code := <-exited; code != 128+int(sig) {
			t.Errorf("%v: exit code %d, want %d", sig, code, 128+int(sig))
		}
		stop()
	}
}
