import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintWriter;
import java.util.Properties;

/** Writes what Debezium embedded makes of a database, one JSON document for each row event, in the order of the events. */
public class DebeziumRecorder {
  /** Arguments: connector (mysql, mariadb), host, port, user, password, database, number of events, file, file of offsets. */
  public static void main(String[] args) throws Exception {
    boolean isMaria = args[0].equals("mariadb");
    Properties properties = new Properties();
    String[][] settings = {
      {"name", "shop"}, {"topic.prefix", "shop"},
      {"connector.class", isMaria ? "io.debezium.connector.mariadb.MariaDbConnector" : "io.debezium.connector.mysql.MySqlConnector"},
      {"database.hostname", args[1]}, {"database.port", args[2]}, {"database.user", args[3]}, {"database.password", args[4]},
      {"database.server.id", "9913"}, {"database.include.list", args[5]}, {"database.ssl.mode", isMaria ? "disable" : "preferred"},
      {"snapshot.mode", "initial"}, {"include.schema.changes", "false"}, {"decimal.handling.mode", "string"},
      {"schema.history.internal", "io.debezium.relational.history.MemorySchemaHistory"},
      {"offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore"}, {"offset.storage.file.filename", args[8]},
      {"offset.flush.interval.ms", "0"}, {"key.converter.schemas.enable", "false"}, {"value.converter.schemas.enable", "false"},
      {"transforms", "unwrap"}, {"transforms.unwrap.type", "io.debezium.transforms.ExtractNewRecordState"},
      {"transforms.unwrap.delete.tombstone.handling.mode", "rewrite"}, {"transforms.unwrap.add.fields", "op,source.ts_ms"},
    };
    for (String[] setting : settings) properties.setProperty(setting[0], setting[1]);
    long expected = Long.parseLong(args[6]);
    PrintWriter out = new PrintWriter(args[7], "UTF-8");
    long[] written = {0};
    System.out.println("started");
    DebeziumEngine<ChangeEvent<String, String>> engine =
        DebeziumEngine.create(Json.class).using(properties)
            .using((success, message, error) -> {
              if (error != null) error.printStackTrace();
            })
            .notifying((events, committer) -> {
              for (ChangeEvent<String, String> event : events) {
                if (event.value() != null && event.value().contains("\"__op\"")) {
                  out.println(event.value());
                  written[0]++;
                }
                committer.markProcessed(event);
              }
              committer.markBatchFinished();
              out.flush();
              if (written[0] >= expected) {
                new Thread(() -> {
                  try {
                    Thread.sleep(2000); // until the offsets are written
                  } catch (InterruptedException error) {
                    throw new RuntimeException(error);
                  }
                  Runtime.getRuntime().halt(0);
                }).start();
              }
            })
            .build();
    engine.run();
  }
}
