package io.topiclake.store;

import io.topiclake.store.cache.CachingS3A;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.ContentSummary;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.StorageStatistics;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.ReflectionUtils;

/**
 * A store whose credential may be renewed while streams and tables use it.
 *
 * <p>Hadoop keeps one file system for a store in each JVM, with the credential that it was opened with. A
 * stream keeps one for its checkpoint. Here each of them is a light one in front of the real one, which all of a
 * store share. Newer settings open the real one again, also for earlier users.
 * So these are not to be kept in Hadoop's cache (`fs.<scheme>.impl.disable.cache`).
 */
public class RenewableFiles extends FilterFileSystem {
  /** With an account's host, or a bucket: when its settings changed last; `topiclake.session` sets it. */
  private static final String RENEWED = "fs.topiclake.renewed.";

  private static final Map<String, String> REAL =
      Map.of(
          "wasb", "org.apache.hadoop.fs.azure.NativeAzureFileSystem",
          "wasbs", "org.apache.hadoop.fs.azure.NativeAzureFileSystem$Secure",
          "abfs", "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
          "abfss", "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
          "s3a", CachingS3A.class.getName());

  /** With an account's key, the first file would make a container that is missing, or whose name is wrong. */
  private static final Set<String> MAKE_CONTAINERS = Set.of("wasb", "wasbs");

  /** So long a file that was begun with the earlier credential may take. */
  private static final Executor LATER = CompletableFuture.delayedExecutor(6, TimeUnit.HOURS);

  private record Name(String scheme, String authority, UserGroupInformation user) {}

  private static final Map<Name, Store> STORES = new ConcurrentHashMap<>();

  @Override
  public void initialize(URI uri, Configuration conf) throws IOException {
    Name name = new Name(uri.getScheme(), uri.getAuthority(), UserGroupInformation.getCurrentUser());
    STORES.computeIfAbsent(name, none -> new Store()).join(this, uri, conf);
    super.initialize(uri, conf);
  }

  /** The real file system of a store, which all its users share. */
  private static final class Store {
    private final Set<RenewableFiles> users = Collections.newSetFromMap(new WeakHashMap<>());
    private FileSystem real;
    private long renewed;

    synchronized void join(RenewableFiles user, URI uri, Configuration conf) throws IOException {
      String authority = uri.getAuthority();
      long changed = conf.getLong(RENEWED + authority.substring(authority.indexOf('@') + 1), 0);
      if (real == null || changed > renewed) {
        renew(open(uri, conf));
        renewed = changed;
      }
      user.fs = real;
      users.add(user);
    }

    private void renew(FileSystem next) {
      FileSystem before = real;
      real = next;
      users.forEach(user -> user.fs = next);
      if (before != null) {
        LATER.execute(() -> Unchecked.of(() -> close(before)));
      }
    }

    private static FileSystem open(URI uri, Configuration conf) throws IOException {
      try {
        Class<?> kind = conf.getClassByName(REAL.get(uri.getScheme()));
        FileSystem made = (FileSystem) ReflectionUtils.newInstance(kind, conf);
        made.initialize(uri, conf);
        if (MAKE_CONTAINERS.contains(uri.getScheme())) {
          requireContainer(made);
        }
        return made;
      } catch (ClassNotFoundException missing) {
        throw new IOException("the jars lack " + missing.getMessage(), missing);
      }
    }

    /** Asks with an account key only: Hadoop assumes that a SAS token's container exists, and never makes it. */
    private static void requireContainer(FileSystem made) throws IOException {
      try {
        made.getFileStatus(new Path("/"));
      } catch (FileNotFoundException none) {
        close(made);
        throw new IOException("the specified container does not exist: " + made.getUri(), none);
      }
    }

    private static boolean close(FileSystem before) throws IOException {
      before.close();
      return true;
    }
  }

  /** Others use the real one, too. */
  @Override
  public void close() {}

  // Methods that need fewer calls than in Hadoop's FilterFileSystem, which passes the other methods on.

  @Override
  public String getScheme() {
    return fs.getScheme();
  }

  @Override
  public boolean exists(Path path) throws IOException {
    return fs.exists(path);
  }

  @Override
  @Deprecated
  public boolean isDirectory(Path path) throws IOException {
    return fs.isDirectory(path);
  }

  @Override
  @Deprecated
  public boolean isFile(Path path) throws IOException {
    return fs.isFile(path);
  }

  @Override
  public RemoteIterator<LocatedFileStatus> listFiles(Path path, boolean recursive) throws IOException {
    return fs.listFiles(path, recursive);
  }

  @Override
  public FileStatus[] globStatus(Path pattern) throws IOException {
    return fs.globStatus(pattern);
  }

  @Override
  public FileStatus[] globStatus(Path pattern, PathFilter filter) throws IOException {
    return fs.globStatus(pattern, filter);
  }

  @Override
  public ContentSummary getContentSummary(Path path) throws IOException {
    return fs.getContentSummary(path);
  }

  @Override
  public BulkDelete createBulkDelete(Path base) throws IOException {
    return fs.createBulkDelete(base);
  }

  @Override
  public MultipartUploaderBuilder createMultipartUploader(Path base) throws IOException {
    return fs.createMultipartUploader(base);
  }

  @Override
  public StorageStatistics getStorageStatistics() {
    return fs.getStorageStatistics();
  }
}
