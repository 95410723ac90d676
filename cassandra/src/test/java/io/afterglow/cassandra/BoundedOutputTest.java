package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.cassandra.io.util.DataOutputBuffer;
import org.junit.jupiter.api.Test;

class BoundedOutputTest {
  private static final int MOST = 100_000;

  private interface Writer {
    void write(DataOutputBuffer out) throws IOException;
  }

  /** How many bytes are taken of a row without an end. */
  private static long taken(Writer writer) throws IOException {
    try (BoundedOutput out = new BoundedOutput(MOST)) {
      assertThrows(
          BoundedOutput.TooLong.class,
          () -> {
            while (true) {
              writer.write(out);
            }
          });
      assertTrue(out.getData().length <= 2 * MOST + 1024, "bytes: " + out.getData().length);
      return out.getLength();
    }
  }

  @Test
  void whateverIsWrittenEndsNearTheLimit() throws IOException {
    ByteBuffer direct = ByteBuffer.allocateDirect(1000);
    Writer[] writers = {
      out -> out.write(7),
      out -> out.writeInt(7),
      out -> out.writeLong(7),
      out -> out.writeUTF("seven"),
      out -> out.writeUnsignedVInt(1L << 40),
      out -> out.write(new byte[1000]),
      out -> out.write(ByteBuffer.wrap(new byte[1000])),
      out -> out.write(direct.duplicate()),
    };
    for (Writer writer : writers) {
      long taken = taken(writer);
      assertTrue(taken > MOST / 2 && taken <= 2 * MOST, "bytes: " + taken);
    }
  }

  @Test
  void aSingleValueThatIsTooLongTakesNoRoom() throws IOException {
    byte[] value = new byte[64 << 20];
    try (BoundedOutput out = new BoundedOutput(MOST)) {
      assertThrows(BoundedOutput.TooLong.class, () -> out.write(value));
      assertTrue(out.getData().length < 1024);
    }
  }

  @Test
  void aRowOfTheLongestLengthIsTakenWhole() throws IOException {
    try (BoundedOutput out = new BoundedOutput(MOST)) {
      for (int n = 0; n < MOST; n++) {
        out.write(n);
      }
      assertEquals(MOST, out.getLength());
      assertEquals((byte) (MOST - 1), out.getData()[MOST - 1]);
    }
  }
}
