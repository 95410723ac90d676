package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ChunkCacheTest {
  private static final int CHUNK = 4096;

  /** A file of two and a half chunks, and what a reader of it sees. */
  private final byte[] data = new byte[CHUNK * 5 / 2];

  private final MemoryStore store = new MemoryStore();
  private final Reader reader = new Reader();
  private ChunkIdentity finished;
  private String path = "/data/k/t-0/nb-1-big-Data.db";
  private int drained;
  private boolean gone;
  private String thread;

  private static final class Reader implements HookedReader {
    private Object file;

    @Override
    public Object afterglow$file() {
      return file;
    }

    @Override
    public void afterglow$file(Object file) {
      this.file = file;
    }
  }

  private static final class MemoryStore implements ChunkCache.Store {
    private final Map<ByteBuffer, byte[]> chunks = new HashMap<>();
    private final Map<ByteBuffer, Integer> groups = new HashMap<>();
    private boolean broken;
    private int together;

    @Override
    public int get(byte[] key, ByteBuffer direct) {
      if (broken) {
        throw new FlashException("broken");
      }
      assertTrue(direct.isDirect());
      byte[] value = chunks.get(ByteBuffer.wrap(key));
      if (value == null) {
        return -1;
      }
      if (value.length <= direct.capacity()) {
        ByteBuffer all = direct.duplicate();
        all.clear();
        all.put(value);
      }
      return value.length;
    }

    @Override
    public void getTwo(
        byte[] key, ByteBuffer direct, byte[] next, ByteBuffer second, int[] lengths) {
      together++;
      lengths[0] = get(key, direct);
      lengths[1] = get(next, second);
    }

    @Override
    public boolean put(byte[] key, byte[] value, int length, int group) {
      if (broken) {
        throw new FlashException("broken");
      }
      chunks.put(ByteBuffer.wrap(key), Arrays.copyOf(value, length));
      groups.put(ByteBuffer.wrap(key), group);
      return true;
    }

    @Override
    public void removeGroup(int group) {
      chunks.keySet().removeIf(key -> groups.get(key) == group);
    }
  }

  private ChunkCache cache(String... pairs) throws ConfigException {
    Properties properties = new Properties();
    properties.setProperty("afterglow.chunkcache.flash", "/f:1GiB");
    for (int n = 0; n < pairs.length; n += 2) {
      properties.setProperty("afterglow.chunkcache." + pairs[n], pairs[n + 1]);
    }
    ChunkFile.Source source =
        new ChunkFile.Source() {
          @Override
          public ChunkIdentity identity() {
            return finished;
          }

          @Override
          public String path() {
            return path;
          }
        };
    ChunkCache.Files files =
        new ChunkCache.Files() {
          @Override
          public ChunkFile file(HookedReader reader) {
            return new ChunkFile(source, data.length, CHUNK);
          }

          @Override
          public void ready() {
            drained++;
          }

          @Override
          public boolean gone(String path) {
            return gone;
          }
        };
    return new ChunkCache(store, files, new ChunkOptions(properties));
  }

  @BeforeEach
  void asAReader() {
    thread = Thread.currentThread().getName();
    Thread.currentThread().setName("ReadStage-1");
    new Random(1).nextBytes(data);
    finished = ChunkIdentity.of("a");
  }

  @AfterEach
  void asBefore() {
    Thread.currentThread().setName(thread);
  }

  /** Reads a chunk as Cassandra does; whether our cache answered. */
  private boolean read(ChunkCache cache, int position, ByteBuffer buffer) {
    Object read = cache.before(reader, position, buffer);
    if (read != ChunkHooks.HIT) {
      buffer.clear();
      buffer.put(data, position, Math.min(CHUNK, data.length - position));
      buffer.flip();
      if (read != null) {
        cache.after((ChunkCache.Read) read, buffer);
      }
    }
    byte[] seen = new byte[buffer.remaining()];
    assertEquals(0, buffer.position());
    buffer.duplicate().get(seen);
    assertArrayEquals(Arrays.copyOfRange(data, position, position + seen.length), seen);
    assertEquals(Math.min(CHUNK, data.length - position), seen.length);
    return read == ChunkHooks.HIT;
  }

  private boolean read(ChunkCache cache, int position) {
    return read(cache, position, ByteBuffer.allocateDirect(CHUNK));
  }

  /** A cache that knows the file. */
  private ChunkCache identified(String... pairs) throws Exception {
    ChunkCache cache = cache(pairs);
    assertFalse(read(cache, 0));
    cache.runTask();
    return cache;
  }

  @Test
  void aChunkReadTwiceIsKeptAndAnsweredAlsoWhileItWaits() throws Exception {
    ChunkCache cache = identified();
    assertFalse(read(cache, CHUNK));
    assertEquals(1, cache.unpopular.sum(), "once is not often");
    assertFalse(read(cache, CHUNK));
    assertTrue(read(cache, CHUNK));
    assertEquals(1, cache.queueHits.sum());
    cache.fill();
    assertEquals(0, cache.waitingBytes());
    assertEquals(1, store.chunks.size());
    assertTrue(read(cache, CHUNK));
    assertEquals(1, cache.queueHits.sum(), "from the store this time");
    assertFalse(read(cache, 2 * CHUNK), "another chunk");
    assertEquals(1, drained, "said once, when the first file was known");
  }

  @Test
  void theLastChunkIsShortAndBuffersOnTheHeapAreFilledToo() throws Exception {
    ChunkCache cache = identified("admit", "1");
    assertFalse(read(cache, 2 * CHUNK));
    cache.fill();
    assertTrue(read(cache, 2 * CHUNK, ByteBuffer.allocate(CHUNK)));
    assertTrue(read(cache, 2 * CHUNK));
  }

  /** All chunks of the file are kept, and rows of two chunks are read so often. */
  private ChunkCache ofRowsOverTwoChunks(int rows) throws Exception {
    ChunkCache cache = identified("admit", "1");
    for (int position = 0; position < data.length; position += CHUNK) {
      assertFalse(read(cache, position));
      cache.fill();
    }
    for (int n = 0; n < rows; n++) {
      assertTrue(read(cache, 0));
      assertTrue(read(cache, CHUNK));
    }
    return cache;
  }

  @Test
  void aRowThatLiesAcrossTheEndOfAChunkIsReadAtOnce() throws Exception {
    ChunkCache cache = ofRowsOverTwoChunks(Spans.LEAST);
    store.together = 0;
    long before = cache.aheadHits.sum();
    assertTrue(read(cache, 0));
    assertEquals(1, store.together);
    assertTrue(read(cache, CHUNK));
    assertEquals(1, store.together, "the third chunk is not wanted after the second");
    assertEquals(before + 1, cache.aheadHits.sum());
    assertEquals(0, cache.aheadUseless.sum());

    assertTrue(read(cache, 0));
    assertTrue(read(cache, 2 * CHUNK), "another one than was kept");
    assertEquals(1, cache.aheadUseless.sum());
    assertTrue(read(cache, CHUNK), "what was kept is gone, and read again");
    assertEquals(before + 1, cache.aheadHits.sum());
  }

  @Test
  void whereRowsEndInTheirChunkMoreThanOnceInTenNothingIsReadAhead() throws Exception {
    ChunkCache cache = ofRowsOverTwoChunks(Spans.LEAST);
    for (int n = 0; n < Spans.LEAST / 8; n++) {
      assertTrue(read(cache, 0));
    }
    long useless = cache.aheadUseless.sum();
    assertTrue(useless > 0);
    store.together = 0;
    for (int n = 0; n < 100; n++) {
      assertTrue(read(cache, 0));
    }
    assertEquals(0, store.together);
    assertTrue(cache.aheadUseless.sum() <= useless + 1);
  }

  @ParameterizedTest
  @ValueSource(booleans = {true, false})
  void theShorterFormIsTheSameChunk(boolean packable) throws Exception {
    if (packable) {
      Arrays.fill(data, CHUNK, 2 * CHUNK, (byte) 7);
    }
    ChunkCache cache = identified("admit", "1", "compress", "true");
    assertFalse(read(cache, CHUNK));
    cache.fill();
    int length = store.chunks.values().iterator().next().length;
    assertEquals(packable, length < CHUNK);
    assertTrue(read(cache, CHUNK));
    assertTrue(read(identified(), CHUNK), "whatever the option says now");
  }

  @Test
  void nothingIsTakenInWhoseReadingBeganBeforeTheFileWasKnown() throws Exception {
    finished = null;
    ChunkCache cache = cache("admit", "1");
    Object early = cache.before(reader, 0, ByteBuffer.allocateDirect(CHUNK));
    cache.runTask();
    assertNull(cache.before(reader, 0, ByteBuffer.allocateDirect(CHUNK)), "not finished");
    assertNull(early);
    assertEquals(2, cache.unidentified.sum());
    assertEquals(0, cache.files());
  }

  @Test
  void anEarlyReadersShortEndIsNotTheEndOfTheFinishedFile() throws Exception {
    ChunkCache cache = identified("admit", "1");
    ByteBuffer buffer = ByteBuffer.allocateDirect(CHUNK);
    Object read = cache.before(reader, 2 * CHUNK, buffer);
    // The file has grown since this reader was opened: it reads more than it thought there is.
    buffer.clear();
    cache.after((ChunkCache.Read) read, buffer);
    assertEquals(1, cache.refused.sum());
    assertEquals(0, cache.waitingBytes());
    assertNull(cache.before(reader, CHUNK + 512, buffer), "no chunk begins there");
    assertNull(cache.before(reader, 2 * CHUNK, ByteBuffer.allocateDirect(100)), "too small");
  }

  @Test
  void threadsThatScanNeitherLookUpNorFill() throws Exception {
    ChunkCache cache = identified("admit", "1");
    read(cache, 0);
    cache.fill();
    for (String name :
        new String[] {"CompactionExecutor:1", "ValidationExecutor:1", "MutationStage-2"}) {
      Thread.currentThread().setName(name);
      assertFalse(read(cache, 0));
      assertFalse(read(cache, CHUNK));
    }
    assertEquals(6, cache.bypassed.sum());
    assertEquals(0, cache.waitingBytes());
    // The last is what all of Cassandra's stages are called with set_sep_thread_name=false.
    for (String name :
        new String[] {"Native-Transport-Requests-7", "ReadStage-1", "SharedPool-Worker-3"}) {
      Thread.currentThread().setName(name);
      assertTrue(read(cache, 0), name);
    }
    assertEquals(6, cache.bypassed.sum());
  }

  @Test
  void aDeletedFilesChunksAreGoneAndNotTakenInAnyMore() throws Exception {
    ChunkCache cache = identified("admit", "1");
    read(cache, 0);
    cache.fill();
    read(cache, CHUNK);
    cache.deleting(path);
    assertFalse(read(cache, 0));
    cache.runTask();
    assertTrue(store.chunks.isEmpty());
    cache.fill();
    assertEquals(1, cache.outlived.sum());
    assertTrue(store.chunks.isEmpty());
    assertEquals(0, cache.files());
  }

  /** A read that is still open when its file is deleted may be the first that asks for it. */
  @Test
  void aFileThatIsKnownOnlyAfterItWasDeletedIsForgottenToo() throws Exception {
    ChunkCache cache = cache("admit", "1");
    assertFalse(read(cache, 0));
    cache.deleting(path);
    cache.runTask();
    assertFalse(read(cache, 0));
    cache.fill();
    assertEquals(1, store.chunks.size());
    cache.runTask();
    assertEquals(1, cache.files(), "it is there as long as somebody reads it");
    gone = true;
    cache.runTask();
    assertEquals(0, cache.files());
    assertEquals(1, cache.filesDropped.sum());
    cache.runTask();
    assertTrue(store.chunks.isEmpty());
  }

  @Test
  void manyFilesAreLookedForOneAfterAnother() throws Exception {
    ChunkCache cache = cache();
    for (int n = 0; n < 40; n++) {
      another(cache, n);
    }
    assertEquals(40, cache.files());
    gone = true;
    for (int n = 0; n < 100 && cache.files() > 0; n++) {
      cache.runTask();
    }
    assertEquals(0, cache.files());
    assertEquals(40, cache.filesDropped.sum());
  }

  /** As the end of many compactions, while the thread that removes them has other work. */
  @Test
  void theChunksOfManyFilesThatAreDeletedAtOnceAllGo() throws Exception {
    int files = 5_000;
    ChunkCache cache = cache("admit", "1");
    for (int n = 0; n < files; n++) {
      another(cache, n);
      assertFalse(read(cache, 0));
      cache.fill();
    }
    assertEquals(files, store.chunks.size());
    for (int n = 0; n < files; n++) {
      cache.deleting(path(n));
    }
    assertEquals(files, cache.filesDropped.sum());
    while (cache.tasks() > 0) {
      cache.runTask();
    }
    assertTrue(store.chunks.isEmpty(), "left: " + store.chunks.size());
  }

  @Test
  void filesThatFindNoRoomAmongTheTasksAreAskedForLater() throws Exception {
    ChunkCache cache = cache();
    int most = 5_000;
    finished = null;
    for (int n = 0; n < most; n++) {
      reader.afterglow$file(null);
      assertFalse(read(cache, 0));
    }
    assertTrue(cache.tasks() < most, "tasks: " + cache.tasks());
    assertEquals(most, cache.unidentified.sum());
  }

  private static String path(int n) {
    return "/data/k/t-0/nb-" + n + "-big-Data.db";
  }

  /** From now on the file with this number is read, which the cache knows. */
  private void another(ChunkCache cache, int n) throws Exception {
    path = path(n);
    finished = ChunkIdentity.of(path);
    reader.afterglow$file(null);
    assertFalse(read(cache, 0));
    cache.runTask();
  }

  @Test
  void aFileThatTookTheNameOfAnotherHasOtherChunks() throws Exception {
    ChunkCache cache = identified("admit", "1");
    read(cache, 0);
    cache.fill();
    finished = ChunkIdentity.of("b");
    data[0] ^= 1;
    reader.afterglow$file(null);
    assertFalse(read(cache, 0));
    cache.runTask();
    assertFalse(read(cache, 0), "same path, position and length");
  }

  @Test
  void aFullQueueTakesNothingMore() throws Exception {
    ChunkCache cache = cache("admit", "1", "queue", "1MiB");
    int most = (1 << 20) / CHUNK;
    for (int n = 0; n < most; n++) {
      another(cache, n);
      assertFalse(read(cache, CHUNK));
    }
    assertEquals(1 << 20, cache.waitingBytes());
    assertEquals(0, cache.queueFull.sum());
    another(cache, most);
    assertFalse(read(cache, CHUNK));
    assertEquals(1, cache.queueFull.sum());
    assertFalse(read(cache, CHUNK), "it was not taken");
    assertEquals(2, cache.queueFull.sum());

    cache.fill();
    assertFalse(read(cache, CHUNK));
    assertTrue(read(cache, CHUNK), "there was room for it");
    assertEquals(2, cache.queueFull.sum());
    assertEquals(1 << 20, cache.waitingBytes());
  }

  @Test
  void whatIsForgottenWhileItWaitsIsNotWritten() throws Exception {
    ChunkCache cache = identified("flash", "/f:64MiB");
    assertFalse(read(cache, CHUNK));
    assertFalse(read(cache, CHUNK));
    assertEquals(CHUNK, cache.waitingBytes());
    // So many reads of another that all counts are halved.
    for (int n = 0; n < 10 * 4096; n++) {
      read(cache, 0);
    }
    cache.fill();
    assertEquals(1, cache.cooled.sum());
    assertTrue(store.chunks.isEmpty());
    assertFalse(read(cache, CHUNK));
    cache.fill();
    assertEquals(1, store.chunks.size(), "what is still read often is written");
    assertEquals(1, cache.fills.sum());
  }

  @Test
  void aBrokenStoreIsAMiss() throws Exception {
    ChunkCache cache = identified("admit", "1");
    read(cache, 0);
    cache.fill();
    store.broken = true;
    assertFalse(read(cache, 0));
    assertEquals(1, cache.errors.sum());
  }

  @Test
  void verifyingReadsTheTableAndCountsWhatIsDifferent() throws Exception {
    ChunkCache cache = identified("admit", "1", "verify", "true");
    read(cache, 0);
    cache.fill();
    assertFalse(read(cache, 0));
    assertEquals(1, cache.compared.sum());
    assertEquals(0, cache.different.sum());
    store.chunks.values().iterator().next()[9] ^= 1;
    assertFalse(read(cache, 0), "what the table has is what is answered");
    assertEquals(1, cache.different.sum());
    assertEquals(2, cache.hits.sum());
  }

  @Test
  void afterTheStopNothingIsAskedAnyMore() throws Exception {
    ChunkCache cache = identified("admit", "1");
    read(cache, 0);
    cache.fill();
    cache.close();
    assertNull(cache.before(reader, 0, ByteBuffer.allocateDirect(CHUNK)));
    assertEquals("closed", cache.state());
    assertSame(ChunkFile.class, reader.afterglow$file().getClass());
  }
}
