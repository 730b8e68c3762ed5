package io.topiclake.store.cache;

import io.delta.storage.internal.S3LogStoreUtil;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
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
 * <p>Spark and Delta each ask for the length of a data file that they have just written. S3A asks for that of a
 * commit before it reads it, though the listing has it, and Delta reads the same commits with each batch. All of
 * these files are written once, under a name that is never used again. For a few seconds it also answers with
 * what one listing of a checkpoint showed ({@link CheckpointListings}), and whether a table has a log.
 */
public class CachingS3A extends S3AFileSystem {
  private static final Pattern DATA = Pattern.compile("part-.*\\.parquet");
  private static final Pattern COMMIT = Pattern.compile("\\d{20}\\.json");
  private static final Pattern CHECKSUM = Pattern.compile("\\d{20}\\.crc");
  private static final int MOST = 20_000;

  /** Names that Delta and Spark give to folders only. */
  private static final Set<String> FOLDERS = Set.of("_delta_log", "_staged_commits", "_spark_metadata");

  private static final long EXISTS_NANOS = 10_000_000_000L;
  private static final long ABSENT_NANOS = 1_000_000_000L;

  /** Of a file with a checkpoint's id, a UUID in JSON; a user's own `metadata` is asked for. */
  private static final int ID_LENGTH = 45;

  /** S3 lists a thousand with one call. */
  private static final int PAGE = 999;

  private record Answer(boolean exists, long since) {
    boolean isRecent() {
      return Age.isAtMost(exists ? EXISTS_NANOS : ABSENT_NANOS, since);
    }
  }

