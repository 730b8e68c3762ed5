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
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.util.Progressable;
import org.apache.hadoop.util.functional.RemoteIterators;

/**
 * S3A that asks once for what never changes: the files of a Delta table and of its log.
 *
 * <p>Spark and Delta each ask for the length of a data file that they have just written, S3A asks for that of a
 * commit before it reads it, though the listing has told, and Delta reads the same commits with each batch. All
 * of them are made once, under a name that is never used again. What is overwritten (`_last_checkpoint`, a
 * stream's files) is always asked for, but for what {@link ListingCache} says.
 */
public class CachingS3A extends S3AFileSystem {
  private static final Pattern DATA = Pattern.compile("part-.*\\.parquet");
  private static final Pattern OURS = Pattern.compile("part-.*\\.json");
  private static final Pattern COMMIT = Pattern.compile("\\d{20}\\.json");
  private static final Pattern CHECKSUM = Pattern.compile("\\d{20}\\.crc");
  private static final int MOST = 20_000;

  private static final String DELTA_LOG = "_delta_log";

  /** Delta's own name; what it says may be old. */
  private static final String HINT = "_last_checkpoint";

  /** Of a file with a checkpoint's id, a UUID in JSON; a user's own `metadata` is asked for. */
  private static final int ID_LENGTH = 45;

  /** S3 lists a thousand with one call. */
  private static final int PAGE = 999;

