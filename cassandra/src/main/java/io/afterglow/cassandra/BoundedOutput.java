package io.afterglow.cassandra;

import java.io.IOException;
import org.apache.cassandra.io.util.DataOutputBuffer;

/**
 * Takes the bytes of a row and ends the writing of one that is too long to be kept. Partitions may
 * have gigabytes, of which no copy may be made on the heap only to be refused afterwards.
 *
 * <ul>
 *   <li>In every version of Cassandra a buffer grows in {@link #doFlush}, and nowhere else.
 *   <li>The buffer doubles, so it never has more than twice the bytes that are allowed.
 *   <li>What is a few bytes too long may still fit: who puts the row looks at its length.
 * </ul>
 */
final class BoundedOutput extends DataOutputBuffer {
  /** Room may be asked for some bytes more than are written. */
  private static final int SLACK = 64;

  private final long most;

  /**
   * @param most bytes of the longest row that is kept
   */
  BoundedOutput(long most) {
    this.most = most + SLACK;
  }

  @Override
  protected void doFlush(int count) throws IOException {
    if ((long) getLength() + count > most) {
      throw new TooLong();
    }
    super.doFlush(count);
  }

  /** Ordinary for tables with large partitions, so it costs no stack trace. */
  static final class TooLong extends IOException {
    private static final long serialVersionUID = 1;

    @Override
    public synchronized Throwable fillInStackTrace() {
      return this;
    }
  }
}
