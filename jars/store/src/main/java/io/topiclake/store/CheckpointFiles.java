package io.topiclake.store;

import io.delta.storage.internal.S3LogStoreUtil;
import io.topiclake.store.cache.Bytes;
import io.topiclake.store.cache.CachingS3A;
import io.topiclake.store.files.LocalFiles;
import io.topiclake.store.files.S3Files;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.impl.FutureIOSupport;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * A stream's checkpoint: on S3 with one call a file and no renames, in a local folder by hard links, elsewhere
 * as Spark has it.
 *
 * <p>Spark's own for S3 (AbortableStreamBasedCheckpointFileManager) looks for existing files four times
 * before each file, 18 calls a batch. Two queries on one checkpoint may still overwrite each other's batches.
 * Here the object store refuses the second, so that nothing needs to be asked before. In a local folder
 * the operating system does.
 */
public class CheckpointFiles implements CheckpointFileManager {
  private static final String CLASS_KEY = "spark.sql.streaming.checkpointFileManagerClass";

  /** Folders whose files are named by the number of their batch, each made once. */
  private static final Set<String> LOGS = Set.of("offsets", "commits", "_spark_metadata");

  /** Has the state of windows and joins. */
  private static final String STATE = "state";

  /** Has a log for each source. */
  private static final String SOURCES = "sources";

  private static final int LARGEST_KEPT = 1 << 20;

  private final Path folder;
  private final boolean isLog;
  private final boolean isLocal;
  private final FileSystem fs;
  /** The file manager that Spark would use; null on S3. */
  private final CheckpointFileManager own;
  /** The files of a log by name; null until they were listed. */
  private Map<String, FileStatus> numbered;
  /** The last two that were read: Spark reads the newest several times while a query starts. */
  private final Map<Path, byte[]> kept = new ConcurrentHashMap<>();

  public CheckpointFiles(Path path, Configuration conf) throws IOException {
    folder = path;
    Path parent = path.getParent();
    isLog = LOGS.contains(path.getName()) || parent != null && parent.getName().equals(SOURCES);
    isLocal = LocalFiles.SCHEME.equals(path.toUri().getScheme());
    boolean isS3 = S3Files.SCHEME.equals(path.toUri().getScheme());
    fs = isS3 ? path.getFileSystem(conf) : null;
    own = isS3 ? null : sparksOwn(path, conf);
  }

  private static CheckpointFileManager sparksOwn(Path path, Configuration conf) {
    Configuration plain = new Configuration(conf);
    plain.unset(CLASS_KEY);
    return CheckpointFileManager.create(path, plain);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (isLocal && !overwriteIfPossible) {
      return new Linked(path, new ByteArrayOutputStream());
    }
    if (own != null) {
      return own.createAtomic(path, overwriteIfPossible);
    }
    String mark = UUID.randomUUID().toString();
    return Unchecked.of(() -> new Upload(path, mark, S3Files.create(fs, path, overwriteIfPossible, mark)));
  }

  @Override
  public FSDataInputStream open(Path path) {
    return own != null ? own.open(path) : Unchecked.of(() -> openOnS3(path));
  }

  private FSDataInputStream openOnS3(Path path) throws IOException {
    FileStatus status = isNumbered(path) ? numbered().get(path.getName()) : null;
    if (status == null || status.getLen() > LARGEST_KEPT) {
      return fs.open(path);
    }
    byte[] content = kept.get(path);
    if (content == null) {
      try (FSDataInputStream stream =
          FutureIOSupport.awaitFuture(fs.openFile(path).withFileStatus(status).build())) {
        content = stream.readAllBytes();
      }
      if (kept.size() > 1) {
        kept.clear();
      }
      kept.put(path, content);
    }
    return Bytes.stream(content);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return own != null ? own.list(path, filter) : Unchecked.of(() -> listOnS3(path, filter));
  }

  /** A folder without files does not exist on S3: it is empty. */
  private FileStatus[] listOnS3(Path path, PathFilter filter) throws IOException {
    if (isLog && path.equals(folder)) {
      Stream<FileStatus> found = numbered().values().stream();
      return found.filter(status -> filter.accept(status.getPath())).toArray(FileStatus[]::new);
    }
    try {
      return fs.listStatus(path, filter);
    } catch (FileNotFoundException none) {
      return new FileStatus[0];
    }
  }

