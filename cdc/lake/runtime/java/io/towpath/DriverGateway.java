package io.towpath;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connect.service.SessionKey;
import org.apache.spark.sql.connect.service.SparkConnectService$;
import py4j.Gateway;
import py4j.GatewayConnection;
import scala.Option;

/**
 * Lets processes of this machine reach the JVM of a Spark Connect server by Py4J, beside their Connect sessions.
 *
 * <p>It listens on the loopback address only, and asks for a token. Each connection has a thread and objects of its own:
 * they are released when the connection ends, however the process at its other end has died.
 */
public final class DriverGateway {
  private static final ThreadLocal<List<Dataset<?>>> persisted = ThreadLocal.withInitial(ArrayList::new);

  private DriverGateway() {}

  /** Begins to listen, and returns the port. */
  static int start(String token) throws IOException {
    ServerSocket listening = new ServerSocket(0, 0, InetAddress.getLoopbackAddress());
    startThread("gateway", () -> accept(listening, token));
    return listening.getLocalPort();
  }

  private static void accept(ServerSocket listening, String token) {
    while (true) {
      try {
        Socket socket = listening.accept();
        Gateway objects = new Gateway(DriverGateway.class);
        objects.startup();
        GatewayConnection connection = new GatewayConnection(objects, socket, token, List.of(), List.of());
        startThread("gateway-connection", () -> serve(connection));
      } catch (IOException error) {
        System.err.println("a connection to the gateway has failed: " + error);
      }
    }
  }

  private static void serve(GatewayConnection connection) {
    try {
      connection.run();
    } finally {
      persisted.get().forEach(rows -> rows.unpersist(false));
    }
  }

  private static void startThread(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
  }

  // What processes call; each runs in the thread of the connection.

  /** Returns the session below a Connect session. Jobs of this connection end with {@link #cancel}. */
  public static SparkSession session(String user, String id) {
    SparkSession session = find(user, id);
    session.sparkContext().addJobTag(tag(id));
    return session;
  }

  /** Keeps rows in memory until the connection ends, or they are released before. */
  public static Dataset<?> persist(Dataset<?> rows) {
    persisted.get().add(rows);
    return rows.persist();
  }

  /** Cancels the jobs of all connections for a Connect session. */
  public static void cancel(String user, String id) {
    find(user, id).sparkContext().cancelJobsWithTag(tag(id));
  }

  /** Fails if the server does not have the Connect session. */
  private static SparkSession find(String user, String id) {
    SessionKey key = new SessionKey(user, id);
    return SparkConnectService$.MODULE$.sessionManager().getIsolatedSession(key, Option.empty()).session();
  }

  private static String tag(String id) {
    return "towpath-" + id;
  }
}
