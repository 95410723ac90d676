package io.afterglow.cassandra;

import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Chunks of SSTables over flash, below Cassandra's own chunk cache. What is served is never wrong:
 *
 * <ul>
 *   <li>A key holds the identity of a finished file, which no other file ever has, the position and
 *       the length. The engine compares the key and a checksum of all.
 *   <li>Bytes are taken in only if their reading began after the identity was known. A file that is
 *       still being written has none.
 * </ul>
 *
 * Nothing is read, compared or written for it on the thread of a read but the look-up itself.
 */
final class ChunkCache {
  private static final Logger logger = LoggerFactory.getLogger(ChunkCache.class);
  private static final long ASK_AGAIN_NANOS = TimeUnit.SECONDS.toNanos(1);

  /** Tasks with which no more files are asked for their identity. */
  private static final int TASKS = 4096;

  private static final int REPORTED = 20;

  /** Files that are looked for in a second in which nothing else is to be done. */
  private static final int LOOKED_FOR = 16;

  /** Where chunks are kept. */
  interface Store {
    /**
     * Copies a value to a direct buffer from its index 0 on, if it fits.
     *
     * @return its length, or -1 if there is none
     */
    int get(byte[] key, ByteBuffer direct);

    /**
     * The same for two keys of one length at once.
     *
     * @param lengths where the lengths of both go
     */
    void getTwo(byte[] key, ByteBuffer direct, byte[] next, ByteBuffer second, int[] lengths);

    boolean put(byte[] key, byte[] value, int length, int group);

    void removeGroup(int group);
  }

  /** What is known of the files that readers read. */
  interface Files {
    /** {@link ChunkFile#NONE} for those that are none of ours. */
    ChunkFile file(HookedReader reader);

    /**
     * Called in the background when the first file has an identity: the node is far enough for
     * everything.
     */
    void ready();

    /** Whether there is surely no file of this name any more; asked in the background. */
    boolean gone(String path);
  }

  /** A chunk that is being read from its SSTable. */
  static final class Read {
    private final ChunkKey key;
    private final ChunkIdentity identity;
    private final int length;

    /** What we would have answered, to be compared; or null. */
    private final byte[] ours;

    private Read(ChunkKey key, ChunkIdentity identity, int length, byte[] ours) {
      this.key = key;
      this.identity = identity;
      this.length = length;
      this.ours = ours;
    }
  }

  private final Store store;
  private final Files files;
  private final Popularity popularity;
  private final FillQueue queue;
  private final int admit;
  private final boolean compress;
  private final boolean verify;
  private final ConcurrentHashMap<String, ChunkIdentity> identities = new ConcurrentHashMap<>();

  /** It takes every removal: what is lost would stay on flash until it is evicted. */
  private final BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>();

  /** Where the search for files that are gone is; of the thread that runs the tasks. */
  private Iterator<Map.Entry<String, ChunkIdentity>> search = Collections.emptyIterator();

  private final Scratch bounce = new Scratch();
  private volatile boolean ready;
  private volatile boolean closed;
  private volatile String unhooked;

  /** What counters say; read by the MBean. */
  final LongAdder hits = new LongAdder();

  final LongAdder queueHits = new LongAdder();
  final LongAdder aheadHits = new LongAdder();
  final LongAdder aheadUseless = new LongAdder();
  final LongAdder misses = new LongAdder();
  final LongAdder bypassed = new LongAdder();
  final LongAdder unidentified = new LongAdder();
  final LongAdder errors = new LongAdder();
  final LongAdder fills = new LongAdder();
  final LongAdder unpopular = new LongAdder();
  final LongAdder queueFull = new LongAdder();
  final LongAdder cooled = new LongAdder();
  final LongAdder refused = new LongAdder();
  final LongAdder outlived = new LongAdder();
  final LongAdder filesDropped = new LongAdder();
  final LongAdder compared = new LongAdder();
  final LongAdder different = new LongAdder();

  ChunkCache(Store store, Files files, ChunkOptions options) {
    this.store = store;
    this.files = files;
    this.popularity = new Popularity(options.flash() / (16 << 10));
    this.queue = new FillQueue(options.queue);
    this.admit = options.admit;
    this.compress = options.compress;
    this.verify = options.verify;
  }

  // Reads

