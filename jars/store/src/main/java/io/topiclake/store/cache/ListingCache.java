package io.topiclake.store.cache;

import java.io.FileNotFoundException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import java.util.stream.Stream;
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
public final class ListingCache {
  /** Names that Delta and Spark give to folders only. */
  private static final Set<String> RESERVED = Set.of("_delta_log", "_staged_commits", "_spark_metadata");

  /** Names that Spark gives to folders of a checkpoint; a user's file may have them too. */
  private static final Set<String> LISTED = Set.of("offsets", "commits");

  /** Has a folder for each source. */
  private static final String SOURCES = "sources";

  private static final Pattern NUMBER = Pattern.compile("\\d+");

  /** Where we keep what Spark does not, and its folders. */
  private static final String OURS = "topiclake";

  private static final Set<String> LISTED_OF_OURS = Set.of("topics", "lost");

  private static final Pattern OF_LOG = Pattern.compile("\\d+(\\.compact)?|_topiclake_probe");
  private static final Pattern OF_OURS = Pattern.compile("part-.*\\.json|_SUCCESS");

  private static final String STATE = "state";

  /** Spark's name for the file with a checkpoint's id, which is written once. */
  private static final String METADATA = "metadata";

  /** A query's first batch may be slow in coming. */
  private static final long THERE_NANOS = 30_000_000_000L;
  private static final long ABSENT_NANOS = 1_000_000_000L;

  /** A hint may be old: Delta looks at what is there behind it. */
  private static final long HINT_NANOS = 10_000_000_000L;

  private static final long OWN_NANOS = 3_000_000_000L;

  /** A checkpoint with the state of windows or joins has thousands of files, and keeps them. */
  private static final long LARGE_NANOS = 600_000_000_000L;

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
  private final ConcurrentHashMap<Path, Long> large = new ConcurrentHashMap<>();

  /** Those that were listed whole. */
  final Checkpoints checkpoints = new Checkpoints();

  /** What was listed of Delta's hint where its newest checkpoint is, for the one who reads it next. */
  private final ConcurrentHashMap<Path, Seen> hints = new ConcurrentHashMap<>();

  /** What is being listed just now. */
  private final Set<Look> looks = ConcurrentHashMap.newKeySet();

  /** A look at all that stands below a folder. */
  final class Look implements AutoCloseable {
    private final Path root;
    private boolean isStale;

    private Look(Path root) {
      this.root = root;
      looks.add(this);
    }

    /** Keep what was found, unless this process has changed something meanwhile. */
    void put(Tree tree) {
      putTree(this, tree);
    }

    @Override
    public void close() {
      looks.remove(this);
    }
  }

  static boolean isReserved(Path path) {
    return RESERVED.contains(path.getName());
  }

  public static boolean isMetadata(Path path) {
    return METADATA.equals(path.getName());
  }

  /** Tell whether a checkpoint's folder may be meant whose files are listed next. */
  static boolean isListed(Path path) {
    return LISTED.contains(path.getName()) || isOurs(path) || isOfSource(path);
  }

  /** Tell whether such a folder is known by its own name. */
  static boolean isPlainLog(Path path) {
    return LISTED.contains(path.getName());
  }

  private static boolean isOfSource(Path path) {
    Path parent = path.getParent();
    return parent != null && parent.getName().equals(SOURCES) && NUMBER.matcher(path.getName()).matches();
  }

  /** Tell whether this is a folder of what Topiclake keeps in a checkpoint. */
  static boolean isOurs(Path path) {
    Path parent = path.getParent();
    return LISTED_OF_OURS.contains(path.getName()) && parent != null && parent.getName().equals(OURS);
  }

  /** Tell whether a file is one that Spark, or Topiclake, puts into such a folder. */
  static boolean isOfLog(Path folder, Path file) {
    Pattern names = isOurs(folder) ? OF_OURS : OF_LOG;
    return folder.equals(file.getParent()) && names.matcher(file.getName()).matches();
  }

  /** Return the checkpoint that a kept path would belong to; null where its name is one of Delta's, too. */
  static Path checkpointOf(Path path) {
    Path parent = path.getParent();
    if (isReserved(path) || parent == null) {
      return null;
    }
    return isOurs(path) || isOfSource(path) ? parent.getParent() : parent;
  }

  /** Tell whether a path is a file of such a folder, by its name. */
  static boolean isInLog(Path path) {
    Path folder = path.getParent();
    return folder != null && isListed(folder) && isOfLog(folder, path);
  }

