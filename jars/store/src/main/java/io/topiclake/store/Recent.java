package io.topiclake.store;

import java.io.FileNotFoundException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * Which folders of a Delta table or of a checkpoint were there, or were not, moments ago, and which files a
 * checkpoint held.
 *
 * <p>A query asks for the same ones many times while it starts. Another process may make or delete them, so
 * nothing is kept for long, and of no file its content: a checkpoint that was made anew elsewhere has another id,
 * which must be seen at once; one that is gone fails when its newest file is read; and a batch that another query
 * has begun is refused by the store when it is written again.
 */
final class Recent {
  /** Names that Delta and Spark give to folders only. */
  private static final Set<String> RESERVED = Set.of("_delta_log", "_staged_commits", "_spark_metadata");

  /** Names that Spark gives to folders of a checkpoint; a user's file may have them too. */
  private static final Set<String> LISTED = Set.of("offsets", "commits");

  private static final Pattern OF_LOG = Pattern.compile("\\d+(\\.compact)?|_topiclake_probe");

  private static final String STATE = "state";

  /** Spark's name for the file with a checkpoint's id, which is written once. */
  private static final String METADATA = "metadata";

  /** A query's first batch may be slow in coming. */
  private static final long THERE_NANOS = 30_000_000_000L;
  private static final long ABSENT_NANOS = 1_000_000_000L;

  /** `status` is null where nothing was, `listing` where it was not asked for. */
  record Seen(FileStatus status, FileStatus[] listing, long until) {
    FileStatus there(Path path) throws FileNotFoundException {
      if (status == null) {
        throw new FileNotFoundException("No such file or directory: " + path);
      }
      return status;
    }

    boolean isFolder() {
      return status != null && status.isDirectory();
    }
  }

  private final ConcurrentHashMap<Path, Seen> seen = new ConcurrentHashMap<>();

  static boolean isReserved(Path path) {
    return RESERVED.contains(path.getName());
  }

  static boolean isMetadata(Path path) {
    return METADATA.equals(path.getName());
  }

  /** Tell whether a checkpoint's folder may be meant whose files are listed next. */
  static boolean isListed(Path path) {
    return LISTED.contains(path.getName());
  }

  /** Tell whether a file is one that Spark, or a probe of ours, puts into a folder of a query's log. */
  static boolean isOfLog(Path folder, Path file) {
    return folder.equals(file.getParent()) && OF_LOG.matcher(file.getName()).matches();
  }

  static boolean isKept(Path path) {
    return isReserved(path) || isListed(path) || isMetadata(path) || STATE.equals(path.getName());
  }

  /** Return what was seen; null where it must be asked. */
  Seen get(Path path) {
    Seen found = seen.get(path);
    return found != null && System.nanoTime() - found.until <= 0 ? found : null;
  }

  Seen put(FileStatus status) {
    return put(status.getPath(), new Seen(status, null, System.nanoTime() + THERE_NANOS));
  }

  Seen putListing(Path folder, FileStatus[] listing) {
    FileStatus status = new FileStatus(0, true, 1, 0, 0, folder);
    return put(folder, new Seen(status, listing, System.nanoTime() + THERE_NANOS));
  }

  Seen putFolder(Path path) {
    return put(new FileStatus(0, true, 1, 0, 0, path));
  }

  Seen putAbsent(Path path) {
    return put(path, new Seen(null, null, System.nanoTime() + ABSENT_NANOS));
  }

  private Seen put(Path path, Seen now) {
    seen.put(path, now);
    return now;
  }

  /** Note that something was made or seen: it is no longer absent, and its folder is there. */
  void made(Path path) {
    seen.remove(path);
    Path folder = path.getParent();
    if (folder != null && isKept(folder)) {
      putFolder(folder);
    }
  }

  void clear() {
    seen.clear();
  }
}
