package io.towpath;

import java.nio.file.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.service.SparkConnectService$;

/**
 * A Spark Connect server whose sessions may share a class loader.
 *
 * <p>Spark's own {@code SparkConnectServer} sets {@code spark.sql.artifact.isolation.enabled} and {@code
 * spark.sql.artifact.isolation.alwaysApplyClassloader} itself, whatever the configuration says. Here they have the
 * values of the configuration.
 */
public final class ConnectServer {

  /** Setting of the server: the port of its {@link DriverGateway}. */
  private static final String GATEWAY_PORT = "spark.towpath.gateway.port";

  private ConnectServer() {}

  public static void main(String[] arguments) {
    String archive = System.getProperty("towpath.classes");
    if (archive != null) {
      Path path = Path.of(archive);
      ClassArchive.writeAtExit(path.getParent().toString(), path.getFileName().toString());
    }
    try {
      int port = DriverGateway.start(new SparkConf().get("spark.connect.authenticate.token"));
      SparkSession spark = SparkSession.builder().config(GATEWAY_PORT, port).getOrCreate();
      SparkConnectService$.MODULE$.start(spark.sparkContext());
      SparkConnectService$.MODULE$.server().awaitTermination();
      spark.stop();
    } catch (Exception error) {
      error.printStackTrace();
      System.exit(1); // other threads may keep the process alive
    }
  }
}
