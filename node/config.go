package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/mutation"
	"github.com/limpet-dev/limpet/internal/store"
)

// DefaultDir is the data directory when Config.Dir is empty.
const DefaultDir = ".limpet"

// Config says what a node is made of. The zero value of every field is its
// default.
type Config struct {
	// Dir is the data directory: made if it does not exist, and used by one
	// process at a time. Empty means DefaultDir. A directory with other things
	// in it is refused.
	Dir string
	// Classes are the classes whose objects run here.
	Classes []*limpet.Class
	// Namespaces binds classes to names, such as "CART", and sets defaults for
	// their stubs. A class that none of them names is bound to its own name in
	// upper snake case: ChatRoom to CHAT_ROOM; one that is named here has only
	// the bindings that are given here. Two bindings of one class lead to the
	// same objects.
	Namespaces map[string]Namespace
	// IdleTimeout is how long an object without an event stays in memory; 0
	// means 10 s (SPEC H60).
	IdleTimeout time.Duration
	// DrainTimeout is how long Drain lets calls that run go on; 0 means 30 s.
	DrainTimeout time.Duration
	// KeyRetention is how long an idempotency key is known, by this machine's clock
	// over restarts; 0 means 24 h. MaxKeys is how many are known at most, each some
	// 300 bytes; 0 means 1,048,576. Beyond it calls with new keys are refused as
	// Overloaded. OutcomeMemory is how many bytes of outcomes are kept, of calls
	// with keys and with limpet.ReplayOutcome; 0 means 64 MiB. The oldest make
	// room; their calls stay known (docs/RETRIES.md).
	KeyRetention  time.Duration
	MaxKeys       int
	OutcomeMemory int64
	// MaxBody is the largest request body the HTTP door takes, in bytes; 0
	// means 32 MiB.
	MaxBody int64
	// BufferBody is how many bytes of a request's body the HTTP door keeps while
	// an object's fetch reads it, so that it can be sent again (limpet.BufferBody).
	// 0, the default, leaves it to the namespace's Defaults, and so to none:
	// between the door and the objects of its own node nothing gets lost, and what
	// is kept is memory.
	BufferBody int64
	// ReplayMemory is how many bytes of arguments and buffered bodies the node's
	// own calls (those of its objects, its HTTP door and the program around it)
	// may keep for retries, all together, and ReplayMemoryPerCall of one call; 0
	// means 64 MiB and 32 MiB. A call that finds no room runs, and is not retried
	// (SPEC G21).
	ReplayMemory, ReplayMemoryPerCall int64
	// Hosts are names accepted in the Host header of requests on a loopback
	// address, besides localhost and loopback addresses: those of a proxy on the
	// same machine. "*" accepts all.
	Hosts []string
	// Limits bound what objects do with their data.
	Limits Limits
	// PageMemory is how many bytes of database pages the node keeps in memory,
	// about; 0 means a quarter of the machine's memory or of the Go memory limit,
	// whichever is lower. Beyond it objects with nothing to do are written down and
	// evicted before their idle timeout, those used longest ago first, and of large
	// databases pages that were not used lately are read again when they are needed. What
	// a running turn changes stays in memory in any case.
	PageMemory int64
	// Connections is how many objects may have an open connection to SQLite before
	// those that have nothing to do are evicted early; one costs some 60 KiB. 0
	// means an eighth of the memory, from 1,000 to 100,000.
	Connections int
	// LogSize is how many bytes the commit log has, about, before objects are written
	// down so that it can be used again; 0 means 1 GiB, the least is 8 MiB. When that does not work, which the
	// node's log says, it grows to four times as much, and then commits fail with
	// CodeStorageFull.
	LogSize int64
	// Wire is where the node takes calls of other processes; by default it takes
	// none.
	Wire Wire
	// Logger gets what an operator should see; nil means slog.Default().
	Logger *slog.Logger
	// Clock is where all waiting goes through; nil means SystemClock.
	Clock limpet.Clock
	// Fatal is called once when the commit log has failed, on a goroutine of its
	// own: every gate is broken, and what was not durable is lost. nil means to
	// end the process with exit code ExitLogFailed, which is the only safe thing
	// to do.
	Fatal func(error)

	disk        store.FS
	segmentSize int64
	network     func(dispatch.Transport) dispatch.Transport
	random      rand.Source
	mutations   mutation.Set
}

const minLogSize = 8 << 20

// ExitLogFailed is the exit code of a process whose commit log failed.
const ExitLogFailed = 4

// Namespace binds a class.
type Namespace struct {
	// Class is the name of a class in Config.Classes.
	Class string
	// Defaults are options of every stub of the namespace; what a stub is given
	// itself wins, field by field.
	Defaults []limpet.StubOption
}

// OnDisk is the configuration on another disk than the machine's own, with
// segments of another size than 64 MiB (0). It is for limpettest.
func (c Config) OnDisk(disk store.FS, segmentSize int64) Config {
	c.disk, c.segmentSize = disk, segmentSize
	return c
}

