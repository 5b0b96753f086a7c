import com.github.shyiko.mysql.binlog.BinaryLogClient;
import com.github.shyiko.mysql.binlog.event.EventData;
import com.github.shyiko.mysql.binlog.event.UpdateRowsEventData;
import com.github.shyiko.mysql.binlog.event.WriteRowsEventData;

/** Reads a binlog with mysql-binlog-connector-java, counts its rows, prints the seconds from the first to the last one, and ends. */
public class ConnectorJava {
  private static long rows = 0;
  private static long began = 0;

  /** Arguments: host, port, user, password, file, number of rows. */
  public static void main(String[] args) throws Exception {
    long expected = Long.parseLong(args[5]);
    BinaryLogClient client = new BinaryLogClient(args[0], Integer.parseInt(args[1]), args[2], args[3]);
    client.setBinlogFilename(args[4]);
    client.setBinlogPosition(4);
    client.setServerId(9911);
    client.setKeepAlive(false);
    client.registerEventListener(
        event -> {
          EventData data = event.getData();
          if (data instanceof WriteRowsEventData) rows += ((WriteRowsEventData) data).getRows().size();
          else if (data instanceof UpdateRowsEventData) rows += ((UpdateRowsEventData) data).getRows().size();
          else return;
          if (began == 0) began = System.nanoTime();
          if (rows >= expected) {
            System.out.println((System.nanoTime() - began) / 1e9);
            System.exit(0);
          }
        });
    client.connect();
  }
}
