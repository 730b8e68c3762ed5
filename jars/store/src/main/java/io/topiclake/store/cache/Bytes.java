package io.topiclake.store.cache;

import java.io.EOFException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSInputStream;

/** A file in memory. */
public final class Bytes extends FSInputStream {
  private final byte[] content;
  private int position;

  private Bytes(byte[] content) {
    this.content = content;
  }

  public static FSDataInputStream stream(byte[] content) {
    return new FSDataInputStream(new Bytes(content));
  }

  @Override
  public void seek(long to) throws EOFException {
    if (to < 0 || to > content.length) {
      throw new EOFException("no position " + to + " in " + content.length + " bytes");
    }
    position = (int) to;
  }

  @Override
  public long getPos() {
    return position;
  }

  @Override
  public boolean seekToNewSource(long to) {
    return false;
  }

  @Override
  public int available() {
    return content.length - position;
  }

  @Override
  public int read() {
    return position < content.length ? content[position++] & 0xff : -1;
  }

  @Override
  public int read(byte[] into, int offset, int length) {
    if (length == 0) {
      return 0;
    }
    int count = Math.min(length, content.length - position);
    if (count <= 0) {
      return -1;
    }
    System.arraycopy(content, position, into, offset, count);
    position += count;
    return count;
  }
}
