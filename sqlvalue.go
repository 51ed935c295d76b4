package limpet

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// SQLKind is the type of a SQLValue.
type SQLKind uint8

// The types of SQLite's values.
const (
	SQLNull SQLKind = iota
	SQLInteger
	SQLReal
	SQLText
	SQLBlob
)

var sqlKindNames = [...]string{"NULL", "INTEGER", "REAL", "TEXT", "BLOB"}

// String is SQLite's name of the type.
func (k SQLKind) String() string { return sqlKindNames[k] }

// SQLValue is a value as SQLite has it; the zero value is NULL. For limpet's own
// packages.
type SQLValue struct {
	Kind    SQLKind
	Integer int64
	Real    float64
	Text    string
	Blob    []byte
}

// SQLArg is an argument of a statement, by position if it has no name. For limpet's
// own packages.
type SQLArg struct {
	Name  string
	Value SQLValue
}

// Any is the value as nil, int64, float64, string or []byte (a copy).
func (v SQLValue) Any() any {
	switch v.Kind {
	case SQLInteger:
		return v.Integer
	case SQLReal:
		return v.Real
	case SQLText:
		return v.Text
	case SQLBlob:
		return append([]byte{}, v.Blob...)
	}
	return nil
}

// JSON makes v an argument of a statement, as a JSON text, and &v a place that Scan
// reads one into. NULL leaves the place alone. It works with database/sql too.
func JSON(v any) JSONValue { return JSONValue{v} }

// JSONValue is what JSON returns.
type JSONValue struct{ v any }

// Value implements driver.Valuer.
func (j JSONValue) Value() (driver.Value, error) {
	b, err := json.Marshal(j.v)
	if err != nil {
		return nil, invalid("", "JSON: %w", err)
	}
	return string(b), nil
}

// Scan implements sql.Scanner.
func (j JSONValue) Scan(from any) error {
	var b []byte
	switch v := from.(type) {
	case nil:
		return nil
	case string:
		b = []byte(v)
	case []byte:
		b = v
	default:
		return invalid("", "JSON: a %T is no text", from)
	}
	if err := json.Unmarshal(b, j.v); err != nil {
		return invalid("", "JSON: %w", err)
	}
	return nil
}

// timeFormat sorts as a text, and SQLite's date and time functions read it.
const timeFormat = "2006-01-02 15:04:05.000000000Z"

// timeFormats are those that Scan reads: what is stored, and what SQLite makes.
var timeFormats = []string{
	"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02",
}

func parseSQLTime(s string) (time.Time, bool) {
	for _, f := range timeFormats {
		if t, err := time.Parse(f, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

func sqlArgs(args []any) ([]SQLArg, error) {
	if len(args) == 0 {
		return nil, nil
	}
	list := make([]SQLArg, len(args))
	for i, a := range args {
		if n, ok := a.(sql.NamedArg); ok {
			list[i].Name, a = n.Name, n.Value
		}
		v, err := sqlValue(a)
		if err != nil {
			return nil, invalid("TypeError", "argument %d: %w", i+1, err)
		}
		list[i].Value = v
	}
	return list, nil
}

// sqlValue makes SQLite's value of a Go value.
func sqlValue(a any) (SQLValue, error) {
	switch v := a.(type) {
	case nil:
		return SQLValue{}, nil
	case int:
		return SQLValue{Kind: SQLInteger, Integer: int64(v)}, nil
	case int64:
		return SQLValue{Kind: SQLInteger, Integer: v}, nil
	case bool:
		if v {
			return SQLValue{Kind: SQLInteger, Integer: 1}, nil
		}
		return SQLValue{Kind: SQLInteger}, nil
	case float64:
		if math.IsNaN(v) {
			return SQLValue{}, errors.New("NaN: SQLite has no such number and would store NULL; give nil if that is meant")
		}
		return SQLValue{Kind: SQLReal, Real: v}, nil
	case string:
		return SQLValue{Kind: SQLText, Text: v}, nil
	case json.RawMessage:
		if v == nil {
			return SQLValue{}, nil
		}
		return SQLValue{Kind: SQLText, Text: string(v)}, nil
	case []byte:
		if v == nil {
			return SQLValue{}, nil
		}
		return SQLValue{Kind: SQLBlob, Blob: v}, nil
	case time.Time:
		v = v.UTC()
		if y := v.Year(); y < 0 || y > 9999 {
			return SQLValue{}, fmt.Errorf("a time in the year %d: years go from 0 to 9999", y)
		}
		return SQLValue{Kind: SQLText, Text: v.Format(timeFormat)}, nil
	case sql.NamedArg:
		return SQLValue{}, errors.New("a sql.NamedArg inside of another")
	}
	v, err := plainValue(a)
	if err != nil {
		return SQLValue{}, err
	}
	switch v.(type) {
	case nil, int64, float64, bool, []byte, string, time.Time:
		return sqlValue(v)
	}
	return SQLValue{}, fmt.Errorf("type %T is none that SQLite has: use nil, bool, integers, floats, string, []byte, time.Time or JSON(v)", a)
}

// plainValue is what database/sql makes of an argument. A Value method that panics
// is the caller's fault, and an error.
func plainValue(a any) (v driver.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("type %T panicked as an argument: %v", a, r)
		}
	}()
	return driver.DefaultParameterConverter.ConvertValue(a)
}

func scanRow(cols []string, row []SQLValue, into []any) error {
	if len(into) != len(row) {
		return invalid("", "Scan: %d pointers for %d columns (%.200s)", len(into), len(row), strings.Join(cols, ", "))
	}
	for i := range row {
		if into[i] == nil {
			continue
		}
		if err := scanValue(&row[i], into[i]); err != nil {
			return invalid("", "Scan: column %d (%.100s): %w", i+1, cols[i], err)
		}
	}
	return nil
}

// scanValue reads v into a pointer.
func scanValue(v *SQLValue, into any) error {
	switch p := into.(type) {
	case *any:
		*p = v.Any()
		return nil
	case *[]byte:
		switch v.Kind {
		case SQLBlob:
			*p = append([]byte{}, v.Blob...)
			return nil
		case SQLText:
			*p = []byte(v.Text)
			return nil
		case SQLNull:
			*p = nil
			return nil
		}
	case *time.Time:
		return scanTime(v, p)
	case sql.Scanner:
		return scanInto(p, v)
	case *string:
		if v.Kind == SQLText {
			*p = v.Text
			return nil
		}
	case *int64:
		if v.Kind == SQLInteger {
			*p = v.Integer
			return nil
		}
	}
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("%T is no pointer to scan into", into)
	}
	return scanReflect(v, target.Elem())
}

