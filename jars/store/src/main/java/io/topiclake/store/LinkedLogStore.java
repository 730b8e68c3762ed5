package io.topiclake.store;

import io.delta.storage.HadoopFileSystemLogStore;
import io.topiclake.store.files.LocalFiles;
import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log in a local folder for any number of processes. Each commit appears, whole, by a hard link. The
 * operating system decides which process was first.
 *
 * <p>Delta's own looks whether there is a file and then renames: with two processes commits are overwritten and
 * rows lost.
 */
public class LinkedLogStore extends HadoopFileSystemLogStore {
  public LinkedLogStore(Configuration initial) {
    super(initial);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    // Read to its end first: an action that cannot be made must not leave half a commit.
    byte[] content = ConditionalPutLogStore.bytesOf(actions);
    LocalFiles.write(path, content, overwrite);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
