package io.topiclake.store;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitterFactory;

/**
 * How Spark's files come into a folder of S3: by renames, as elsewhere, or at once where the writer's options say
 * so.
 *
 * <p>Topiclake's own do, for what it keeps in a checkpoint: one file of a few lines, which one task writes with one
 * call. By renames it needs forty.
 */
public class Committers extends PathOutputCommitterFactory {
  /** A writer's option; Spark hands those on as the job's settings. */
  private static final String OPTION = "topiclake.committed.at.once";

  @Override
  public PathOutputCommitter createOutputCommitter(Path output, TaskAttemptContext context)
      throws IOException {
    boolean isAtOnce = context.getConfiguration().getBoolean(OPTION, false);
    return isAtOnce ? new AtOnce(output, context) : new FileOutputCommitter(output, context);
  }

  /** The file is where it belongs as soon as it is closed; a task that is tried again overwrites it. */
  private static final class AtOnce extends PathOutputCommitter {
    private final Path output;

    AtOnce(Path output, TaskAttemptContext context) throws IOException {
      super(output, context);
      this.output = output;
    }

    @Override
    public Path getOutputPath() {
      return output;
    }

    @Override
    public Path getWorkPath() {
      return output;
    }

    @Override
    public boolean needsTaskCommit(TaskAttemptContext context) {
      return false;
    }

    @Override
    public void setupJob(JobContext context) {}

    @Override
    public void setupTask(TaskAttemptContext context) {}

    @Override
    public void commitTask(TaskAttemptContext context) {}

    @Override
    public void abortTask(TaskAttemptContext context) {}
  }
}
