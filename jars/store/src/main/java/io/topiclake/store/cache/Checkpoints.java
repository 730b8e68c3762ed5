package io.topiclake.store.cache;

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileStatus;

/**
 * Checkpoints that were listed whole moments ago, and what stood in their newest files.
 *
 * <p>Topiclake and Spark each read the same few files while a query starts. A content goes by its entity tag, so it
 * is what the listing told of; and it is told only moments after the checkpoint's id was fetched on condition that
 * it is the one of that listing: a checkpoint that was deleted, or made anew elsewhere, has no such id.
 */
final class Checkpoints {
  private static final String STATE = "state";
  private static final String METADATA = "metadata";
  private static final String COMMITS = "commits";
  static final int LARGEST = 1 << 16;
  private static final int MOST = 16;

  /** A query's first batch may be slow in coming. */
  private static final long LISTED_NANOS = 60_000_000_000L;

  private static final long SURE_NANOS = 10_000_000_000L;

  /** What Spark writes behind each batch of a query without windows: its tag tells it, and nobody needs to fetch it. */
  private static final byte[] NO_WATERMARK =
      "v1\n{\"nextBatchWatermarkMs\":0}".getBytes(StandardCharsets.UTF_8);

  private static final String NO_WATERMARK_TAG = CommitBytes.md5(NO_WATERMARK);

  private record Content(byte[] bytes, String tag) {}

  private record Listed(Tree tree, long until) {}

  private final Map<Path, Listed> listed = new ConcurrentHashMap<>();
  private final Map<Path, Long> sure = new ConcurrentHashMap<>();
  private final Map<Path, Content> newest =
      Collections.synchronizedMap(
          new LinkedHashMap<>(16, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<Path, Content> eldest) {
              return size() > MOST;
            }
          });

  void put(Path root, Tree tree) {
    sure.remove(root);
    listed.put(root, new Listed(tree, System.nanoTime() + LISTED_NANOS));
  }

  /** Return what was listed of a checkpoint's id; null where it must be asked. */
  S3AFileStatus id(Path root) {
    return listedFile(root, new Path(root, METADATA));
  }

  /** Note that the checkpoint's id is still the one that was listed. */
  void isSame(Path root) {
    sure.put(root, System.nanoTime() + SURE_NANOS);
  }

  /** Keep what was fetched of a file that had this tag. */
  void fetched(Path file, S3AFileStatus status, byte[] bytes) {
    newest.put(file, new Content(bytes, CommitBytes.tag(status)));
  }

  /** Return what stands in a file of a checkpoint's log; null where it must be fetched. */
  byte[] open(Path root, Path file, S3AFileStatus status) {
    S3AFileStatus found = isBefore(sure.get(root)) ? listedFile(root, file) : null;
    String tag = CommitBytes.tag(status);
    if (found == null || !tag.equals(CommitBytes.tag(found))) {
      return null;
    }
    Content content = newest.get(file);
    if (content != null && content.tag.equals(tag)) {
      return content.bytes;
    }
    return tag.equals(NO_WATERMARK_TAG) && status.getLen() == NO_WATERMARK.length ? NO_WATERMARK : null;
  }

  /**
   * Tell whether a query that goes on may take it that its checkpoint has no state.
   *
   * <p>Spark asks so that it does not misread the state of other operators. Another query that would make some
   * meanwhile is one too many, and refused by the store with its next file, or makes this one be.
   */
  boolean hadNoState(Path path) {
    Path root = STATE.equals(path.getName()) ? path.getParent() : null;
    Listed found = root == null ? null : listed.get(root);
    return found != null && isBefore(found.until) && !found.tree.hasFolder(path);
  }

  /** Note that this process made something; behind a batch, executors elsewhere may have made state. */
  void made(Path path) {
    Path folder = path.getParent();
    if (folder != null && COMMITS.equals(folder.getName())) {
      forget(folder.getParent());
    }
    for (Path above = path; above.getParent() != null; above = above.getParent()) {
      if (STATE.equals(above.getName())) {
        forget(above.getParent());
      }
    }
  }

  private void forget(Path root) {
    if (root != null) {
      listed.remove(root);
      sure.remove(root);
    }
  }

  void clear() {
    listed.clear();
    sure.clear();
  }

  private S3AFileStatus listedFile(Path root, Path file) {
    Listed found = listed.get(root);
    if (found == null || !isBefore(found.until)) {
      return null;
    }
    FileStatus status = found.tree.file(file);
    return status instanceof S3AFileStatus tagged ? tagged : null;
  }

  private static boolean isBefore(Long until) {
    return until != null && System.nanoTime() - until <= 0;
  }
}
