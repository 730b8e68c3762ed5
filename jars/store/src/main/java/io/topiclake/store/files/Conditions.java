package io.topiclake.store.files;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Whether a store keeps to `If-None-Match`: some that speak S3 take no notice, and overwrite. */
public final class Conditions {
  private static final String PROBE = "_topiclake_probe";
  private static final byte[] CONTENT =
      "Topiclake writes this file twice: a store that allows it would overwrite commits.\n"
          .getBytes(StandardCharsets.UTF_8);

  /** By endpoint and bucket. */
  private static final Map<String, Boolean> KEPT = new ConcurrentHashMap<>();

  /** Folders with a probe of this process. */
  private static final Set<Path> PROBED = ConcurrentHashMap.newKeySet();

  private Conditions() {}

  private static String endpoint(FileSystem fs) {
    return fs.getConf().getTrimmed("fs.s3a.endpoint", "");
  }

  /** Amazon's own keeps to it. */
  private static boolean isAsked(FileSystem fs) {
    return !endpoint(fs).isEmpty() && !endpoint(fs).contains("amazonaws.com");
  }

  /**
   * Check, once for each bucket, that of two writers the store refuses one.
   *
   * @throws IOException It does not: nothing of ours is left there.
   */
  static void require(FileSystem fs, Path folder) throws IOException {
    if (!isAsked(fs)) {
      return;
    }
    String endpoint = endpoint(fs);
    String store = endpoint + " " + fs.getUri();
    Boolean isKept = KEPT.get(store);
    if (isKept == null) {
      Path probe = new Path(folder, PROBE);
      PROBED.add(folder);
      isKept = isRefused(fs, probe) || isRefused(fs, probe);
      KEPT.put(store, isKept);
      if (!isKept) {
        remove(fs, probe);
      }
    }
    if (!isKept) {
      throw new IOException(
          "the store at "
              + endpoint
              + " takes no notice of If-None-Match, by which drivers exclude each other: a second one would"
              + " overwrite commits");
    }
  }

  /** Leave what the next start finds where it looks first: one try tells then. */
  public static void prepare(FileSystem fs, Path folder) throws IOException {
    if (isAsked(fs) && PROBED.add(folder)) {
      isRefused(fs, new Path(folder, PROBE));
    }
  }

  private static void remove(FileSystem fs, Path probe) {
    // A plain `delete` leaves a folder's mark behind.
    try (BulkDelete deletion = fs.createBulkDelete(probe.getParent())) {
      deletion.bulkDelete(List.of(fs.makeQualified(probe)));
    } catch (IOException mayNotDelete) {
      // That the store is refused matters more.
    }
  }

  private static boolean isRefused(FileSystem fs, Path probe) throws IOException {
    FSDataOutputStream stream = S3Files.begin(fs, probe, false, null);
    try {
      stream.write(CONTENT);
      stream.close();
      return false;
    } catch (IOException error) {
      stream.abort();
      if (S3Files.isTaken(error)) {
        return true;
      }
      throw error;
    }
  }
}
