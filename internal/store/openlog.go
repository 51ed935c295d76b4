package store

import "context"

// OpenLog opens a commit log without a store, in an empty directory that exists:
// the limit that benchmarks hold a durable put against. What it wrote can't be
// opened again. Of the options it takes FS, Dir, Clock, SegmentSize,
// UndurableLimit and Fatal. The log is ready for Append; close it when done.
func OpenLog(ctx context.Context, opt Options) (CommitLog, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	log := newSegmentLog(logOptions{
		fs: opt.FS, dir: opt.Dir, clock: opt.Clock,
		identity: logIdentity{history: newID(), disk: newID()},
		first:    1, size: opt.SegmentSize, undurableLimit: opt.UndurableLimit,
		fatal: opt.Fatal,
	})
	if _, err := log.Replay(ctx, func(Replayed) error { return nil }); err != nil {
		return nil, err
	}
	return log, nil
}
