package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/limpet-dev/limpet/internal/store"
)

// versions is what this binary was made of.
type versions struct {
	Limpet   string `json:"limpet"`
	Go       string `json:"go"`
	SQLite   string `json:"sqlite"`
	Platform string `json:"platform"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of limpet, Go and SQLite in this binary",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := versionsOf(debug.ReadBuildInfo())
			if wantsJSON(c) {
				b, err := json.Marshal(v)
				if err != nil {
					return err
				}
				return writeLine(c.OutOrStdout(), b)
			}
			_, err := fmt.Fprint(c.OutOrStdout(), v.text())
			return err
		},
	}
}

func versionsOf(info *debug.BuildInfo, ok bool) versions {
	v := versions{Limpet: "(unknown)", Go: runtime.Version(), SQLite: store.SQLiteVersion, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Limpet = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v versions) text() string {
	s := fmt.Sprintf("limpet %s\ngo     %s %s\nsqlite %s\n", v.Limpet, v.Go, v.Platform, v.SQLite)
	if v.Revision != "" {
		s += "commit " + v.Revision
		if v.Time != "" {
			s += " of " + v.Time
		}
		if v.Modified {
			s += ", with changes"
		}
		s += "\n"
	}
	return s
}