// OnNetwork is the configuration with something between callers and objects: wrap
// is given the way to the node's objects at Open, and what it returns is how the
// node's own calls reach them. random makes identities and backoffs, as in
// dispatch.Config. It is for limpettest.
func (c Config) OnNetwork(wrap func(dispatch.Transport) dispatch.Transport, random rand.Source) Config {
	c.network, c.random = wrap, random
	return c
}

// Mutated is the configuration of a node that breaks its promise on purpose. It is
// for bench/promise; the node says so in its log.
func (c Config) Mutated(m mutation.Set) Config {
	c.mutations = m
	return c
}

func (c *Config) defaults() {
	if c.Dir == "" {
		c.Dir = DefaultDir
	}
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 10*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.KeyRetention = cmp.Or(c.KeyRetention, 24*time.Hour)
	c.OutcomeMemory = cmp.Or(c.OutcomeMemory, 64<<20)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = SystemClock()
	}
	c.PageMemory = cmp.Or(c.PageMemory, memoryBytes()/4)
	c.Connections = cmp.Or(c.Connections, int(min(max(memoryBytes()/8/(64<<10), 1000), 100_000)))
}

// validate tells everything that is wrong at once.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, limpet.Errorf(limpet.CodeInvalidArgument, format, args...))
	}
	if len(c.Classes) == 0 {
		bad("Config.Classes is empty: a node needs at least one class")
	}
	names := map[string]bool{}
	for i, class := range c.Classes {
		if class == nil {
			bad("Config.Classes[%d] is nil", i)
			continue
		}
		if names[class.Name()] {
			bad("class %s is given twice", class.Name())
		}
		names[class.Name()] = true
		if err := class.Err(); err != nil {
			errs = append(errs, err)
		}
	}
	for binding, ns := range c.Namespaces {
		if !validBinding(binding) {
			bad("namespace %.200q: a binding is 1 to 128 letters, digits or _", binding)
		}
		if !names[ns.Class] {
			bad("namespace %s: there is no class %q", binding, ns.Class)
		}
		if _, err := limpet.DefaultRetryPolicy().With(ns.Defaults...); err != nil {
			errs = append(errs, fmt.Errorf("namespace %s: %w", binding, err))
		}
	}
	if err := c.Wire.validate(); err != nil {
		bad("%w", err)
	}
	if err := c.Limits.store().Validate(); err != nil {
		bad("Config.Limits: %w", err)
	}
	if c.PageMemory < 0 || c.Connections < 0 {
		bad("Config.PageMemory is %d and Config.Connections %d: they must not be negative; 0 means the default", c.PageMemory, c.Connections)
	}
	if c.LogSize < 0 || c.LogSize > 0 && c.LogSize < minLogSize {
		bad("Config.LogSize is %d: must be 0, which means the default, or at least %d bytes", c.LogSize, minLogSize)
	}
	for _, f := range []struct {
		name     string
		value    any
		negative bool
	}{
		{"IdleTimeout", c.IdleTimeout, c.IdleTimeout < 0},
		{"DrainTimeout", c.DrainTimeout, c.DrainTimeout < 0},
		{"KeyRetention", c.KeyRetention, c.KeyRetention < 0},
		{"MaxKeys", c.MaxKeys, c.MaxKeys < 0},
		{"OutcomeMemory", c.OutcomeMemory, c.OutcomeMemory < 0},
		{"MaxBody", c.MaxBody, c.MaxBody < 0},
		{"BufferBody", c.BufferBody, c.BufferBody < 0},
		{"ReplayMemory", c.ReplayMemory, c.ReplayMemory < 0},
		{"ReplayMemoryPerCall", c.ReplayMemoryPerCall, c.ReplayMemoryPerCall < 0},
	} {
		if f.negative {
			bad("Config.%s is %v: must not be negative; 0 means the default", f.name, f.value)
		}
	}
	return errors.Join(errs...)
}

// namespaces is Config.Namespaces with the classes that it leaves out.
func (c *Config) namespaces() (map[string]Namespace, error) {
	all, bound := map[string]Namespace{}, map[string]bool{}
	for binding, ns := range c.Namespaces {
		all[binding] = ns
		bound[ns.Class] = true
	}
	for _, class := range c.Classes {
		if bound[class.Name()] {
			continue
		}
		binding := upperSnake(class.Name())
		if other, taken := all[binding]; taken {
			return nil, limpet.Errorf(limpet.CodeInvalidArgument, "class %s would be bound to %s, as %s is: name it in Config.Namespaces", class.Name(), binding, other.Class)
		}
		all[binding] = Namespace{Class: class.Name()}
	}
	return all, nil
}

func validBinding(s string) bool {
	if len(s) == 0 || len(s) > 128 {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return r != '_' && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}) < 0
}

// upperSnake turns a class's name into a binding's: ChatRoom into CHAT_ROOM,
// HTTPRoom into HTTP_ROOM.
func upperSnake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && runes[i-1] != '_' {
			endsWord := !unicode.IsUpper(runes[i-1])
			startsWord := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if endsWord || startsWord {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}