  private final Map<Path, FileStatus> known =
      Collections.synchronizedMap(
          new LinkedHashMap<>(16, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<Path, FileStatus> eldest) {
              return size() > MOST;
            }
          });

  private final CommitBytes commits = new CommitBytes();
  private final CheckpointListings checkpoints = new CheckpointListings();
  private final Map<Path, Answer> folders = new ConcurrentHashMap<>();

  /** Return the file system of this class that `fs` passes calls on to. */
  public static Optional<CachingS3A> of(FileSystem fs) {
    FileSystem real = fs instanceof FilterFileSystem front ? front.getRawFileSystem() : fs;
    return real instanceof CachingS3A caching ? Optional.of(caching) : Optional.empty();
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    Path whole = makeQualified(path);
    FileStatus status = seen(whole);
    if (status != null) {
      return status;
    }
    if (!isFolderName(whole)) {
      return remembered(super.getFileStatus(whole));
    }
    if (isDirectory(whole)) {
      return CheckpointListings.folder(whole);
    }
    throw new FileNotFoundException("No such file or directory: " + whole);
  }

  /** Return what is known of a file or folder without a call, or with a listing; null if the store must say. */
  private FileStatus seen(Path whole) throws IOException {
    FileStatus status = known.get(whole);
    if (status != null) {
      return status;
    }
    CheckpointListings.Listing checkpoint = checkpoint(whole);
    return checkpoint == null ? null : checkpoint.entries().get(whole);
  }

  private CheckpointListings.Listing checkpoint(Path whole) throws IOException {
    return checkpoints.of(whole, this::filesBelow);
  }

  /** S3A would ask for a file of that name, too. */
  private static boolean isFolderName(Path path) {
    return FOLDERS.contains(path.getName());
  }

  private List<FileStatus> filesBelow(Path folder) throws IOException {
    List<FileStatus> files = new ArrayList<>();
    try {
      RemoteIterator<LocatedFileStatus> listing = super.listFiles(folder, true);
      while (listing.hasNext()) {
        files.add(listing.next());
        if (files.size() > PAGE) {
          return null;
        }
      }
    } catch (FileNotFoundException | AccessDeniedException notListed) {
      return null;
    }
    return files;
  }

  @Override
  public boolean exists(Path path) throws IOException {
    Path whole = makeQualified(path);
    if (isFolderName(whole)) {
      return isDirectory(whole);
    }
    return seen(whole) != null || super.exists(path);
  }

  @Override
  public boolean isDirectory(Path path) throws IOException {
    Path whole = makeQualified(path);
    CheckpointListings.Listing checkpoint = checkpoint(whole);
    boolean isAlwaysFolder = isFolderName(whole) || CheckpointListings.STATE.equals(whole.getName());
    if (checkpoint != null && (isAlwaysFolder || checkpoint.isFolder(whole))) {
      return checkpoint.isFolder(whole);
    }
    if (!isFolderName(whole)) {
      return super.isDirectory(whole);
    }
    Answer answer = folders.get(whole);
    if (answer == null || !answer.isRecent()) {
      answer = new Answer(super.isDirectory(whole), Age.now());
      folders.put(whole, answer);
    }
    return answer.exists();
  }

  /** Such folders come with the files in them. */
  @Override
  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    if (isFolderName(path)) {
      return true;
    }
    boolean exists = super.mkdirs(path, permission);
    written(path);
    return exists;
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    Path whole = makeQualified(path);
    CheckpointListings.Listing checkpoint = checkpoint(whole);
    if (checkpoint != null && checkpoint.entries().containsKey(whole)) {
      return checkpoint.in(whole);
    }
    FileStatus[] listing = super.listStatus(path);
    for (FileStatus status : listing) {
      listed(status);
    }
    return listing;
  }

  @Override
  public RemoteIterator<LocatedFileStatus> listFiles(Path path, boolean recursive) throws IOException {
    Path whole = makeQualified(path);
    CheckpointListings.Listing checkpoint = checkpoint(whole);
    if (checkpoint == null || !checkpoint.entries().containsKey(whole)) {
      return super.listFiles(path, recursive);
    }
    return RemoteIterators.mappingRemoteIterator(
        RemoteIterators.remoteIteratorFromArray(checkpoint.filesBelow(whole)), this::located);
  }

  private LocatedFileStatus located(FileStatus file) throws IOException {
    return file instanceof LocatedFileStatus located
        ? located
        : new LocatedFileStatus(file, getFileBlockLocations(file, 0, file.getLen()));
  }

  /** Return the files of a query's log. */
  public FileStatus[] numbered(Path folder) throws IOException {
    Path whole = makeQualified(folder);
    CheckpointListings.Listing checkpoint = checkpoint(whole);
    // Delta's way asks with one call for keys that begin with the folder's name, and knows no folders within.
    FileStatus[] files =
        checkpoint != null
            ? checkpoint.in(whole)
            : S3LogStoreUtil.s3ListFromArray(this, new Path(whole, "0"), whole);
    return Stream.of(files)
        .filter(status -> status.isFile() && whole.equals(status.getPath().getParent()))
        .toArray(FileStatus[]::new);
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    boolean isKnown = toOpen(makeQualified(path)) != null;
    return isKnown ? FutureIOSupport.awaitFuture(openFile(path).build()) : super.open(path, bufferSize);
  }

  @Override
  public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
    FutureDataInputStreamBuilder builder = super.openFile(path);
    FileStatus status = toOpen(makeQualified(path));
    return status != null ? builder.withFileStatus(status) : builder;
  }

  /** Return the status to open a file with; null if the store must be asked for it. */
  private FileStatus toOpen(Path whole) throws IOException {
    FileStatus status = seen(whole);
    if (status == null || !status.isFile()) {
      return null;
    }
    if (!CheckpointListings.METADATA.equals(whole.getName())) {
      return status;
    }
    // With its entity tag S3A would refuse a file that another process has made again: all ids have one length.
    return status.getLen() == ID_LENGTH
        ? new FileStatus(ID_LENGTH, false, 1, status.getBlockSize(), status.getModificationTime(), whole)
        : null;
  }

  @Override
  public CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters options)
      throws IOException {
    Path whole = makeQualified(path);
    FileStatus status = known.get(whole);
    if (status == null || !isCommit(whole) || status.getLen() > CommitBytes.LARGEST) {
      return super.openFileWithOptions(path, options);
    }
    FSDataInputStream content = commits.open(whole);
    if (content == null) {
      try (FSDataInputStream stream =
          FutureIOSupport.awaitFuture(super.openFileWithOptions(whole, options))) {
        content = commits.fetched(status, stream.readAllBytes());
      }
    }
    return CompletableFuture.completedFuture(content);
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
    FSDataOutputStream stream =
        super.create(path, permission, overwrite, bufferSize, replication, blockSize, progress);
    Path whole = makeQualified(path);
    known.remove(whole);
    return new Written(stream, whole);
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    String deleted = makeQualified(path).toString();
    known.keySet().removeIf(file -> (file + "/").startsWith(deleted + "/"));
    forget();
    try {
      return super.delete(path, recursive);
    } finally {
      forget();
    }
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    known.clear();
    forget();
    try {
      return super.rename(from, to);
    } finally {
      forget();
    }
  }

  private void forget() {
    checkpoints.clear();
    folders.clear();
  }

  /** Remember the content of a commit that this process wrote. */
  public void wrote(Path path, byte[] content) {
    Path whole = makeQualified(path);
    written(whole);
    if (isCommit(whole)) {
      // Its time is the store's, which Delta asks for next: another one would look like another commit.
      commits.wrote(whole, content);
    }
  }

  /** Note that a file of this name was written, by this process or by a faster one. */
  public void written(Path path) {
    checkpoints.written(makeQualified(path));
    folders.values().removeIf(answer -> !answer.exists());
  }

  /** Remember what the store lists of a file. */
  public FileStatus listed(FileStatus status) {
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

  /** A file that exists, with a length that is known, once it is closed. */
  private final class Written extends FSDataOutputStream {
    private final Path path;

    Written(FSDataOutputStream stream, Path path) {
      super(stream.getWrappedStream(), null);
      this.path = path;
    }

    @Override
    public void close() throws IOException {
      long length = getPos();
      super.close();
      written(path);
      long now = System.currentTimeMillis();
      remembered(new FileStatus(length, false, 1, getDefaultBlockSize(path), now, path));
    }
  }
}
