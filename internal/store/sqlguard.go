package store

import (
	"fmt"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// ReservedPrefix begins the names of limpet's own tables, in any case of letters.
// SQL can neither see into them nor make others.
const ReservedPrefix = "_limpet_"

func reserved(name string) bool {
	return len(name) >= len(ReservedPrefix) && strings.EqualFold(name[:len(ReservedPrefix)], ReservedPrefix)
}

// guard is what statements of users are asked by SQLite while they are prepared, at
// first and whenever the schema has changed. It lets through what it knows.
type guard struct {
	active bool  // a statement of a user's is being prepared or runs
	denied error // why the first action was refused
	seen   sight
}

// sight is what a statement was seen to do while it was prepared.
type sight struct {
	grows  bool // inserts, updates or creates
	schema bool // changes the schema
	alters bool // by ALTER TABLE, which does not tell the new name
	pragma bool
}

// modules are the virtual tables that may be made.
var modules = map[string]bool{"fts5": true, "fts5vocab": true, "rtree": true, "rtree_i32": true, "geopoly": true}

// pragmaUse says how a pragma may be used.
type pragmaUse uint8

const (
	pragmaRead  pragmaUse = iota // without an argument
	pragmaAbout                  // with or without the name of something, or a number
	pragmaSet                    // also to set it
	pragmaOn                     // also to set it to what it is
)

// pragmas are those that are allowed (docs/SQL.md lists them). Nothing that belongs
// to the connection can be set: limpet opens and closes it as it likes.
var pragmas = map[string]pragmaUse{
	"table_info": pragmaAbout, "table_xinfo": pragmaAbout, "table_list": pragmaAbout,
	"index_list": pragmaAbout, "index_info": pragmaAbout, "index_xinfo": pragmaAbout,
	"foreign_key_list": pragmaAbout, "foreign_key_check": pragmaAbout,
	"quick_check": pragmaAbout, "integrity_check": pragmaAbout, "optimize": pragmaAbout,
	"function_list": pragmaRead, "module_list": pragmaRead, "pragma_list": pragmaRead, "collation_list": pragmaRead,
	"compile_options": pragmaRead, "database_list": pragmaRead,
	"page_count": pragmaRead, "page_size": pragmaRead, "freelist_count": pragmaRead,
	"encoding": pragmaRead, "schema_version": pragmaRead, "data_version": pragmaRead,
	"user_version": pragmaSet, "application_id": pragmaSet, "defer_foreign_keys": pragmaSet,
	"foreign_keys": pragmaOn,
}

const (
	textTransaction = "%s is not allowed in SQL: the writes of a turn are one transaction already; use State.Transaction (transactionSync in JavaScript), or Begin of State.DB, for a part that may be rolled back"
	textFiles       = "not supported: %s in SQL: an object has one database and no files; use another object, or export and import"
	textTemporary   = "not supported: temporary tables, indexes, views and triggers in SQL: they would be gone whenever limpet closes the connection; use an ordinary one, or WITH"
	textVacuum      = "not supported: VACUUM in SQL: it can't run within a turn; pages that are free are used again"
)

func notSupported(format string, args ...any) error {
	return limpet.Errorf(limpet.CodeNotSupported, format, args...)
}

func refused(format string, args ...any) error {
	return limpet.Errorf(limpet.CodeInvalidArgument, format, args...)
}

// authorize is the callback.
func (g *guard) authorize(a vfs.Action) vfs.Verdict {
	if !g.active {
		return vfs.Allow
	}
	err := g.look(a)
	switch {
	case err == nil:
		return vfs.Allow
	case a.Op == sqlite.OpAnalyze:
		return vfs.Ignore // an ANALYZE of everything goes on with the others
	}
	if g.denied == nil {
		g.denied = err
	}
	return vfs.Deny
}

// look decides; SPEC H31.
func (g *guard) look(a vfs.Action) error {
	switch a.Op {
	case sqlite.OpSelect, sqlite.OpRecursive:
		return nil
	case sqlite.OpFunction:
		if strings.EqualFold(a.Arg2, "load_extension") {
			return notSupported(textFiles, "load_extension()")
		}
		return nil
	case sqlite.OpTransaction, sqlite.OpSavepoint:
		return refused(textTransaction, a.Arg1)
	case sqlite.OpAttach:
		return notSupported(textFiles, "ATTACH")
	case sqlite.OpDetach:
		return notSupported(textFiles, "DETACH")
	case sqlite.OpPragma:
		g.seen.pragma = true
		return lookAtPragma(strings.ToLower(a.Arg1), a.Arg2)
	case sqlite.OpCreateTempIndex, sqlite.OpCreateTempTable, sqlite.OpCreateTempTrigger, sqlite.OpCreateTempView,
		sqlite.OpDropTempIndex, sqlite.OpDropTempTable, sqlite.OpDropTempTrigger, sqlite.OpDropTempView:
		return notSupported(textTemporary)
	}

	switch a.Op {
	case sqlite.OpCreateIndex, sqlite.OpCreateTable, sqlite.OpCreateTrigger, sqlite.OpCreateView, sqlite.OpCreateVTable,
		sqlite.OpAlterTable, sqlite.OpInsert:
		if strings.EqualFold(a.Database, "temp") || a.Op == sqlite.OpAlterTable && strings.EqualFold(a.Arg1, "temp") {
			return notSupported(textTemporary)
		}
	}
	// Of the others the first two arguments name tables, indexes, triggers, views,
	// columns and modules.
	switch a.Op {
	case sqlite.OpRead, sqlite.OpDelete, sqlite.OpAnalyze, sqlite.OpReindex:
	case sqlite.OpInsert:
		g.seen.grows = true
	case sqlite.OpUpdate:
		g.seen.grows = true
	case sqlite.OpAlterTable:
		g.seen.grows, g.seen.schema, g.seen.alters = true, true, true
		return reservedName(a.Arg2)
	case sqlite.OpCreateIndex, sqlite.OpCreateTable, sqlite.OpCreateTrigger, sqlite.OpCreateView:
		g.seen.grows, g.seen.schema = true, true
		if err := reservedName(a.Arg2); err != nil { // the table of an index or trigger
			return err
		}
	case sqlite.OpDropIndex, sqlite.OpDropTable, sqlite.OpDropTrigger, sqlite.OpDropView, sqlite.OpDropVTable:
		g.seen.schema = true
		if err := reservedName(a.Arg2); err != nil {
			return err
		}
	case sqlite.OpCreateVTable:
		g.seen.grows, g.seen.schema = true, true
		if !modules[strings.ToLower(a.Arg2)] {
			return notSupported("not supported: virtual tables of the module %.100q in SQL; there are fts5, fts5vocab, rtree, rtree_i32 and geopoly", a.Arg2)
		}
	default:
		return notSupported("not supported: %v in SQL", a.Op)
	}
	if strings.EqualFold(a.Arg1, "sqlite_dbpage") {
		return notSupported("not supported: the table sqlite_dbpage in SQL: it shows pages as they are, those of limpet's own tables too")
	}
	return reservedName(a.Arg1)
}

func reservedName(name string) error {
	if reserved(name) {
		return refused("%.100q can't be used in SQL: names that begin with %s are limpet's own (its key-value data is in State.KV); choose another", name, ReservedPrefix)
	}
	return nil
}

func lookAtPragma(name, arg string) error {
	use, ok := pragmas[name]
	switch {
	case !ok:
		return notSupported("not supported: PRAGMA %.64s in SQL; docs/SQL.md lists those that are", name)
	case arg == "" || use == pragmaSet:
		return nil
	case use == pragmaRead:
		return notSupported("not supported: setting PRAGMA %s in SQL: limpet opens and closes the connection, and decides that itself", name)
	case use == pragmaOn:
		switch strings.ToLower(strings.Trim(arg, `'"`)) {
		case "1", "on", "true", "yes":
			return nil
		}
		return notSupported("not supported: PRAGMA %s=%.32s in SQL: foreign keys are always checked; PRAGMA defer_foreign_keys=ON puts the checks off to the end of the turn", name, arg)
	}
	return reservedName(arg)
}

// firstWord is the first keyword of a text, in capitals, and what follows comments
// and semicolons in front of it.
func firstWord(text string) (word, rest string) {
	text = skipBlank(text)
	n := 0
	for n < len(text) && (text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z') {
		n++
	}
	return strings.ToUpper(text[:n]), text
}

// skipBlank drops what stands before a statement: blanks, comments, semicolons.
func skipBlank(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n\f;")
		switch {
		case strings.HasPrefix(text, "--"):
			_, after, ok := strings.Cut(text, "\n")
			if !ok {
				return ""
			}
			text = after
		case strings.HasPrefix(text, "/*"):
			_, after, ok := strings.Cut(text[2:], "*/")
			if !ok {
				return ""
			}
			text = after
		default:
			return text
		}
	}
}

// byWord refuses what the authorizer is not asked about, or too late for a clear
// answer.
func byWord(word string) error {
	switch word {
	case "BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE":
		return refused(textTransaction, word)
	case "VACUUM":
		return notSupported(textVacuum)
	case "ATTACH", "DETACH":
		return notSupported(textFiles, word)
	}
	return nil
}

var errAltered = fmt.Errorf("ALTER TABLE … RENAME TO: %w", reservedName(ReservedPrefix+"…"))
