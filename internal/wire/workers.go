package wire

import "sync"

// maxIdleWorkers is how many goroutines are kept for later calls.
const maxIdleWorkers = 64

// workers runs calls on goroutines that are used again: those have the stack
// already that calls need, which a new one must grow into.
type workers struct {
	mu     sync.Mutex
	idle   []chan *inCall
	closed bool
	wg     sync.WaitGroup
}

// run runs the call at once. It works after close too, for calls that were on
// their way.
func (w *workers) run(ic *inCall) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		c := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		c <- ic
		return
	}
	w.wg.Add(1) // close waits for the connections first, so that this is not the first after its Wait
	w.mu.Unlock()
	go w.work(ic)
}

func (w *workers) work(ic *inCall) {
	defer w.wg.Done()
	c := make(chan *inCall, 1)
	for ok := true; ok; {
		ic.run()
		ic = nil // let go of what it holds
		w.mu.Lock()
		if w.closed || len(w.idle) >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, c)
		w.mu.Unlock()
		ic, ok = <-c
	}
}

// close ends the goroutines, once their calls have ended, and waits for them.
// Call it when no connection is left.
func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	for _, c := range w.idle {
		close(c)
	}
	w.idle = nil
	w.mu.Unlock()
	w.wg.Wait()
}