func scanInto(s sql.Scanner, v *SQLValue) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the Scan of %T panicked: %v", s, r)
		}
	}()
	return s.Scan(v.Any())
}

func scanTime(v *SQLValue, p *time.Time) error {
	switch v.Kind {
	case SQLInteger:
		*p = time.Unix(v.Integer, 0).UTC()
		return nil
	case SQLText:
		t, ok := parseSQLTime(v.Text)
		if !ok {
			return fmt.Errorf("%.100q is no time as SQLite writes it", v.Text)
		}
		*p = t
		return nil
	}
	return mismatch(v, "time.Time")
}

func scanReflect(v *SQLValue, t reflect.Value) error {
	switch k := t.Kind(); k {
	case reflect.Pointer:
		if v.Kind == SQLNull {
			t.SetZero()
			return nil
		}
		p := reflect.New(t.Type().Elem())
		if err := scanValue(v, p.Interface()); err != nil {
			return err
		}
		t.Set(p)
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if v.Kind == SQLInteger {
			if t.OverflowInt(v.Integer) {
				return fmt.Errorf("%d does not fit %v", v.Integer, t.Type())
			}
			t.SetInt(v.Integer)
			return nil
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if v.Kind == SQLInteger {
			if v.Integer < 0 || t.OverflowUint(uint64(v.Integer)) {
				return fmt.Errorf("%d does not fit %v", v.Integer, t.Type())
			}
			t.SetUint(uint64(v.Integer))
			return nil
		}
	case reflect.Float32, reflect.Float64:
		switch v.Kind {
		case SQLReal:
			t.SetFloat(v.Real)
			return nil
		case SQLInteger:
			t.SetFloat(float64(v.Integer))
			return nil
		}
	case reflect.Bool:
		if v.Kind == SQLInteger && (v.Integer == 0 || v.Integer == 1) {
			t.SetBool(v.Integer == 1)
			return nil
		}
	case reflect.String:
		if v.Kind == SQLText {
			t.SetString(v.Text)
			return nil
		}
	case reflect.Slice:
		if t.Type().Elem().Kind() == reflect.Uint8 {
			switch v.Kind {
			case SQLBlob:
				t.SetBytes(append([]byte{}, v.Blob...))
				return nil
			case SQLText:
				t.SetBytes([]byte(v.Text))
				return nil
			case SQLNull:
				t.SetZero()
				return nil
			}
		}
	case reflect.Interface:
		if t.NumMethod() == 0 {
			if a := v.Any(); a == nil {
				t.SetZero()
			} else {
				t.Set(reflect.ValueOf(a))
			}
			return nil
		}
	}
	return mismatch(v, t.Type().String())
}

func mismatch(v *SQLValue, target string) error {
	if v.Kind == SQLNull {
		return fmt.Errorf("NULL does not fit %s: scan into a pointer to it, a sql.Null or an any", target)
	}
	return fmt.Errorf("a value of type %v does not fit %s: CAST it in the query, or scan into an any", v.Kind, target)
}
