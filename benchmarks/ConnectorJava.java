import com.github.shyiko.mysql.binlog.BinaryLogClient;
import com.github.shyiko.mysql.binlog.event.EventData;
import com.github.shyiko.mysql.binlog.event.UpdateRowsEventData;
import com.github.shyiko.mysql.binlog.event.WriteRowsEventData;

/** Reads a binlog with mysql-binlog-connector-java, counts its rows, and ends with the last one. */
public class ConnectorJava {
  private static long rows = 0;

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
          if (rows >= expected) System.exit(0);
        });
    client.connect();
  }
}