  public static boolean isKept(Path path) {
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

  /** Note a hint; `status` is null where there is none. */
  void putHint(Path file, FileStatus status) {
    hints.put(file, new Seen(status, null, System.nanoTime() + HINT_NANOS));
  }

  /** Return what was noted, once; null where it must be asked. */
  Seen takeHint(Path file) {
    Seen noted = hints.remove(file);
    return noted != null && System.nanoTime() - noted.until <= 0 ? noted : null;
  }

  private Seen put(Path path, Seen now) {
    seen.put(path, now);
    return now;
  }

  /** Tell whether a folder had more files than one listing tells. */
  boolean isLarge(Path root) {
    Long until = large.get(root);
    return until != null && System.nanoTime() - until <= 0;
  }

  void putLarge(Path root) {
    large.put(root, System.nanoTime() + LARGE_NANOS);
  }

  Look look(Path root) {
    return new Look(root);
  }

  private synchronized void putTree(Look look, Tree tree) {
    Path root = look.root;
    if (look.isStale) {
      return;
    }
    List<Path> kept = new ArrayList<>();
    Stream.concat(LISTED.stream(), Stream.of(METADATA, STATE)).forEach(name -> kept.add(new Path(root, name)));
    LISTED_OF_OURS.forEach(name -> kept.add(new Path(new Path(root, OURS), name)));
    Path sources = new Path(root, SOURCES);
    // A query without a first batch has none.
    kept.add(new Path(sources, "0"));
    tree.folders().filter(folder -> sources.equals(folder.getParent())).forEach(kept::add);
    // Without it this is no checkpoint, and others may write such folders as they like.
    boolean isCheckpoint = tree.file(new Path(root, METADATA)) != null;
    if (isCheckpoint) {
      checkpoints.put(root, tree);
    }
    kept.forEach(path -> putOf(tree, path, isCheckpoint));
  }

  private void putOf(Tree tree, Path path, boolean isCheckpoint) {
    FileStatus file = tree.file(path);
    if (file != null) {
      put(file);
    } else if (!tree.hasFolder(path)) {
      putAbsent(path);
    } else {
      FileStatus[] files = tree.below(path);
      boolean isLog =
          files.length > 0
              && Stream.of(files).allMatch(one -> isOfLog(path, one.getPath()))
              && tree.folders().noneMatch(one -> path.equals(one.getParent()));
      if (isCheckpoint && isListed(path) && isLog) {
        putListing(path, files);
      } else {
        putFolder(path);
      }
    }
  }

  /** Note a file that this process made: alone, or among its folder's files where those are known. */
  synchronized void made(FileStatus file) {
    Path folder = file.getPath().getParent();
    Seen before = get(folder);
    made(file.getPath());
    if (before != null && before.listing() != null && isOfLog(folder, file.getPath())) {
      Stream<FileStatus> others =
          Arrays.stream(before.listing()).filter(one -> !one.getPath().equals(file.getPath()));
      FileStatus[] now = Stream.concat(others, Stream.of(file)).toArray(FileStatus[]::new);
      // Its content is asked for next. Not for longer: the next file may be another driver's.
      long until = Math.min(before.until() - System.nanoTime(), OWN_NANOS) + System.nanoTime();
      seen.put(folder, new Seen(before.status(), now, until));
    } else {
      seen.put(file.getPath(), new Seen(file, null, System.nanoTime() + OWN_NANOS));
    }
  }

  /** Note that this process made something: it is no longer absent, nor are the folders above it. */
  synchronized void made(Path path) {
    looks.stream().filter(look -> isBelow(look.root, path)).forEach(look -> look.isStale = true);
    there(path);
  }

  /** Note that something is there. */
  synchronized void there(Path path) {
    seen.remove(path);
    hints.remove(path);
    checkpoints.made(path);
    Path folder = path.getParent();
    if (folder != null && isKept(folder)) {
      putFolder(folder);
    }
    for (Path above = folder; above != null; above = above.getParent()) {
      seen.computeIfPresent(above, (one, before) -> before.status() == null ? null : before);
    }
  }

  private static boolean isBelow(Path root, Path path) {
    return path.toString().startsWith(root + "/");
  }

  synchronized void clear() {
    looks.forEach(look -> look.isStale = true);
    seen.clear();
    checkpoints.clear();
    hints.clear();
  }
}