  /**
   * Before a chunk is read: {@link HookedReader#HIT} if it need not be, or what {@link #after}
   * wants to know.
   */
  Object before(HookedReader reader, long position, ByteBuffer buffer) {
    ChunkFile file = file(reader);
    if (file == ChunkFile.NONE || closed) {
      return null;
    }
    if (!serves(Thread.currentThread().getName())) {
      bypassed.increment();
      return null;
    }
    ChunkIdentity identity = file.identity;
    if (identity == null) {
      identify(file);
      return null;
    }
    int length = file.lengthAt(position);
    if (identity.dead || length == 0 || length > buffer.capacity() || buffer.isReadOnly()) {
      return null;
    }
    ChunkKey key = new ChunkKey(identity, position, length);
    popularity.count(key.hash);
    if (!find(file, key, position, length, buffer)) {
      misses.increment();
      buffer.clear();
      return new Read(key, identity, length, null);
    }
    hits.increment();
    buffer.position(0).limit(length);
    if (!verify) {
      return HookedReader.HIT;
    }
    byte[] ours = new byte[length];
    buffer.get(ours);
    buffer.clear();
    return new Read(key, identity, length, ours);
  }

  private ChunkFile file(HookedReader reader) {
    ChunkFile file = (ChunkFile) reader.afterglow$file();
    if (file == null) {
      file = files.file(reader);
      reader.afterglow$file(file);
    }
    return file;
  }

  /**
   * Threads that answer clients. What compacts, streams, repairs or builds reads everything once,
   * and would only push out what is read often. The name must be looked at each time: Cassandra's
   * threads change their work, and their name with it.
   */
  static boolean serves(String thread) {
    return thread.startsWith("Native-Transport-Requests")
        || thread.startsWith("ReadStage")
        // Those of reads keep this name with -Dcassandra.set_sep_thread_name=false.
        || thread.startsWith("SharedPool-Worker");
  }

  private boolean find(ChunkFile file, ChunkKey key, long position, int length, ByteBuffer buffer) {
    Ahead ahead = Ahead.ofThread();
    int place = ahead.step(file.spans, position, length);
    if (ahead.keeps()) {
      if (ahead.give(key, buffer)) {
        aheadHits.increment();
        return true;
      }
      aheadUseless.increment();
    }
    FillQueue.Waiting waiting = queue.find(key);
    if (waiting != null) {
      buffer.clear();
      buffer.put(waiting.bytes);
      queueHits.increment();
      return true;
    }
    try {
      if (!buffer.isDirect()) {
        return bounce(key, length, buffer);
      }
      long next = position + length;
      int nextLength = file.spans.goesOn(place) ? file.lengthAt(next) : 0;
      if (nextLength == 0) {
        return get(key, length, buffer);
      }
      ChunkKey nextKey = new ChunkKey(file.identity, next, nextLength);
      return getTwo(key, length, buffer, nextKey, nextLength, ahead);
    } catch (Throwable e) {
      errors.increment();
      return false;
    }
  }

  private boolean get(ChunkKey key, int length, ByteBuffer direct) {
    return is(store.get(key.bytes, direct), length, direct);
  }

  /** Reads the chunk behind it together with a chunk, and keeps it for this thread. */
  private boolean getTwo(
      ChunkKey key, int length, ByteBuffer direct, ChunkKey next, int nextLength, Ahead ahead) {
    ByteBuffer second = ahead.room(nextLength);
    int[] found = new int[2];
    store.getTwo(key.bytes, direct, next.bytes, second, found);
    if (is(found[1], nextLength, second)) {
      ahead.keep(next, nextLength);
    }
    return is(found[0], length, direct);
  }

  /** Whether so many bytes that were found are a chunk; it is unpacked then. */
  private static boolean is(int found, int length, ByteBuffer direct) {
    return found == length
        || (found > 0 && found < length && ChunkForm.unpack(direct, found, length));
  }

  private boolean bounce(ChunkKey key, int length, ByteBuffer heap) {
    ByteBuffer direct = bounce.of(length);
    if (!get(key, length, direct)) {
      return false;
    }
    direct.position(0).limit(length);
    heap.clear();
    heap.put(direct);
    return true;
  }

  /** After a chunk was read from its SSTable. */
  void after(Read read, ByteBuffer buffer) {
    if (read.ours != null) {
      compare(read, buffer);
      return;
    }
    if (buffer.position() != 0 || buffer.limit() != read.length) {
      refused.increment();
    } else if (popularity.estimate(read.key.hash) < admit) {
      unpopular.increment();
    } else if (!queue.offer(read.key, read.identity, buffer, read.length)) {
      queueFull.increment();
    }
  }

