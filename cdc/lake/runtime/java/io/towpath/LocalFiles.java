package io.towpath;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system without processes. Without its native library, which PySpark does not have, Hadoop starts
 * {@code chmod} for each file that it creates, and {@code readlink} for each name that it renames.
 *
 * <p>This is {@code fs.file.impl}; {@link Context} is {@code fs.AbstractFileSystem.file.impl}.
 */
public class LocalFiles extends LocalFileSystem {

  public LocalFiles() {
    super(new Raw());
  }

  /** The same without files of checksums. */
  public static final class Raw extends RawLocalFileSystem {

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      File file = pathToFile(path);
      if (permission.getStickyBit() || !file.exists()) {
        super.setPermission(path, permission);
        return;
      }
      String letters = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL;
      letters += permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(file.toPath(), PosixFilePermissions.fromString(letters));
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      boolean isLink = Files.isSymbolicLink(pathToFile(path).toPath());
      return isLink ? super.getFileLinkStatus(path) : getFileStatus(path);
    }
  }

  /** The same for {@code FileContext}, with which Delta writes its log. */
  public static final class Context extends ChecksumFs {

    public Context(URI uri, Configuration conf) throws IOException, URISyntaxException {
      super(new RawContext(conf));
    }
  }

  private static final class RawContext extends DelegateToFileSystem {

    RawContext(Configuration conf) throws IOException, URISyntaxException {
      super(FsConstants.LOCAL_FS_URI, new Raw(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1; // a local file system has no port
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    @Deprecated
    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String path) {
      return true; // the operating system decides
    }
  }
}
