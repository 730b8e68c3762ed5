package io.topiclake.store.cache;

import java.util.Collection;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** All that stands below a folder, as one listing told it. */
final class Tree {
  private final Map<Path, FileStatus> files;
  private final Set<Path> folders = new HashSet<>();

  Tree(Path root, Collection<? extends FileStatus> found) {
    files =
        found.stream()
            .filter(FileStatus::isFile)
            .collect(Collectors.toMap(FileStatus::getPath, Function.identity(), (one, other) -> other));
    for (FileStatus status : found) {
      Path folder = status.isDirectory() ? status.getPath() : status.getPath().getParent();
      while (folder != null && !folder.equals(root) && folders.add(folder)) {
        folder = folder.getParent();
      }
    }
  }

  /** Return the file; null where there is none. */
  FileStatus file(Path path) {
    return files.get(path);
  }

  boolean hasFolder(Path path) {
    return folders.contains(path);
  }

  Stream<Path> folders() {
    return folders.stream();
  }

  /** Return the files in a folder and in those below it. */
  FileStatus[] below(Path folder) {
    String start = folder + "/";
    return files.values().stream()
        .filter(status -> status.getPath().toString().startsWith(start))
        .toArray(FileStatus[]::new);
  }
}
