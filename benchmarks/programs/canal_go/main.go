// Reads changes by canal-go, as its example does: HOST PORT DESTINATION FILTER ROWS MODE. It ends after ROWS rows, or, if
// they are 0, at the first row of a table named last.
//
// MODE: print (every column on a line); rollback (each batch is rolled back once); reconnect (the connection is closed
// after every second batch, before the ack); restart (like print; after an error it connects until the server is there).
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/withlin/canal-go/client"
	entries "github.com/withlin/canal-go/protocol/entry"
	"google.golang.org/protobuf/proto"
)

func connect(again bool) *client.SimpleCanalConnector {
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	for {
		connector := client.NewSimpleCanalConnector(os.Args[1], port, "", "", os.Args[3], 60000, 3600000)
		if err = connector.Connect(); err == nil {
			if err = connector.Subscribe(os.Args[4]); err == nil {
				return connector
			}
		}
		if !again {
			log.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func show(which string, columns []*entries.Column) int {
	for _, one := range columns {
		fmt.Println(which, one.GetIndex(), one.GetName(), one.GetSqlType(), one.GetMysqlType(), one.GetIsKey(),
			one.GetUpdated(), one.GetIsNull(), one.GetValue())
	}
	return len(columns)
}

func main() {
	wanted, err := strconv.Atoi(os.Args[5])
	if err != nil {
		log.Fatal(err)
	}
	mode := os.Args[6]
	rows, values, batches, ended := 0, 0, 0, false
	connector := connect(false)
	for rows < wanted || (wanted == 0 && !ended) {
		message, err := connector.GetWithOutAck(100, nil, nil)
		if err != nil {
			if mode != "restart" {
				log.Fatal(err)
			}
			connector = connect(true)
			continue
		}
		if message.Id == -1 || len(message.Entries) == 0 {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		batches++
		if mode == "rollback" && batches%2 == 1 {
			connector.RollBack(message.Id)
			continue
		}
		if mode == "reconnect" && batches%2 == 1 {
			connector.DisConnection()
			connector = connect(true)
			continue
		}
		for i := range message.Entries {
			entry := &message.Entries[i]
			if entry.GetEntryType() != entries.EntryType_ROWDATA {
				continue
			}
			change := new(entries.RowChange)
			if err := proto.Unmarshal(entry.GetStoreValue(), change); err != nil {
				log.Fatal(err)
			}
			for _, row := range change.GetRowDatas() {
				rows++
				ended = ended || entry.GetHeader().GetTableName() == "last"
				if mode == "print" || mode == "restart" {
					fmt.Println("ROW", entry.GetHeader().GetEventType(), entry.GetHeader().GetTableName())
					values += show("before", row.GetBeforeColumns()) + show("after", row.GetAfterColumns())
				} else {
					values += len(row.GetBeforeColumns()) + len(row.GetAfterColumns())
				}
			}
		}
		if err := connector.Ack(message.Id); err != nil && mode != "restart" {
			log.Fatal(err)
		}
	}
	connector.DisConnection()
	fmt.Println(rows, "rows,", values, "values,", batches, "batches")
}
