package io.topiclake.store;

import java.io.IOException;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** How files are made on S3 with one call, and so that one writer of several wins. */
final class S3Files {
  static final String SCHEME = "s3a";

  /** Hadoop's name for `If-None-Match: *`: S3 itself refuses an object that is there when the upload ends. */
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  /** No looking at what is there before the upload: S3 does not need it, and it proves nothing. */
  private static final String NO_PROBES = "fs.s3a.create.performance";

  private S3Files() {}

  /** Begin a file that appears, whole, when the stream is closed. */
  static FSDataOutputStream create(FileSystem fs, Path path, boolean overwrite) throws IOException {
    if (!overwrite) {
      Conditions.require(fs, path.getParent());
    }
    return begin(fs, path, overwrite);
  }

  static FSDataOutputStream begin(FileSystem fs, Path path, boolean overwrite) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path).recursive().overwrite(true);
    builder.opt(NO_PROBES, true);
    if (!overwrite) {
      // `must`: a client that does not know the condition refuses, and does not go on without it.
      builder.must(CONDITIONAL, true);
    }
    return builder.build();
  }

  /** Tell whether an upload failed since the object was there (412), or is being made by another (409). */
  static boolean isTaken(IOException error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      String told = String.valueOf(cause.getMessage());
      if (told.contains("Status Code: 412") || told.contains("Status Code: 409")) {
        return true;
      }
    }
    return false;
  }
}
