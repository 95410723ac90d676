package io.afterglow.cassandra;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.cassandra.utils.memory.MemoryUtil;

/**
 * An open cache of the engine: bytes to bytes, from any thread. A failed call is a {@link
 * FlashException}. The change may or may not have been made, so the caller must give the cache up.
 */
class FlashStore implements ChunkCache.Store {
  /** Buffers larger than this are not kept by their threads. */
  private static final int KEPT = 256 << 10;

  private static final ThreadLocal<Scratch> SCRATCH = ThreadLocal.withInitial(Scratch::new);

  /** No record of the engine is longer, whatever the size of a segment. */
  private static final int LONGEST_RECORD = 4 << 20;

  /** Never freed: a thread may be in it at any moment until the process ends. */
  private final long handle;

  private final long longest;

  /**
   * Opens a cache.
   *
   * @param config lines of name=value, see parse() in crates/ffi/src/jni.rs
   */
  FlashStore(String config) throws IOException {
    this.handle = open(config);
    this.longest = Math.min(FlashStore.stats(handle).get("segment_size") / 4, LONGEST_RECORD);
  }

  private static long open(String config) throws IOException {
    Memory text = Memory.of(config.getBytes(StandardCharsets.UTF_8));
    Memory message = new Memory(4096);
    long handle = Native.open(text.address, text.buffer.remaining(), message.address, 4096);
    text.keep();
    if (handle > 0) {
      return handle;
    }
    byte[] bytes = new byte[4096];
    message.buffer.get(bytes);
    int length = 0;
    while (bytes[length] != 0) {
      length++;
    }
    throw new IOException(new String(bytes, 0, length, StandardCharsets.UTF_8));
  }

  /** The value, or null. Valid until this thread's next call. */
  ByteBuffer get(byte[] key) {
    Scratch scratch = SCRATCH.get();
    Memory k = scratch.key(key);
    Memory value = scratch.value(0);
    long length = Native.get(handle, k.address, key.length, value.address, value.capacity());
    k.keep();
    if (length == Native.MISS) {
      return null;
    }
    if (check(length) > value.capacity()) {
      value = scratch.value((int) length);
      if (Native.rest(value.address, value.capacity()) != length) {
        return null;
      }
    }
    return value.first((int) length);
  }

  @Override
  public int get(byte[] key, ByteBuffer direct) {
    Memory k = SCRATCH.get().key(key);
    long address = MemoryUtil.getAddress(direct);
    long length = Native.get(handle, k.address, key.length, address, direct.capacity());
    k.keep();
    Memory.keep(direct);
    return length == Native.MISS ? -1 : (int) check(length);
  }

  @Override
  public void getTwo(byte[] key, ByteBuffer direct, byte[] next, ByteBuffer second, int[] lengths) {
    Scratch scratch = SCRATCH.get();
    Memory keys = scratch.keys(key, next);
    Memory length = scratch.length;
    long found =
        Native.getTwo(
            handle,
            keys.address,
            key.length,
            MemoryUtil.getAddress(direct),
            direct.capacity(),
            MemoryUtil.getAddress(second),
            second.capacity(),
            length.address);
    keys.keep();
    Memory.keep(direct);
    Memory.keep(second);
    lengths[0] = found == Native.MISS ? -1 : (int) check(found);
    found = length.buffer.getLong(0);
    lengths[1] = found == Native.MISS ? -1 : (int) found;
  }

  /** Key and value together are never longer. */
  long longest() {
    return longest;
  }

  /** Whether a record may have so many bytes of key and value, but for some of its header. */
  boolean takes(int keyLength, int length) {
    return (long) keyLength + length <= longest;
  }

  /**
   * A value outside the heap, to be put by this thread before its next call. So a lack of memory
   * shows before anything is changed: putting or removing the key takes none then.
   */
  Value prepare(byte[] key, byte[] value, int length) {
    Scratch scratch = SCRATCH.get();
    scratch.key(key);
    Memory memory = scratch.value(length);
    memory.set(value, length);
    return new Value(memory, length);
  }

  /** A value outside the heap. */
  static final class Value {
    private final Memory memory;
    private final int length;

    private Value(Memory memory, int length) {
      this.memory = memory;
      this.length = length;
    }
  }

  /** Puts a value into a group; false when the engine refused it: then the older one is gone. */
  @Override
  public boolean put(byte[] key, byte[] value, int length, int group) {
    return put(key, prepare(key, value, length), group);
  }

  /** The same with a value that was prepared. */
  boolean put(byte[] key, Value value, int group) {
    Memory k = SCRATCH.get().key(key);
    Memory v = value.memory;
    long refused = Native.put(handle, k.address, key.length, v.address, value.length, group);
    k.keep();
    v.keep();
    check(refused);
    return refused == 0;
  }

