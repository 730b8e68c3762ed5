package io.topiclake.store;

import io.delta.storage.internal.S3LogStoreUtil;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.FutureDataInputStreamBuilder;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.impl.FutureIOSupport;
import org.apache.hadoop.fs.impl.OpenFileParameters;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.util.Progressable;
import org.apache.hadoop.util.functional.RemoteIterators;

/**
 * S3A that asks once for what never changes: the files of a Delta table and of its log.
 *
 * <p>Spark and Delta each ask for the length of a data file that they have just written, S3A asks for that of a
 * commit before it reads it, though the listing has told, and Delta reads the same commits with each batch. All
 * of them are made once, under a name that is never used again. What is overwritten (`_last_checkpoint`, a
 * stream's files) is always asked for, but for what {@link Recent} says.
 */
public class RememberingS3A extends S3AFileSystem {
  private static final Pattern DATA = Pattern.compile("part-.*\\.parquet");
  private static final Pattern COMMIT = Pattern.compile("\\d{20}\\.json");
  private static final Pattern CHECKSUM = Pattern.compile("\\d{20}\\.crc");
  private static final int MOST = 20_000;

  private final Map<Path, FileStatus> known =
      Collections.synchronizedMap(
          new LinkedHashMap<>(16, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<Path, FileStatus> eldest) {
              return size() > MOST;
            }
          });

  private final CommitBytes commits = new CommitBytes();
  private final Recent recent = new Recent();

  /** Return the one behind `fs`; null where there is none. */
  static RememberingS3A behind(FileSystem fs) {
    FileSystem real = fs instanceof FilterFileSystem front ? front.getRawFileSystem() : fs;
    return real instanceof RememberingS3A remembering ? remembering : null;
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    Path whole = makeQualified(path);
    FileStatus status = known.get(whole);
    if (status == null) {
      status = inLog(whole);
    }
    if (status != null) {
      return status;
    }
    if (!Recent.isKept(whole)) {
      return remembered(super.getFileStatus(whole));
    }
    return seen(whole).there(whole);
  }

  /** Ask for a folder first: S3A looks for a file first, and takes two calls. */
  private Recent.Seen seen(Path whole) throws IOException {
    Recent.Seen before = recent.get(whole);
    if (before != null) {
      return before;
    }
    if (Recent.isMetadata(whole)) {
      return seenFile(whole);
    }
    if (Recent.isListed(whole)) {
      return seenListed(whole);
    }
    if (super.isDirectory(whole)) {
      return recent.putFolder(whole);
    }
    boolean isFile = !Recent.isReserved(whole) && super.isFile(whole);
    return isFile ? recent.put(super.getFileStatus(whole)) : recent.putAbsent(whole);
  }

  private Recent.Seen seenFile(Path whole) throws IOException {
    try {
      return recent.put(super.getFileStatus(whole));
    } catch (FileNotFoundException none) {
      return recent.putAbsent(whole);
    }
  }

  /** Who asks for such a folder lists it next; one call tells both. */
  private Recent.Seen seenListed(Path whole) throws IOException {
    FileStatus[] found = S3LogStoreUtil.s3ListFromArray(this, new Path(whole, "0"), whole);
    if (found.length > 0 && Stream.of(found).allMatch(file -> Recent.isOfLog(whole, file.getPath()))) {
      return recent.putListing(whole, found);
    }
    // Somebody's own folder of that name, or none.
    if (super.isDirectory(whole)) {
      return recent.putFolder(whole);
    }
    return super.isFile(whole) ? recent.put(super.getFileStatus(whole)) : recent.putAbsent(whole);
  }

  /** List a folder's files with one call, also where there is none. */
  private FileStatus[] filesIn(Path folder) throws IOException {
    // Delta's way asks for keys that begin with the folder's name, and knows no folders within.
    FileStatus[] found = S3LogStoreUtil.s3ListFromArray(this, new Path(folder, "0"), folder);
    return Stream.of(found)
        .filter(status -> folder.equals(status.getPath().getParent()))
        .toArray(FileStatus[]::new);
  }

  @Override
  public boolean exists(Path path) throws IOException {
    Path whole = makeQualified(path);
    if (!Recent.isKept(whole)) {
      return known.containsKey(whole) || inLog(whole) != null || super.exists(path);
    }
    return seen(whole).status() != null;
  }

  @Override
  public boolean isDirectory(Path path) throws IOException {
    Path whole = makeQualified(path);
    if (!Recent.isKept(whole)) {
      return super.isDirectory(path);
    }
    if (Recent.isMetadata(whole) || Recent.isListed(whole)) {
      return seen(whole).isFolder();
    }
    Recent.Seen above = whole.isRoot() ? null : recent.get(whole.getParent());
    if (above != null && above.listing() != null) {
      // A query's log holds files only.
      return false;
    }
    Recent.Seen before = recent.get(whole);
    if (before != null) {
      return before.isFolder();
    }
    boolean isThere = super.isDirectory(whole);
    if (isThere) {
      recent.putFolder(whole);
    }
    return isThere;
  }

  /** Such folders come with the files in them. */
  @Override
  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    return Recent.isReserved(path) || super.mkdirs(path, permission);
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    Recent.Seen before = recent.get(makeQualified(path));
    if (before != null && before.listing() != null) {
      return before.listing().clone();
    }
    FileStatus[] found = super.listStatus(path);
    for (FileStatus status : found) {
      listed(status);
    }
    return found;
  }

  private LocatedFileStatus located(FileStatus file) throws IOException {
    return new LocatedFileStatus(file, getFileBlockLocations(file, 0, file.getLen()));
  }

  /** Return a file of a query's log that was listed moments ago; null where it must be asked. */
  private FileStatus inLog(Path whole) {
    Path folder = whole.getParent();
    Recent.Seen before = folder != null && Recent.isListed(folder) ? recent.get(folder) : null;
    if (before == null || before.listing() == null) {
      return null;
    }
    return Stream.of(before.listing())
        .filter(status -> status.getPath().equals(whole))
        .findFirst()
        .orElse(null);
  }

  /** Return the files of a query's log. */
  FileStatus[] numbered(Path folder) throws IOException {
    Path whole = makeQualified(folder);
    Recent.Seen before = recent.get(whole);
    if (before == null || before.status() != null && before.listing() == null) {
      return filesIn(whole);
    }
    return before.listing() == null ? new FileStatus[0] : before.listing();
  }

  @Override
  public RemoteIterator<LocatedFileStatus> listFiles(Path path, boolean recursive) throws IOException {
    Path whole = makeQualified(path);
    FileStatus[] log = Recent.isListed(whole) ? seen(whole).listing() : null;
    if (log != null) {
      return RemoteIterators.mappingRemoteIterator(
          RemoteIterators.remoteIteratorFromArray(log), this::located);
    }
    FileStatus file = Recent.isMetadata(whole) ? seen(whole).status() : inLog(whole);
    if (file == null || !file.isFile()) {
      return super.listFiles(path, recursive);
    }
    return RemoteIterators.remoteIteratorFromSingleton(located(file));
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    Path whole = makeQualified(path);
    boolean isKnown = known.containsKey(whole) || inLog(whole) != null;
    return isKnown ? FutureIOSupport.awaitFuture(openFile(path).build()) : super.open(path, bufferSize);
  }

  @Override
  public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
    FutureDataInputStreamBuilder builder = super.openFile(path);
    Path whole = makeQualified(path);
    // Not that of `metadata`, which S3A would hold the content against: it may have been made anew elsewhere.
    FileStatus status = known.get(whole);
    if (status == null) {
      status = inLog(whole);
    }
    return status != null ? builder.withFileStatus(status) : builder;
  }

  @Override
  public CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters options)
      throws IOException {
    Path whole = makeQualified(path);
    FileStatus status = known.get(whole);
    if (status == null || !isCommit(whole) || status.getLen() > CommitBytes.LARGEST) {
      return super.openFileWithOptions(path, options);
    }
    FSDataInputStream kept = commits.open(whole);
    if (kept == null) {
      try (FSDataInputStream stream =
          FutureIOSupport.awaitFuture(super.openFileWithOptions(whole, options))) {
        kept = commits.fetched(status, stream.readAllBytes());
      }
    }
    return CompletableFuture.completedFuture(kept);
  }

  @Override
  public FSDataOutputStream create(
      Path path,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    FSDataOutputStream made =
        super.create(path, permission, overwrite, bufferSize, replication, blockSize, progress);
    Path whole = makeQualified(path);
    known.remove(whole);
    recent.made(whole);
    return isImmutable(whole) ? new Remembered(made, whole) : made;
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    String gone = makeQualified(path).toString();
    known.keySet().removeIf(one -> (one + "/").startsWith(gone + "/"));
    recent.clear();
    return super.delete(path, recursive);
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    known.clear();
    recent.clear();
    return super.rename(from, to);
  }

  /** Remember a commit that this process made, whole, with its content. */
  void wrote(Path path, byte[] content) {
    Path whole = makeQualified(path);
    recent.made(whole);
    if (isCommit(whole)) {
      // Its time is the store's, which Delta asks for next: another one would look like another commit.
      commits.wrote(whole, content);
    }
  }

  /** Note what was made without `create`. */
  void made(Path path) {
    recent.made(makeQualified(path));
  }

  /** Forget what was seen: another process was faster. */
  void surprised() {
    recent.clear();
  }

  /** Remember what the store tells of a file. */
  FileStatus listed(FileStatus status) {
    recent.made(status.getPath());
    commits.listed(status);
    return remembered(status);
  }

  private FileStatus remembered(FileStatus status) {
    if (status.isFile() && isImmutable(status.getPath())) {
      known.put(status.getPath(), status);
    }
    return status;
  }

  private static boolean isCommit(Path path) {
    return COMMIT.matcher(path.getName()).matches();
  }

  private static boolean isImmutable(Path path) {
    String name = path.getName();
    return isCommit(path) || DATA.matcher(name).matches() || CHECKSUM.matcher(name).matches();
  }

  /** A file whose length is known once it is closed. */
  private final class Remembered extends FSDataOutputStream {
    private final Path path;

    Remembered(FSDataOutputStream made, Path path) {
      super(made.getWrappedStream(), null);
      this.path = path;
    }

    @Override
    public void close() throws IOException {
      long length = getPos();
      super.close();
      long now = System.currentTimeMillis();
      known.put(path, new FileStatus(length, false, 1, getDefaultBlockSize(path), now, path));
    }
  }
}
