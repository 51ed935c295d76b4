// Package store keeps the data of all objects of a node: SQLite databases in
// memory, and one commit log that makes their commits durable.
//
//	object's turn ─> SQLite ─> vfs: changed pages ─> record ─> CommitLog ─> fdatasync
//	                                                            │
//	                         outputs wait at the gate until durable ≥ their Pos
//
// # Data directory
//
//	DIR/limpet.json       format, node, disk and history ID, class identities; replaced as a whole
//	DIR/lock, DIR/pid     one process at a time; who
//	DIR/log/00000001.seg  segments of the commit log, numbered without gaps
//	DIR/log/….seg.free    segments that were given back; removed at start
//	DIR/base/             the base store: one pebble without a log of its own
//
// # Segments
//
// All integers are little-endian. A segment has a fixed size (64 MiB unless
// configured) and is filled with zeros before it gets its name, so that
// appending overwrites blocks in place and fdatasync writes no metadata.
//
//	0                     4096
//	┌─────────────────────┬─────────┬─────────┬──┄┄──┬────────────────┐
//	│ header              │ frame   │ frame   │      │ zeros          │
//	└─────────────────────┴─────────┴─────────┴──┄┄──┴────────────────┘
//
//	header:  0 "LMPETSEG"   8 version u32: 1, or 2 for a segment that was used
//	                          before and holds rests of that instead of zeros
//	        12 header size u32 = 4096
//	        16 number u64  24 size u64  32 history ID  48 disk ID
//	        64 crc32c of bytes 0 to 63
//
// A batch is the records that became durable together; its number is the index
// of a Pos. It is one frame, or several when it crosses segments: then it counts
// only with its last frame. A piece that needs more room than the segment has
// left fills it; when 52 bytes or fewer are left, they stay zero.
//
//	frame:   0 "LMPF"       4 version u16 = 1    6 flags u8 (1: last piece)   7 zero
//	         8 group u32 = 0   12 piece u32, from 0
//	        16 term u64 = 1    24 index u64, from 1, without gaps
//	        32 time i64, Unix ms, informational
//	        40 length of the payload u32
//	        44 crc32c of the payload
//	        48 crc32c of bytes 0 to 47
//	        52 payload: (uvarint length, record)* once the pieces are put together
//
// Both checksums begin with history ID, disk ID, segment number and the frame's
// byte offset, and the second covers the first: a frame is valid only for its
// index and only at the place where it was written. So no rest of a recycled
// segment, of another disk, or of a log stored inside a value is taken for a
// batch.
//
// # Records
//
// A record is one commit of one object: redo that needs nothing but the state
// before it, and applies once, however often it is replayed. It begins with the
// object's slot, so that a range of slots can be picked out of a log.
//
//	┌──────────┬───────────┬─────────┬──────────────┬──────┬┄┄
//	│ slot u16 │ object ID │ section │ length       │ body │ next section …
//	│ big-end. │ 32 bytes  │ u8      │ uvarint      │      │
//	└──────────┴───────────┴─────────┴──────────────┴──────┴┄┄
//
//	1 txid        uvarint number of this commit, uvarint number of the object's commit before
//	2 birth       uvarint length, class identity, u8 1 if the object has a name
//	              (0: addressed by ID only); the rest is the name.
//	              In the first record of an object, and in no other
//	3 pages       u8 log2 of the page size, uvarint pages after the commit (the
//	              database is cut or grown to it), u64 checksum of all pages
//	              after the commit (vfs.Pages.Checksum), then the vfs page diff
//	4 identities  16 bytes nonce, i64 creation in Unix ms; any number of them
//	5 deletion    empty: the object has no data any more. Its numbers go on
//	6 piece       uvarint number from 0, then a vfs page diff: see below
//	7 spilled     uvarint pieces, uvarint bytes of their diffs, crc32c of those
//	8 alarm       reserved
//	9 kept        what is to say of calls; any number of entries:
//	                u8 1 keyed, 2 claimed, 4 outcome; 16 bytes and i64 that are
//	                the identity, or a hash of the idempotency key if keyed
//	                claimed: 32 bytes hash of method and arguments, i64 Unix ms
//	                outcome: u8 kind, not 0; uvarint length; that many bytes
//
// Sections ascend and come once; 1 is always there. An unknown one belongs to a
// newer format and is refused, never skipped. Replay refuses a record whose
// number before is not the object's last, and pages whose checksum is not the
// record's. slot is the first 16 bits of SHA-256 of the ID.
//
// # Large commits
//
// A commit whose record would pass 32 MiB (Options.SpillAbove) is spilled: its
// page diff comes in pieces of at most 1 MiB, each a record with sections 1 and
// 6 that counts for nothing by itself. The last record has all that a record
// has, identities and birth too, with an empty diff and section 7 instead.
// Other objects' records stand between, in the same batches or others:
//
//	A txid 5  ┊ A txid 5  ┊ B txid 9 ┊ A txid 5  ┊ C … ┊ A txid 5, prev 4
//	piece 0   ┊ piece 1   ┊ commit   ┊ piece 2   ┊     ┊ spilled: 3 pieces
//
//	no pieces ──piece 0──> pieces ──last record, all there──> commit, no pieces
//	                       │  ^ └──piece 0 or another record──> garbage, dropped
//	                       └──┘ piece that follows              (end of the log too)
//
// Replay keeps where pieces lie, not what they are, and reads them again when
// the last record comes. Pieces that do not follow, or are not what the last
// record says, are damage. The log must not be cut between a piece and its last
// record.
//
// The pieces are written while SQLite can still roll back (spill.go), after room
// for all of them was reserved: a commit that does not fit as a whole writes
// nothing. At most four wait for the disk at a time, and none is appended while
// the log is full.
//
// # Base store
//
// It has an image of each object as of one of its commits. Every key begins with
// the object's slot, big-endian, so that a range of slots can be listed, exported
// and deleted; then a byte that says what it is.
//
//	slot 0 id             object: u8 version = 1, u8 flags (1 deleted, 2 named,
//	                      4 one image, 8 mixed), u8 log2 of the page size or 0,
//	                      uvarint txid, term, index, pages; u64 checksum of all
//	                      pages, varint alarm in Unix ms (reserved, 0), uvarint
//	                      length, class identity; the rest is the name
//	slot 1 id             all pages of a database of at most 64 KiB: u8 form = 1,
//	                      a zstd frame
//	slot 2 id pgno u32    one page of a larger one: u8 0 for zeroes, or u8 1,
//	                      u64 vfs.PageSum, the page
//	slot 3 time u64 id    alarm (reserved): Unix ms with the sign turned, so that
//	                      keys are in order
//	slot 4 id             live claims and kept outcomes: see claims.go
//	slot 5 id             the object was deleted: its numbers go on until the log
//	                      has no record of it and its claims are too old
//	hi 00 6               32 bytes: a bit for each of the 256 slots from hi<<8 on
//	                      that may have keys 4 or 5, so that a start finds them
//	00 00 7               the store: u8 version = 1, history ID, disk ID, uvarint
//	                      term, index of the batch where replay begins, varint
//	                      number of objects with data
//
// One batch of pebble has all of an object. A change of more than 4 MiB takes
// several: the first says "mixed", and only the last the new transaction number. A
// crash in between leaves pages that are newer than the number; replay from there
// makes them right, since a diff says what bytes are.
//
// # Commit
//
//	Object.Commit ─> SQLite COMMIT ─> Admit (FCNTL_SYNC): record built, room reserved,
//	                      │                 │               pieces of a large one written
//	                      │                 └─ refused ─> SQLite rolls back: as before the turn
//	                      └──────────────> Publish (COMMIT_PHASETWO): appended, cannot fail
//
// Commit returns the Pos at once and the object goes on. Whatever leaves the
// object carries its LastPos and waits for it.
//
// # Recovery
//
// Open reads the log from the base store's position and notes where each object's
// records are (tail.go); an object's pages are loaded, its records applied and its
// checksums compared when it is used for the first time. Checkpoints are drawn in
// checkpoint.go.
//
// recovery (recover.go) draws how the end of the log is told from damage. Known
// limit: damage to the last batches of all looks like a torn tail and is cut;
// the number of bytes is reported. Everywhere else damage is refused with file,
// offset and remedy. What was written and not synced by a killed process is
// written again and synced before anyone sees it.
//
// # Failures
//
//	preparing a segment fails      commits that no longer fit fail before they are
//	                               made (ErrStorageFull), tried again every second
//	write or sync in a segment     never retried; every gate breaks (ErrLost) and the
//	in use fails                   process is to end; a restart reads the disk
//	64 MiB undurable               Full: no object starts another turn
//	the base store fails           nothing is lost; the log grows up to its bound
//	                               (Options.LogMax), then as when preparing fails. The
//	                               store is opened anew, tried every second
//	an object is damaged           it does not open; the log keeps its records
//
// # Limits
//
// A record is at most 32 MiB (MaxRecord), a commit 1 GiB (Options.MaxCommit), a
// key with its value 31 MiB. Options has the sizes of log
// and memory. The claims of the newest 1,048,576 identities are found again after
// a restart.
package store
