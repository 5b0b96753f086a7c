import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry.Column;
import com.alibaba.otter.canal.protocol.CanalEntry.Entry;
import com.alibaba.otter.canal.protocol.CanalEntry.EntryType;
import com.alibaba.otter.canal.protocol.CanalEntry.EventType;
import com.alibaba.otter.canal.protocol.CanalEntry.RowChange;
import com.alibaba.otter.canal.protocol.CanalEntry.RowData;
import com.alibaba.otter.canal.protocol.Message;
import com.alibaba.otter.canal.protocol.exception.CanalClientException;
import java.util.concurrent.TimeUnit;

/**
 * Reads changes by Canal's cluster client, which finds its server in ZooKeeper: ZOOKEEPER DESTINATION FILTER. It prints the
 * table and first column of each inserted row, and ends at the first row of a table named last. After an error that the
 * client itself does not get over, it connects again.
 */
public class CanalClusterReader {
    public static void main(String[] args) throws Exception {
        CanalConnector connector = CanalConnectors.newClusterConnector(args[0], args[1], "", "");
        boolean ended = false;
        while (!ended) {
            try {
                connector.connect();
                connector.subscribe(args[2]);
                connector.rollback();
                while (!ended) {
                    Message message = connector.getWithoutAck(1000, 300L, TimeUnit.MILLISECONDS);
                    if (message.getId() == -1) {
                        continue;
                    }
                    for (Entry entry : message.getEntries()) {
                        ended |= show(entry);
                    }
                    connector.ack(message.getId());
                }
            } catch (CanalClientException error) {
                System.out.println("AGAIN " + error.getMessage());
                ended = false;
                Thread.sleep(200);
            }
        }
        connector.disconnect();
        System.exit(0);
    }

    private static boolean show(Entry entry) throws Exception {
        if (entry.getEntryType() != EntryType.ROWDATA || entry.getHeader().getEventType() != EventType.INSERT) {
            return false;
        }
        String table = entry.getHeader().getTableName();
        for (RowData row : RowChange.parseFrom(entry.getStoreValue()).getRowDatasList()) {
            Column first = row.getAfterColumns(0);
            System.out.println("ROW " + table + " " + first.getValue());
        }
        return table.equals("last");
    }
}
