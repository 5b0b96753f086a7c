package io.towpath;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.security.DigestInputStream;
import java.security.DigestOutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A log store of Delta for S3 in which any number of drivers may commit: a file that must be new is written by one put
 * with {@code If-None-Match: *}, which S3 refuses if the name is taken.
 *
 * <p>S3A needs Hadoop 3.4.2 for that; an older one, and any other file system, refuses the option. Lists the log as
 * {@link S3SingleDriverLogStore} does.
 */
public class S3ConditionalPutLogStore extends S3SingleDriverLogStore {

  private static final String IF_ABSENT = "fs.option.create.conditional.overwrite";
  private static final int BUFFER_BYTES = 1 << 16;

  public S3ConditionalPutLogStore(Configuration conf) {
    super(conf);
  }

  /**
   * Writes a file of the log, whole or not at all.
   *
   * @throws FileAlreadyExistsException if it must be new, and another writer's file has the name
   */
  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    MessageDigest digest = sha256();
    if (overwrite) {
      writeAll(files.create(path, true), actions, digest);
      return;
    }
    try {
      writeAll(createNew(files, path), actions, digest);
    } catch (IOException refused) {
      // S3A repeats a put whose answer was lost, and then meets its own file. The content tells: every commit has an
      // id and a time of its own.
      byte[] there = digestOf(files, path);
      if (there == null) {
        throw refused;
      }
      if (!MessageDigest.isEqual(there, digest.digest())) {
        FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
        taken.initCause(refused);
        throw taken;
      }
    }
  }

  @SuppressWarnings("unchecked") // Hadoop's createFile returns a raw type
  private static FSDataOutputStream createNew(FileSystem files, Path path) throws IOException {
    FSDataOutputStreamBuilder<FSDataOutputStream, ?> builder = files.createFile(path);
    builder.create().recursive().must(IF_ABSENT, true);
    return builder.build();
  }

  private static void writeAll(FSDataOutputStream stream, Iterator<String> actions, MessageDigest digest) throws IOException {
    boolean whole = false;
    OutputStream out = new DigestOutputStream(stream, digest);
    try {
      while (actions.hasNext()) {
        out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
      whole = true;
    } finally {
      if (whole) {
        out.close();
      } else {
        stream.abort(); // closing it would write what there is so far
      }
    }
  }

  /** Returns the digest of a file; null if there is none. */
  private static byte[] digestOf(FileSystem files, Path path) throws IOException {
    MessageDigest digest = sha256();
    byte[] buffer = new byte[BUFFER_BYTES];
    try (InputStream in = new DigestInputStream(files.open(path), digest)) {
      while (in.read(buffer) >= 0) {
        continue;
      }
    } catch (java.io.FileNotFoundException absent) {
      return null;
    }
    return digest.digest();
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException impossible) {
      throw new IllegalStateException(impossible);
    }
  }
}
