//go:build linux

package output

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestOldLogsGoFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for i := range keepFiles + 5 {
		path := filepath.Join(dir, fmt.Sprintf("%02d.log", i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	// What is not a log stays, whatever its age.
	other := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := create(dir, "new")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	if len(logs) != keepFiles {
		t.Errorf("%d logs are kept, want %d", len(logs), keepFiles)
	}
	for name, want := range map[string]bool{"00.log": false, "05.log": false, fmt.Sprintf("%02d.log", keepFiles+4): true, "notes.txt": true} {
		_, err := os.Stat(filepath.Join(dir, name))
		if (err == nil) != want {
			t.Errorf("%s kept: %v, want %v", name, err == nil, want)
		}
	}
}