  private final Map<Path, FileStatus> known =
      Collections.synchronizedMap(
          new LinkedHashMap<>(16, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<Path, FileStatus> eldest) {
              return size() > MOST;
            }
          });

  private final CommitBytes commits = new CommitBytes();
  private final ListingCache recent = new ListingCache();

  /** Return the one behind `fs`; null where there is none. */
  public static CachingS3A behind(FileSystem fs) {
    FileSystem real = fs instanceof FilterFileSystem front ? front.getRawFileSystem() : fs;
    return real instanceof CachingS3A remembering ? remembering : null;
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
    if (isInAbsent(whole)) {
      throw new FileNotFoundException("No such file or directory: " + whole);
    }
    if (!ListingCache.isKept(whole)) {
      return remembered(super.getFileStatus(whole));
    }
    return seen(whole).there(whole);
  }

  /** Ask for a folder first: S3A looks for a file first, and takes two calls. */
  private ListingCache.Seen seen(Path whole) throws IOException {
    ListingCache.Seen before = recent.get(whole);
    if (before != null) {
      return before;
    }
    if (isInLog(whole)) {
      // A query's log holds files only.
      return recent.putAbsent(whole);
    }
    lookAround(whole);
    ListingCache.Seen now = recent.get(whole);
    if (now != null) {
      return now;
    }
    if (ListingCache.isMetadata(whole)) {
      return seenFile(whole);
    }
    if (ListingCache.isPlainLog(whole)) {
      return seenListed(whole);
    }
    if (DELTA_LOG.equals(whole.getName()) ? isLog(whole) : super.isDirectory(whole)) {
      return recent.putFolder(whole);
    }
    boolean isFile = !ListingCache.isReserved(whole) && super.isFile(whole);
    return isFile ? recent.put(super.getFileStatus(whole)) : recent.putAbsent(whole);
  }

  /** Who asks for a table's log reads next the hint where its checkpoint is; one call tells both of most. */
  private boolean isLog(Path whole) throws IOException {
    if (recent.isLarge(whole)) {
      return super.isDirectory(whole);
    }
    // A folder's mark counts, too.
    List<FileStatus> found = firstBelow(whole, new Path(whole, "no file"));
    Path hint = new Path(whole, HINT);
    FileStatus status =
        found.stream().filter(one -> one.getPath().equals(hint)).findFirst().orElse(null);
    if (found.size() > PAGE) {
      recent.putLarge(whole);
    } else {
      recent.putHint(hint, status);
    }
    return !found.isEmpty();
  }

  /** Who asks for a part of a checkpoint asks for the others next; one call tells all, if it is not too large. */
  private void lookAround(Path whole) throws IOException {
    Path root = ListingCache.checkpointOf(whole);
    if (root == null || root.isRoot() || recent.isLarge(root)) {
      return;
    }
    try (ListingCache.Look look = recent.look(root)) {
      List<FileStatus> found = firstBelow(root, root);
      if (found.size() > PAGE) {
        recent.putLarge(root);
      } else {
        look.put(new Tree(root, found));
      }
    } catch (AccessDeniedException notAllowed) {
      // What was asked for may be.
      recent.putLarge(root);
    }
  }

  private List<FileStatus> firstBelow(Path root, Path but) throws IOException {
    RemoteIterator<S3AFileStatus> listing =
        getListing()
            .createFileStatusListingIterator(
                root,
                createListObjectsRequest(pathToKey(root) + "/", null),
                path -> true,
                new Listing.AcceptAllButSelfAndS3nDirs(but),
                getActiveAuditSpan());
    List<FileStatus> found = new ArrayList<>();
    while (found.size() <= PAGE && listing.hasNext()) {
      found.add(listing.next());
    }
    return found;
  }

  /** Tell whether this would stand in a folder whose files are known. */
  private boolean isInLog(Path whole) {
    ListingCache.Seen above = whole.isRoot() ? null : recent.get(whole.getParent());
    return above != null && above.listing() != null;
  }

  private ListingCache.Seen seenFile(Path whole) throws IOException {
    try {
      return recent.put(super.getFileStatus(whole));
    } catch (FileNotFoundException none) {
      return recent.putAbsent(whole);
    }
  }

  /** Who asks for such a folder lists it next; one call tells both. */
  private ListingCache.Seen seenListed(Path whole) throws IOException {
    FileStatus[] found = S3LogStoreUtil.s3ListFromArray(this, new Path(whole, "0"), whole);
    if (found.length > 0 && Stream.of(found).allMatch(file -> ListingCache.isOfLog(whole, file.getPath()))) {
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
    if (!ListingCache.isKept(whole)) {
      return known.containsKey(whole)
          || inLog(whole) != null
          || !isInAbsent(whole) && super.exists(path);
    }
    return seen(whole).status() != null;
  }

  @Override
  public boolean isDirectory(Path path) throws IOException {
    Path whole = makeQualified(path);
    if (!ListingCache.isKept(whole)) {
      return super.isDirectory(path);
    }
    if (ListingCache.isMetadata(whole) || ListingCache.isListed(whole)) {
      return seen(whole).isFolder();
    }
    if (isInLog(whole)) {
      return false;
    }
    ListingCache.Seen before = recent.get(whole);
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
    if (ListingCache.isReserved(path)) {
      return true;
    }
    boolean isThere = super.mkdirs(path, permission);
    recent.there(makeQualified(path));
    return isThere;
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    ListingCache.Seen before = recent.get(makeQualified(path));
    if (before != null && before.listing() != null) {
      return before.listing().clone();
    }
    FileStatus file = inLog(makeQualified(path));
    if (file != null) {
      return new FileStatus[] {file};
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

  /** Return a file of a query's log that was made or listed moments ago; null where it must be asked. */
  private FileStatus inLog(Path whole) throws IOException {
    ListingCache.Seen made = ListingCache.isInLog(whole) ? recent.get(whole) : null;
    if (made != null && made.status() != null) {
      return made.status();
    }
    ListingCache.Seen there = ListingCache.isInLog(whole) ? seen(whole.getParent()) : null;
    if (there == null || there.listing() == null) {
      return null;
    }
    return Stream.of(there.listing())
        .filter(status -> status.getPath().equals(whole))
        .findFirst()
        .orElse(null);
  }

  /** Tell whether the folder of a query's log was not there a moment ago. */
  private boolean isInAbsent(Path whole) throws IOException {
    return ListingCache.isInLog(whole) && seen(whole.getParent()).status() == null;
  }

  /** Return the files of a query's log. */
  public FileStatus[] numbered(Path folder) throws IOException {
    Path whole = makeQualified(folder);
    ListingCache.Seen before = recent.get(whole);
    if (before == null || before.status() != null && before.listing() == null) {
      return filesIn(whole);
    }
    return before.listing() == null ? new FileStatus[0] : before.listing();
  }

  @Override
  public RemoteIterator<LocatedFileStatus> listFiles(Path path, boolean recursive) throws IOException {
    Path whole = makeQualified(path);
    FileStatus[] log = ListingCache.isListed(whole) ? seen(whole).listing() : null;
    if (log != null) {
      return RemoteIterators.mappingRemoteIterator(
          RemoteIterators.remoteIteratorFromArray(log), this::located);
    }
    FileStatus file = ListingCache.isMetadata(whole) ? seen(whole).status() : inLog(whole);
    if (file == null || !file.isFile()) {
      return super.listFiles(path, recursive);
    }
    return RemoteIterators.remoteIteratorFromSingleton(located(file));
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    Path whole = makeQualified(path);
    ListingCache.Seen hint = recent.takeHint(whole);
    if (hint != null) {
      return FutureIOSupport.awaitFuture(super.openFile(path).withFileStatus(hint.there(whole)).build());
    }
    boolean isKnown = known.containsKey(whole) || inLog(whole) != null || ListingCache.isMetadata(whole);
    return isKnown ? FutureIOSupport.awaitFuture(openFile(path).build()) : super.open(path, bufferSize);
  }

  @Override
  public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
    FutureDataInputStreamBuilder builder = super.openFile(path);
    Path whole = makeQualified(path);
    FileStatus status = known.get(whole);
    if (status == null) {
      status = inLog(whole);
    }
    if (status == null && ListingCache.isMetadata(whole)) {
      status = untagged(recent.get(whole));
    }
    return status != null ? builder.withFileStatus(status) : builder;
  }

  /** Without its entity tag S3A does not refuse a file that was made anew elsewhere: all ids are equally long. */
  private static FileStatus untagged(ListingCache.Seen seen) {
    FileStatus file = seen == null ? null : seen.status();
    if (file == null || !file.isFile() || file.getLen() != ID_LENGTH) {
      return null;
    }
    return new FileStatus(
        file.getLen(), false, 1, file.getBlockSize(), file.getModificationTime(), file.getPath());
  }

  @Override
  public CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters options)
      throws IOException {
    Path whole = makeQualified(path);
    byte[] content = ListingCache.isMetadata(whole) ? idOf(whole, options) : logged(whole, options);
    if (content != null) {
      return CompletableFuture.completedFuture(Bytes.stream(content));
    }
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

  /** Fetch a checkpoint's id on condition that it is the one that was listed; null where it may be another. */
  private byte[] idOf(Path whole, OpenFileParameters options) throws IOException {
    Path root = whole.getParent();
    S3AFileStatus listed = recent.checkpoints.id(root);
    if (listed == null || listed.getLen() != ID_LENGTH) {
      return null;
    }
    try {
      byte[] content = fetched(whole, options, listed);
      recent.checkpoints.isSame(root);
      return content;
    } catch (RemoteFileChangedException | FileNotFoundException changed) {
      recent.clear();
      return null;
    }
  }

  /** Return what stands in a file of a query's log that was listed; null where it was not, or is large. */
  private byte[] logged(Path whole, OpenFileParameters options) throws IOException {
    boolean isListed = ListingCache.isInLog(whole) && options.getStatus() instanceof S3AFileStatus;
    if (!isListed || options.getStatus().getLen() > Checkpoints.LARGEST) {
      return null;
    }
    S3AFileStatus status = (S3AFileStatus) options.getStatus();
    byte[] content = recent.checkpoints.open(ListingCache.checkpointOf(whole.getParent()), whole, status);
    if (content == null) {
      content = fetched(whole, options, status);
      recent.checkpoints.fetched(whole, status, content);
    }
    return content;
  }

  private byte[] fetched(Path whole, OpenFileParameters options, S3AFileStatus status) throws IOException {
    OpenFileParameters tagged =
        new OpenFileParameters()
            .withMandatoryKeys(options.getMandatoryKeys())
            .withOptionalKeys(options.getOptionalKeys())
            .withOptions(options.getOptions())
            .withBufferSize(options.getBufferSize())
            .withStatus(status);
    try (FSDataInputStream stream =
        FutureIOSupport.awaitFuture(super.openFileWithOptions(whole, tagged))) {
      return stream.readAllBytes();
    }
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
    try {
      return super.delete(path, recursive);
    } finally {
      recent.clear();
    }
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    known.clear();
    recent.clear();
    try {
      return super.rename(from, to);
    } finally {
      recent.clear();
    }
  }

  /** Remember a commit that this process made, whole, with its content. */
  public void wrote(Path path, byte[] content) {
    Path whole = makeQualified(path);
    recent.made(whole);
    if (isCommit(whole)) {
      // Its time is the store's, which Delta asks for next: another one would look like another commit.
      commits.wrote(whole, content);
    }
  }

  /** Tell whether a checkpoint that was listed moments ago had no state. */
  public boolean hadNoState(Path path) {
    return recent.checkpoints.hadNoState(makeQualified(path));
  }

  /** Note what was made without `create`. */
  public void made(FileStatus file) {
    recent.made(file);
  }

  /** Forget what was seen: another process was faster. */
  public void surprised() {
    recent.clear();
  }

  /** Remember what the store tells of a file. */
  public FileStatus listed(FileStatus status) {
    recent.there(status.getPath());
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
    return isCommit(path)
        || DATA.matcher(name).matches()
        || CHECKSUM.matcher(name).matches()
        || ListingCache.isOurs(path.getParent()) && OURS.matcher(name).matches();
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
      recent.made(path);
      long now = System.currentTimeMillis();
      known.put(path, new FileStatus(length, false, 1, getDefaultBlockSize(path), now, path));
    }
  }
}
