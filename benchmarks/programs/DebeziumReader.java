import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.connect.runtime.WorkerConfig;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.MemoryOffsetBackingStore;

/** Reads a binlog file with Debezium embedded, counts its rows, prints the seconds from the first to the last one, and ends. */
public class DebeziumReader {
  private static long rows = 0;
  private static long began = 0;

  /** Says that the binlog was read up to the start of the file, so that Debezium goes on from there. */
  public static class StartOfFile extends MemoryOffsetBackingStore {
    static String file;
    static String gtids;

    @Override
    public void configure(WorkerConfig config) {
      data.put(bytes("[\"bench\",{\"server\":\"bench\"}]"), bytes("{\"file\":\"" + file + "\",\"pos\":4,\"gtids\":\"" + gtids + "\"}"));
    }

    @Override
    public Set<Map<String, Object>> connectorPartitions(String connector) {
      return Set.of();
    }

    private static ByteBuffer bytes(String text) {
      return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }
  }

  private static void take(
      Collection<RecordChangeEvent<SourceRecord>> events, DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer, long expected)
      throws InterruptedException {
    for (RecordChangeEvent<SourceRecord> event : events) {
      if (!event.record().topic().startsWith("bench.bench.")) continue;
      if (began == 0) began = System.nanoTime();
      rows++;
    }
    if (rows >= expected) {
      System.out.println((System.nanoTime() - began) / 1e9);
      System.out.flush();
      Runtime.getRuntime().halt(0);
    }
    committer.markBatchFinished();
  }

  /** Arguments: host, port, user, password, file, number of rows, GTIDs before the file. */
  public static void main(String[] args) throws Exception {
    StartOfFile.file = args[4];
    StartOfFile.gtids = args[6];
    long expected = Long.parseLong(args[5]);
    Properties properties = new Properties();
    String[][] settings = {
      {"name", "bench"}, {"topic.prefix", "bench"},
      {"connector.class", "io.debezium.connector.mariadb.MariaDbConnector"},
      {"database.hostname", args[0]}, {"database.port", args[1]}, {"database.user", args[2]}, {"database.password", args[3]},
      {"database.server.id", "9912"}, {"database.include.list", "bench"}, {"database.ssl.mode", "disable"},
      {"snapshot.mode", "recovery"}, {"include.schema.changes", "false"},
      {"schema.history.internal", "io.debezium.relational.history.MemorySchemaHistory"},
      {"offset.storage", "DebeziumReader$StartOfFile"}, {"offset.flush.interval.ms", "60000"},
      // Tuned: large batches and queues, no waiting, no statistics of values.
      {"max.batch.size", "16384"}, {"max.queue.size", "131072"}, {"poll.interval.ms", "5"},
      {"tombstones.on.delete", "false"}, {"binlog.buffer.size", "0"}, {"connect.keep.alive", "false"},
    };
    for (String[] setting : settings) properties.setProperty(setting[0], setting[1]);
    DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
        DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(properties)
            .using((success, message, error) -> {
              System.err.println(message);
              if (error != null) error.printStackTrace();
              Runtime.getRuntime().halt(1);
            })
            .notifying((events, committer) -> take(events, committer, expected))
            .build();
    engine.run();
  }
}
