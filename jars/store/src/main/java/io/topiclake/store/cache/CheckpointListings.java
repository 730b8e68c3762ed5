package io.topiclake.store.cache;

import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * The newest listing of a checkpoint.
 *
 * <p>A query asks for the files and folders of its checkpoint many times while it starts. One listing answers
 * until this process writes there, and for ten seconds at most, since other processes may write, too. No content
 * is kept.
 */
final class CheckpointListings {
  private static final long NANOS = 10_000_000_000L;

  /** Spark's name for the file with a checkpoint's id, without which a folder is no checkpoint. */
  static final String METADATA = "metadata";

  /** Spark's name for the folder with the state of windows and joins. */
  static final String STATE = "state";

  private static final Pattern NAMES =
      Pattern.compile(
          "([^:]+://[^/]+/.+)/(?:"
              + METADATA
              + "|"
              + STATE
              + "|(?:offsets|commits|sources/\\d+|topiclake/(?:topics|lost))(?:/[^/]+)?)");

  /** Lists the files below a folder; null if they are more than one call lists. */
  interface Store {
    List<? extends FileStatus> list(Path folder) throws IOException;
  }

  /** The files below a checkpoint and their folders, by path. */
  record Listing(Map<Path, FileStatus> entries, long since) {
    private static Listing of(Path root, List<? extends FileStatus> files) {
      Map<Path, FileStatus> entries = new HashMap<>();
      for (FileStatus file : files == null ? List.<FileStatus>of() : files) {
        entries.put(file.getPath(), file);
        Path folder = file.getPath().getParent();
        while (!folder.equals(root) && entries.putIfAbsent(folder, folder(folder)) == null) {
          folder = folder.getParent();
        }
      }
      boolean isCheckpoint = entries.containsKey(new Path(root, METADATA));
      return new Listing(isCheckpoint ? entries : Map.of(), Age.now());
    }

    boolean isUsable() {
      return !entries.isEmpty();
    }

    boolean isFolder(Path path) {
      FileStatus status = entries.get(path);
      return status != null && status.isDirectory();
    }

    /** Return the entries of a folder; of a file, the file. */
    FileStatus[] in(Path path) {
      return matching(
          entry -> path.equals(entry.getParent()) || path.equals(entry) && !isFolder(entry));
    }

    /** Return the files below a folder; of a file, the file. */
    FileStatus[] filesBelow(Path path) {
      return Stream.of(matching(entry -> (entry + "/").startsWith(path + "/")))
          .filter(FileStatus::isFile)
          .toArray(FileStatus[]::new);
    }

    private FileStatus[] matching(Predicate<Path> condition) {
      return entries.values().stream()
          .filter(status -> condition.test(status.getPath()))
          .toArray(FileStatus[]::new);
    }
  }

  private final Map<Path, Listing> listings = new ConcurrentHashMap<>();
  private final AtomicLong changes = new AtomicLong();

  static FileStatus folder(Path path) {
    return new FileStatus(0, true, 1, 0, 0, path);
  }

  /** Return the listing of the checkpoint that has a path; null if there is no such checkpoint, or it is large. */
  synchronized Listing of(Path path, Store store) throws IOException {
    Matcher name = NAMES.matcher(path.toString());
    if (!name.matches()) {
      return null;
    }
    Path root = new Path(name.group(1));
    Listing listing = listings.get(root);
    if (listing == null || !Age.isAtMost(NANOS, listing.since())) {
      long before = changes.get();
      listing = Listing.of(root, store.list(root));
      if (before == changes.get()) {
        listings.put(root, listing);
      }
    }
    return listing.isUsable() ? listing : null;
  }

  /** Forget a checkpoint in which this process writes. */
  void written(Path path) {
    changes.incrementAndGet();
    listings.keySet().removeIf(root -> path.toString().startsWith(root + "/"));
  }

  void clear() {
    changes.incrementAndGet();
    listings.clear();
  }
}
