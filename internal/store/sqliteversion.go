package store

import "zombiezen.com/go/sqlite"

// SQLiteVersion is the version of SQLite that is built in, such as "3.53.0".
const SQLiteVersion = sqlite.Version
