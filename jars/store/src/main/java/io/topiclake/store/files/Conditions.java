package io.topiclake.store.files;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Whether a store keeps to `If-None-Match`: some that speak S3 take no notice, and overwrite. */
final class Conditions {
  private static final String PROBE = "_topiclake_probe";
  private static final byte[] CONTENT =
      "Topiclake writes this file twice: a store that allows it would overwrite commits.\n"
          .getBytes(StandardCharsets.UTF_8);

  /** By endpoint and bucket. */
  private static final Map<String, Boolean> KEPT = new ConcurrentHashMap<>();

  private Conditions() {}

  /**
   * Check, once for each bucket, that of two writers the store refuses one.
   *
   * @throws IOException It does not. No file of this check remains.
   */
  static void require(FileSystem fs, Path folder) throws IOException {
    String endpoint = fs.getConf().getTrimmed("fs.s3a.endpoint", "");
    if (endpoint.isEmpty() || endpoint.contains("amazonaws.com")) {
      return;
    }
    String store = endpoint + " " + fs.getUri();
    Boolean isKept = KEPT.get(store);
    if (isKept == null) {
      Path probe = new Path(folder, PROBE);
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

  private static void remove(FileSystem fs, Path probe) {
    // A plain `delete` leaves a folder's mark.
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
