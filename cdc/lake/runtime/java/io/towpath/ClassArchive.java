package io.towpath;

import java.io.IOException;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.zip.CRC32;
import java.util.zip.CheckedInputStream;
import javax.management.JMException;
import javax.management.ObjectName;

/**
 * Writes the classes that this JVM has loaded into an archive when it ends, so that the next one maps them into memory
 * (AppCDS). The JVM needs {@code -XX:+RecordDynamicDumpInfo}.
 *
 * <p>{@code -XX:ArchiveClassesAtExit} would leave half a file behind where the JVM is killed meanwhile. This archive is
 * written under another name, and renamed when it is complete. The name has a checksum, because a JVM crashes if it maps
 * a damaged archive.
 */
public final class ClassArchive {

  private ClassArchive() {}

  /** Writes {@code FOLDER/NAME-CRC.jsa}, CRC being the CRC-32 of the file in eight hexadecimal digits. */
  public static void writeAtExit(String folder, String name) {
    Runtime.getRuntime().addShutdownHook(new Thread(() -> write(Path.of(folder), name), "class-archive"));
  }

  private static void write(Path folder, String name) {
    System.setOut(System.err); // Java tells what it does, and standard output is that of the command
    Path unfinished = folder.resolve(name + "." + ProcessHandle.current().pid() + ".new");
    try {
      try {
        Object[] arguments = {new String[] {"dynamic_dump", unfinished.toString()}};
        String[] signature = {String[].class.getName()};
        ObjectName commands = new ObjectName("com.sun.management:type=DiagnosticCommand");
        ManagementFactory.getPlatformMBeanServer().invoke(commands, "vmCds", arguments, signature);
        Path complete = folder.resolve(String.format("%s-%08x.jsa", name, checksum(unfinished)));
        Files.move(unfinished, complete, StandardCopyOption.ATOMIC_MOVE);
      } finally {
        Files.deleteIfExists(unfinished);
      }
    } catch (JMException | IOException error) {
      System.err.println("the archive of classes was not written: " + error);
    }
  }

  private static long checksum(Path file) throws IOException {
    try (CheckedInputStream in = new CheckedInputStream(Files.newInputStream(file), new CRC32())) {
      in.transferTo(OutputStream.nullOutputStream());
      return in.getChecksum().getValue();
    }
  }
}
