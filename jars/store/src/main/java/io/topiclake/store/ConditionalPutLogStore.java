package io.topiclake.store;

import io.delta.storage.HadoopFileSystemLogStore;
import io.delta.storage.internal.S3LogStoreUtil;
import io.topiclake.store.cache.CachingS3A;
import io.topiclake.store.files.S3Files;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Iterator;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3 for any number of drivers: each commit is one conditional PUT, and S3 decides who was first.
 *
 * <p>Delta's own S3SingleDriverLogStore decides within one JVM: with two, commits are overwritten and rows lost.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {
  public ConditionalPutLogStore(Configuration initial) {
    super(initial);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    // Read to its end first: an action that cannot be made must not leave half a commit.
    byte[] content = bytesOf(actions);
    FileSystem fs = path.getFileSystem(conf);
    Optional<CachingS3A> caching = CachingS3A.of(fs);
    FSDataOutputStream stream = S3Files.create(fs, path, overwrite);
    try {
      stream.write(content);
      stream.close();
      caching.ifPresent(files -> files.wrote(path, content));
    } catch (IOException error) {
      stream.abort();
      // The answer to the first try may have been lost, and the second have met what the first one wrote.
      if (overwrite || !S3Files.isTaken(error)) {
        throw error;
      }
      if (!Arrays.equals(content, read(fs, path))) {
        caching.ifPresent(files -> files.written(path));
        throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(error);
      }
    }
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    // Begins at the name: a log of thousands of commits is not listed from its first one.
    FileStatus[] found = S3LogStoreUtil.s3ListFromArray(fs, path, path.getParent());
    if (found.length == 0 && !fs.exists(path.getParent())) {
      throw new FileNotFoundException("there is no folder " + path.getParent());
    }
    CachingS3A.of(fs).ifPresent(caching -> Arrays.stream(found).forEach(caching::listed));
    Arrays.sort(found, Comparator.comparing(status -> status.getPath().getName()));
    return Arrays.asList(found).iterator();
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }

  static byte[] bytesOf(Iterator<String> lines) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    while (lines.hasNext()) {
      bytes.write(lines.next().getBytes(StandardCharsets.UTF_8));
      bytes.write('\n');
    }
    return bytes.toByteArray();
  }

  private static byte[] read(FileSystem fs, Path path) throws IOException {
    try (FSDataInputStream stream = fs.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException gone) {
      return new byte[0];
    }
  }
}
