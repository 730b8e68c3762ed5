package io.topiclake.store.files;

import static java.nio.file.StandardOpenOption.CREATE_NEW;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Set;
import java.util.UUID;

/** How files are made in local folders at once, and so that one process of several wins. */
public final class LocalFiles {
  public static final String SCHEME = "file";

  /** EPERM, EOPNOTSUPP, ENOSYS, EXDEV and EMLINK; Java keeps of an error its text only. */
  private static final Set<String> NO_LINKS =
      Set.of(
          "Operation not permitted",
          "Operation not supported",
          "Function not implemented",
          "Invalid cross-device link",
          "Too many links");

  private LocalFiles() {}

  /**
   * Make a file that appears whole.
   *
   * @throws FileAlreadyExistsException without `overwrite`: there is one of this name.
   */
  public static void write(org.apache.hadoop.fs.Path path, byte[] content, boolean overwrite) throws IOException {
    Path target = Path.of(path.toUri().getPath());
    Path whole = target.resolveSibling("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
    try {
      writeToDisk(whole, content);
      // Hadoop's checksum of a file that was here before, by a program with other settings, would not fit.
      Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
      if (overwrite) {
        Files.move(whole, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      } else {
        link(target, whole);
      }
    } finally {
      Files.deleteIfExists(whole);
    }
  }

  /** A file must not exist after a power cut without its content, so the content reaches the disk first. */
  private static void writeToDisk(Path file, byte[] content) throws IOException {
    try (FileChannel channel = FileChannel.open(file, CREATE_NEW, WRITE)) {
      ByteBuffer rest = ByteBuffer.wrap(content);
      while (rest.hasRemaining()) {
        channel.write(rest);
      }
      channel.force(true);
    }
  }

  private static void link(Path target, Path whole) throws IOException {
    try {
      Files.createLink(target, whole);
    } catch (FileAlreadyExistsException taken) {
      // Over a network the answer to the first try may have been lost, and the second have met what it made.
      if (!Files.isSameFile(target, whole)) {
        throw taken;
      }
    } catch (UnsupportedOperationException | FileSystemException error) {
      throw refused(target, error);
    }
  }

  /** A full disk, or a folder that is gone by now, keeps its own cause: the advice removes the protection. */
  private static IOException refused(Path target, Exception error) {
    if (error instanceof FileSystemException known && !NO_LINKS.contains(known.getReason() + "")) {
      return known;
    }
    return new IOException(
        target.getParent()
            + " lies in a file system without hard links, by which writers exclude each other ("
            + error.getMessage()
            + "); use another folder, or, where one process alone ever writes, set"
            + " spark.delta.logStore.file.impl=io.delta.storage.HDFSLogStore",
        error);
  }
}