  void remove(byte[] key) {
    Memory k = SCRATCH.get().key(key);
    check(Native.remove(handle, k.address, key.length));
    k.keep();
  }

  @Override
  public void removeGroup(int group) {
    check(Native.removeGroup(handle, group));
  }

  void clear() {
    check(Native.clear(handle));
  }

  /**
   * Writes everything out; from now on puts are refused. False if not everything could be written,
   * or a drive does not answer: the next opening is as after a crash.
   */
  boolean close() {
    long result = Native.close(handle);
    return result != Native.NOT_CLEAN && check(result) == 0;
  }

  /** The engine's counters by name. */
  Map<String, Long> stats() {
    return stats(handle);
  }

  private static Map<String, Long> stats(long handle) {
    Memory text = SCRATCH.get().value(32 << 10);
    long length = check(Native.stats(handle, text.address, text.capacity()));
    if (length > text.capacity()) {
      throw new FlashException("the counters take " + length + " bytes");
    }
    byte[] bytes = new byte[(int) length];
    text.first((int) length).get(bytes);
    Map<String, Long> figures = new LinkedHashMap<>();
    for (String line : new String(bytes, StandardCharsets.UTF_8).split("\n")) {
      int space = line.lastIndexOf(' ');
      figures.put(line.substring(0, space), Long.valueOf(line.substring(space + 1)));
    }
    return figures;
  }

  /** Lists the keys that are there from now on until the end; one may come twice. */
  Keys keys() {
    return new Keys(check(Native.keysOpen(handle)));
  }

  /** The oldest line of the engine's log that was not yet fetched, or null. */
  static String log() {
    Memory line = SCRATCH.get().value(4096);
    long length = Native.log(line.address, line.capacity());
    if (length < 0) {
      return null;
    }
    byte[] bytes = new byte[(int) length];
    line.first((int) length).get(bytes);
    return new String(bytes, StandardCharsets.UTF_8);
  }

  private static long check(long result) {
    if (result < 0) {
      throw new FlashException("the engine failed with status " + result + "; its log says why");
    }
    return result;
  }

  /** A listing, for one thread at a time. */
  static final class Keys implements AutoCloseable {
    private final long keys;
    private Memory key = new Memory(64 << 10);
    private boolean closed;

    private Keys(long keys) {
      this.keys = keys;
    }

    /** The next key, null at the end; fails if the listing cannot be complete. */
    byte[] next() {
      while (!closed) {
        long length = Native.keysNext(keys, key.address, key.capacity());
        if (length == Native.MISS) {
          close();
          break;
        }
        check(length);
        if (length <= key.capacity()) {
          byte[] bytes = new byte[(int) length];
          key.first((int) length).get(bytes);
          return bytes;
        }
        key = new Memory((int) length);
      }
      return null;
    }

    @Override
    public void close() {
      if (!closed) {
        closed = true;
        Native.keysClose(keys);
      }
    }
  }

  /** Memory outside the heap, and where it is. */
  private static final class Memory {
    private static volatile int kept;
    private final ByteBuffer buffer;
    private final long address;

    Memory(int capacity) {
      buffer = ByteBuffer.allocateDirect(capacity);
      address = MemoryUtil.getAddress(buffer);
    }

    static Memory of(byte[] bytes) {
      Memory memory = new Memory(bytes.length);
      memory.set(bytes, bytes.length);
      return memory;
    }

    int capacity() {
      return buffer.capacity();
    }

    void set(byte[] bytes, int length) {
      buffer.clear();
      buffer.put(bytes, 0, length);
      buffer.flip();
    }

    ByteBuffer first(int length) {
      buffer.clear();
      buffer.limit(length);
      return buffer;
    }

    /** A use of the buffer that cannot be optimised away: it is reachable until here. */
    void keep() {
      keep(buffer);
    }

    static void keep(ByteBuffer buffer) {
      if (buffer.limit() < 0) {
        kept++;
      }
    }
  }

  /** What a thread keeps for its calls. */
  private static final class Scratch {
    private Memory key = new Memory(1 << 10);
    private Memory value = new Memory(64 << 10);
    private final Memory length = new Memory(Long.BYTES);

    Scratch() {
      length.buffer.order(ByteOrder.nativeOrder());
    }

    /** Two keys, one behind the other. */
    Memory keys(byte[] first, byte[] second) {
      key(first);
      key.buffer.limit(first.length + second.length).position(first.length);
      key.buffer.put(second);
      return key;
    }

    Memory key(byte[] bytes) {
      if (bytes.length > key.capacity()) {
        key = new Memory(bytes.length);
      }
      key.set(bytes, bytes.length);
      return key;
    }

    Memory value(int length) {
      if (length <= value.capacity()) {
        return value;
      }
      Memory memory = new Memory(length);
      if (length <= KEPT) {
        value = memory;
      }
      return memory;
    }
  }
}