  private void compare(Read read, ByteBuffer buffer) {
    compared.increment();
    if (buffer.duplicate().equals(ByteBuffer.wrap(read.ours))) {
      return;
    }
    different.increment();
    if (different.sum() <= REPORTED) {
      logger.error(
          "Afterglow chunk cache: {} bytes differ from the SSTable's, key {}",
          read.length,
          new java.math.BigInteger(1, read.key.bytes).toString(16));
    }
  }

  // Files

  private void identify(ChunkFile file) {
    unidentified.increment();
    // One that finds no room asks again later.
    if (file.ask(System.nanoTime(), ASK_AGAIN_NANOS) && tasks.size() < TASKS) {
      tasks.add(() -> resolve(file));
    }
  }

  private void resolve(ChunkFile file) {
    try {
      ChunkIdentity found = file.source.identity();
      if (found == null) {
        return;
      }
      file.identity =
          identities.compute(
              file.source.path(),
              (path, known) -> known != null && !known.dead && known.same(found) ? known : found);
      if (!ready) {
        ready = true;
        files.ready();
      }
    } catch (Throwable e) {
      // A file that cannot be looked at, perhaps deleted meanwhile, is not cached.
      logger.debug("Afterglow chunk cache: cannot identify {}", file.source.path(), e);
    }
  }

  /** A file will not be read any more. That its chunks go at once is for the room they take. */
  void deleting(String path) {
    ChunkIdentity identity = identities.remove(path);
    if (identity != null) {
      drop(identity);
    }
  }

  private void drop(ChunkIdentity identity) {
    identity.dead = true;
    filesDropped.increment();
    tasks.add(() -> store.removeGroup(identity.group));
  }

  /**
   * Looks for the next files, from the first again after the last. A read that had begun before the
   * file was deleted may get its identity only after that was told.
   */
  private void forgetSomeThatAreGone() {
    if (!search.hasNext()) {
      search = identities.entrySet().iterator();
    }
    for (int n = 0; n < LOOKED_FOR && search.hasNext(); n++) {
      Map.Entry<String, ChunkIdentity> known = search.next();
      if (files.gone(known.getKey()) && identities.remove(known.getKey(), known.getValue())) {
        drop(known.getValue());
      }
    }
  }

  int tasks() {
    return tasks.size();
  }

  int files() {
    return identities.size();
  }

  long waitingBytes() {
    return queue.bytes();
  }

  // In the background

  void start() {
    daemon("afterglow-chunk-files", this::runTask);
    daemon("afterglow-chunk-fill", this::fill);
  }

  private interface Step {
    void run() throws Exception;
  }

  private void daemon(String name, Step step) {
    Thread thread =
        new Thread(
            () -> {
              while (!closed) {
                try {
                  step.run();
                } catch (InterruptedException e) {
                  return;
                } catch (Throwable e) {
                  errors.increment();
                }
              }
            },
            name);
    thread.setDaemon(true);
    thread.start();
  }

  /** Looks at one file, or waits a while for one. If none comes it looks for some that are gone. */
  void runTask() throws InterruptedException {
    Runnable task = tasks.poll(1, TimeUnit.SECONDS);
    if (task != null) {
      task.run();
    } else {
      forgetSomeThatAreGone();
    }
  }

  /** Brings one chunk to flash, or waits a while for one. */
  void fill() throws InterruptedException {
    popularity.ageIfDue();
    FillQueue.Waiting next = queue.take(1000);
    if (next == null) {
      return;
    }
    try {
      if (next.identity.dead) {
        outlived.increment();
      } else if (popularity.estimate(next.key.hash) < admit) {
        cooled.increment();
      } else {
        put(next);
      }
    } finally {
      queue.done(next);
    }
  }

  private void put(FillQueue.Waiting chunk) {
    byte[] packed = compress ? ChunkForm.pack(chunk.bytes) : null;
    byte[] value = packed == null ? chunk.bytes : packed;
    if (store.put(chunk.key.bytes, value, value.length, chunk.identity.group)) {
      fills.increment();
    } else {
      refused.increment();
    }
  }

  /** Neither looks up nor takes in any more. */
  void close() {
    closed = true;
  }

  /** A class of Cassandra was loaded without our calls: the cache is off until the next start. */
  void lost(String name, Throwable why) {
    unhooked = name;
    closed = true;
    logger.error("Afterglow chunk cache: off, for {} could not be hooked", name, why);
  }

  String state() {
    if (unhooked != null) {
      return "off: " + unhooked + " could not be hooked";
    }
    return closed ? "closed" : verify ? "on, verifying" : "on";
  }
}
