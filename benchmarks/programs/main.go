// Reads a binlog with go-mysql, counts its rows, prints the seconds from the first to the last one, and ends.
// Arguments: host, port, user, password, file, number of rows.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	port, err := strconv.ParseUint(os.Args[2], 10, 16)
	must(err)
	expected, err := strconv.Atoi(os.Args[6])
	must(err)
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: 9913, Flavor: "mariadb", Host: os.Args[1], Port: uint16(port), User: os.Args[3], Password: os.Args[4],
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	stream, err := syncer.StartSync(mysql.Position{Name: os.Args[5], Pos: 4})
	must(err)
	rows := 0
	var began time.Time
	for rows < expected {
		event, err := stream.GetEvent(context.Background())
		must(err)
		if found, ok := event.Event.(*replication.RowsEvent); ok {
			if rows == 0 {
				began = time.Now()
			}
			switch event.Header.EventType {
			case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1:
				rows += len(found.Rows) / 2
			default:
				rows += len(found.Rows)
			}
		}
	}
	fmt.Println(time.Since(began).Seconds())
}