  /** On S3 folders come with the files in them. */
  @Override
  public void mkdirs(Path path) {
    if (own != null) {
      own.mkdirs(path);
    }
  }

  @Override
  public boolean exists(Path path) {
    return own != null ? own.exists(path) : Unchecked.of(() -> existsOnS3(path));
  }

  private boolean existsOnS3(Path path) throws IOException {
    if (isNumbered(path)) {
      return numbered().containsKey(path.getName());
    }
    // Spark asks for `offsets`, `commits` and `state` here, which it never makes as files.
    if (isLog && path.equals(folder)) {
      return true;
    }
    return STATE.equals(path.getName()) ? fs.isDirectory(path) : fs.exists(path);
  }

  @Override
  public void delete(Path path) {
    if (own != null) {
      own.delete(path);
    } else {
      Unchecked.of(() -> deleteOnS3(path));
    }
  }

  private boolean deleteOnS3(Path path) throws IOException {
    if (isNumbered(path)) {
      numbered().remove(path.getName());
    }
    return fs.delete(path, true);
  }

  private boolean isNumbered(Path path) {
    return isLog && folder.equals(path.getParent());
  }

  /**
   * Files that this query made and found: no other query writes its log. For a second query on the same
   * checkpoint, the store refuses the next file.
   */
  private synchronized Map<String, FileStatus> numbered() throws IOException {
    if (numbered == null) {
      Map<String, FileStatus> found = new ConcurrentSkipListMap<>();
      for (FileStatus status : listed()) {
        found.put(status.getPath().getName(), status);
      }
      numbered = found;
    }
    return numbered;
  }

  private FileStatus[] listed() throws IOException {
    CachingS3A caching = CachingS3A.of(fs).orElse(null);
    return caching != null
        ? caching.numbered(folder)
        : S3LogStoreUtil.s3ListFromArray(fs, new Path(folder, "0"), folder);
  }

  @Override
  public boolean isLocal() {
    return own != null && own.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return own != null ? own.createCheckpointDirectory() : fs.makeQualified(folder);
  }

  /** An upload that ends with `close` or, without a trace, with `cancel`. */
  private final class Upload extends CancellableFSDataOutputStream {
    private final Path path;
    private final String mark;
    private final FSDataOutputStream stream;
    private boolean ended;

    Upload(Path path, String mark, FSDataOutputStream stream) {
      super(stream);
      this.path = path;
      this.mark = mark;
      this.stream = stream;
    }

    @Override
    public void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      long length = stream.getPos();
      try {
        stream.close();
      } catch (IOException error) {
        stream.abort();
        requireOwn(error);
      }
      note(length);
    }

    private void note(long length) throws IOException {
      long now = System.currentTimeMillis();
      FileStatus made =
          new FileStatus(length, false, 1, fs.getDefaultBlockSize(path), now, fs.makeQualified(path));
      written();
      if (isNumbered(path)) {
        numbered().put(path.getName(), made);
      }
    }

    private void written() {
      CachingS3A.of(fs).ifPresent(caching -> caching.written(path));
    }

    /** The answer to the first try may have been lost, and the second have met what the first one wrote. */
    private void requireOwn(IOException error) throws IOException {
      if (!S3Files.isTaken(error)) {
        throw error;
      }
      // Not by its content: another query's may be the same.
      if (!S3Files.hasMark(fs, path, mark)) {
        written();
        throw (IOException)
            new FileAlreadyExistsException(path + " was there first").initCause(error);
      }
    }

    @Override
    public void cancel() {
      if (!ended) {
        ended = true;
        stream.abort();
      }
    }
  }

  /** A local file that appears with `close`, unless there is one. */
  private static final class Linked extends CancellableFSDataOutputStream {
    private final Path path;
    private final ByteArrayOutputStream content;
    private boolean ended;

    Linked(Path path, ByteArrayOutputStream content) {
      super(content);
      this.path = path;
      this.content = content;
    }

    @Override
    public void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      try {
        LocalFiles.write(path, content.toByteArray(), false);
      } catch (java.nio.file.FileAlreadyExistsException taken) {
        throw new FileAlreadyExistsException(path + " was there first");
      }
    }

    @Override
    public void cancel() {
      ended = true;
    }
  }
}
