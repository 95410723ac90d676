package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;

class FillQueueTest {
  private static final int CHUNK = 4096;

  @Test
  void aChunkIsFoundUntilItIsDoneAndTakesRoomOnce() throws Exception {
    ChunkIdentity file = ChunkIdentity.of("a");
    FillQueue queue = new FillQueue(CHUNK * 3 / 2);
    ByteBuffer chunk = ByteBuffer.allocate(CHUNK);
    ChunkKey first = new ChunkKey(file, 0, CHUNK);
    ChunkKey second = new ChunkKey(file, CHUNK, CHUNK);
    assertNull(queue.find(first));
    assertTrue(queue.offer(first, file, chunk, CHUNK));
    assertFalse(queue.offer(second, file, chunk, CHUNK));
    FillQueue.Waiting taken = queue.take(0);
    assertNotNull(queue.find(first), "until it is on flash");
    queue.done(taken);
    assertNull(queue.find(first));
    assertTrue(queue.offer(second, file, chunk, CHUNK));
    assertEquals(CHUNK, queue.bytes());
  }
}
