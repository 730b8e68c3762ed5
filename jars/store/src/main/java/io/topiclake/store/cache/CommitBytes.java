package io.topiclake.store.cache;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileStatus;

/**
 * The content of the newest commits of Delta's log, so that each is fetched once at most.
 *
 * <p>Delta reads all commits since its last checkpoint with each new version. A content stays only as long as
 * the store lists its file with the same entity tag. A table that was deleted and made again begins with other
 * commits of the same names.
 */
final class CommitBytes {
  /** Of one commit; a larger one is fetched as before. */
  static final int LARGEST = 1 << 20;

  private static final long MOST = 32L << 20;

  private record Content(byte[] bytes, String tag) {}

  private final LinkedHashMap<Path, Content> newest = new LinkedHashMap<>(16, 0.75f, true);
  private long total;

  /** Keep what this process wrote; S3's tag of an object that was sent at once is its MD5. */
  void wrote(Path path, byte[] bytes) {
    put(path, bytes, md5(bytes));
  }

  /** Keep what was fetched, and return a stream over it. */
  FSDataInputStream fetched(FileStatus status, byte[] bytes) {
    put(status.getPath(), bytes, status instanceof S3AFileStatus known ? tag(known) : md5(bytes));
    return Bytes.stream(bytes);
  }

  /** Forget what the store lists with another tag: with encryption by KMS also what this process wrote. */
  synchronized void listed(FileStatus status) {
    Content content = newest.get(status.getPath());
    if (content != null && status instanceof S3AFileStatus known && !content.tag.equals(tag(known))) {
      forget(status.getPath());
    }
  }

  /** Return a stream over a commit's content; null where it is not known. */
  synchronized FSDataInputStream open(Path path) {
    Content content = newest.get(path);
    return content == null ? null : Bytes.stream(content.bytes);
  }

  synchronized void forget(Path path) {
    Content gone = newest.remove(path);
    total -= gone == null ? 0 : gone.bytes.length;
  }

  private synchronized void put(Path path, byte[] bytes, String tag) {
    forget(path);
    if (bytes.length > LARGEST) {
      return;
    }
    newest.put(path, new Content(bytes, tag));
    total += bytes.length;
    while (total > MOST) {
      Map.Entry<Path, Content> eldest = newest.entrySet().iterator().next();
      forget(eldest.getKey());
    }
  }

  private static String tag(S3AFileStatus status) {
    return String.valueOf(status.getEtag()).replace("\"", "");
  }

  private static String md5(byte[] bytes) {
    try {
      return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(bytes));
    } catch (NoSuchAlgorithmException none) {
      // A JVM that allows approved algorithms only: what was written is fetched once.
      return "";
    }
  }
}
