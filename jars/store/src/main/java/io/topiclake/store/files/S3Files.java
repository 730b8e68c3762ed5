package io.topiclake.store.files;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** How files are made on S3 with one call, and so that one writer of several wins. */
public final class S3Files {
  public static final String SCHEME = "s3a";

  /** Hadoop's name for `If-None-Match: *`: S3 itself refuses an object that exists when the upload ends. */
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  /** No look for an existing object before the upload: S3 does not need it, and it proves nothing. */
  private static final String NO_PROBES = "fs.s3a.create.performance";

  /** Of an object's own metadata: how Hadoop writes a name, and how it reads it. */
  private static final String CREATE_HEADER = "fs.s3a.create.header.";
  private static final String HEADER = "header.";

  private static final String MARK = "topiclake-upload";

  private S3Files() {}

  /** Begin a file that appears, whole, when the stream is closed. */
  public static FSDataOutputStream create(FileSystem fs, Path path, boolean overwrite) throws IOException {
    return create(fs, path, overwrite, null);
  }

  /** The same, with a mark that names its writer; null for none. */
  public static FSDataOutputStream create(FileSystem fs, Path path, boolean overwrite, String mark)
      throws IOException {
    if (!overwrite) {
      Conditions.require(fs, path.getParent());
    }
    return begin(fs, path, overwrite, mark);
  }

  static FSDataOutputStream begin(FileSystem fs, Path path, boolean overwrite, String mark)
      throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path).recursive().overwrite(true);
    builder.opt(NO_PROBES, true);
    if (!overwrite) {
      // `must`: a client that does not know the condition refuses, and does not continue without it.
      builder.must(CONDITIONAL, true);
    }
    if (mark != null) {
      builder.opt(CREATE_HEADER + MARK, mark);
    }
    return builder.build();
  }

  /** Return whether the file has this mark. */
  public static boolean hasMark(FileSystem fs, Path path, String mark) throws IOException {
    try {
      byte[] found = fs.getXAttrs(path).get(HEADER + MARK);
      return found != null && mark.equals(new String(found, StandardCharsets.UTF_8));
    } catch (FileNotFoundException gone) {
      return false;
    }
  }

  /** Return whether an upload failed since the object existed (412), or another client makes it (409). */
  public static boolean isTaken(IOException error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      String message = String.valueOf(cause.getMessage());
      if (message.contains("Status Code: 412") || message.contains("Status Code: 409")) {
        return true;
      }
    }
    return false;
  }
}
