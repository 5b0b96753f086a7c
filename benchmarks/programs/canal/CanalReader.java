import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry.Column;
import com.alibaba.otter.canal.protocol.CanalEntry.Entry;
import com.alibaba.otter.canal.protocol.CanalEntry.EntryType;
import com.alibaba.otter.canal.protocol.CanalEntry.RowChange;
import com.alibaba.otter.canal.protocol.CanalEntry.RowData;
import com.alibaba.otter.canal.protocol.CanalEntry.EventType;
import com.alibaba.otter.canal.protocol.Message;
import com.alibaba.otter.canal.protocol.exception.CanalClientException;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.util.List;

/**
 * Reads changes by Canal's client, as its example does: HOST PORT DESTINATION FILTER ROWS MODE [FETCH_SIZE]. It ends after
 * ROWS rows, or, if they are 0, at the first row of a table named last.
 *
 * MODE: count; print (every column on a line); rollback (each batch is rolled back once); reconnect (the connection is
 * closed after every batch, before the ack of every second one); restart (like print; after an error it connects until
 * the server is there). The last line is the seconds from the first to the last row; the one before it has the rows, the
 * seconds and the CPU seconds of this process after the first half, when its code is compiled.
 */
public class CanalReader {
    public static void main(String[] args) throws Exception {
        long wanted = Long.parseLong(args[4]);
        String mode = args[5];
        long rows = 0, first = 0, last = 0, values = 0;
        long half = 0, halfAt = 0, halfCpu = 0;
        int batches = 0;
        int fetchSize = args.length > 6 ? Integer.parseInt(args[6]) : 5 * 1024;
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        boolean ended = false;
        CanalConnector connector = connect(args);
        while (rows < wanted || (wanted == 0 && !ended)) {
            Message message;
            try {
                message = connector.getWithoutAck(fetchSize);
            } catch (CanalClientException error) {
                if (!mode.equals("restart")) {
                    throw error;
                }
                connector = connectAgain(args);
                continue;
            }
            long id = message.getId();
            if (id == -1 || message.getEntries().isEmpty()) {
                Thread.sleep(5);
                continue;
            }
            batches++;
            if (mode.equals("rollback") && batches % 2 == 1) {
                connector.rollback(id);
                continue;
            }
            if (mode.equals("reconnect") && batches % 2 == 1) {
                connector.disconnect();
                connector = connect(args);
                continue;
            }
            if (first == 0) {
                first = System.nanoTime();
            }
            for (Entry entry : message.getEntries()) {
                ended |= entry.getHeader().getTableName().equals("last") && entry.getEntryType() == EntryType.ROWDATA
                    && entry.getHeader().getEventType() == EventType.INSERT;
                if (mode.equals("print") || mode.equals("restart")) {
                    System.out.println("ENTRY " + entry.getEntryType() + " " + entry.getHeader().getLogfileName() + ":"
                        + entry.getHeader().getLogfileOffset() + " " + entry.getHeader().getSchemaName() + "."
                        + entry.getHeader().getTableName() + " " + entry.getHeader().getEventType());
                }
                if (entry.getEntryType() != EntryType.ROWDATA) {
                    continue;
                }
                RowChange change = RowChange.parseFrom(entry.getStoreValue());
                for (RowData row : change.getRowDatasList()) {
                    rows++;
                    values += show("before", row.getBeforeColumnsList(), mode);
                    values += show("after", row.getAfterColumnsList(), mode);
                }
            }
            last = System.nanoTime();
            if (halfAt == 0 && 2 * rows >= wanted) {
                half = rows;
                halfAt = last;
                halfCpu = system.getProcessCpuTime();
            }
            try {
                connector.ack(id);
            } catch (CanalClientException error) {
                if (!mode.equals("restart")) {
                    throw error;
                }
                connector = connectAgain(args);
            }
        }
        long cpu = system.getProcessCpuTime();
        if (mode.equals("count")) {
            connector.unsubscribe();
        }
        connector.disconnect();
        System.out.println(rows + " rows, " + values + " values, " + batches + " batches");
        System.out.println((rows - half) + " rows in " + (last - halfAt) / 1e9 + " s and " + (cpu - halfCpu) / 1e9 + " CPU s");
        System.out.println((last - first) / 1e9);
    }

    private static CanalConnector connectAgain(String[] args) throws Exception {
        while (true) {
            try {
                return connect(args);
            } catch (CanalClientException error) {
                Thread.sleep(100);
            }
        }
    }

    private static CanalConnector connect(String[] args) {
        InetSocketAddress address = new InetSocketAddress(args[0], Integer.parseInt(args[1]));
        CanalConnector connector = CanalConnectors.newSingleConnector(address, args[2], "", "");
        connector.connect();
        connector.subscribe(args[3]);
        connector.rollback();
        return connector;
    }

    private static long show(String which, List<Column> columns, String mode) {
        if (mode.equals("print") || mode.equals("restart")) {
            for (Column one : columns) {
                System.out.println(which + " " + one.getIndex() + " " + one.getName() + " " + one.getSqlType() + " "
                    + one.getMysqlType() + " " + one.getIsKey() + one.getUpdated() + one.getIsNull() + " "
                    + one.getValue());
            }
        }
        return columns.size();
    }
}
