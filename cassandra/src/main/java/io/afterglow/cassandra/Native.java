package io.afterglow.cassandra;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/**
 * The entry points of the native library. Everything is passed as numbers and addresses; the caller
 * keeps the memory behind an address alive during the call. Results below 0 are failures, of which
 * the engine's log has the message, but for {@link #MISS}.
 */
final class Native {
  /** Nothing was found. */
  static final long MISS = -100;

  /** The cache is closed, and the next opening is as after a crash. */
  static final long NOT_CLEAN = -6;

  /** A key has one value for ever. */
  static final int IMMUTABLE = 1;

  /** Objects are served after a clean stop only. */
  static final int SURVIVES_CLEAN_STOP_ONLY = 2;

  private static final int ABI = 1;
  private static boolean loaded;

  private Native() {}

  /**
   * Loads the library out of this jar, once.
   *
   * @param folder where it is put for a moment; the file system must allow programs
   */
  static synchronized void load(Path folder) throws IOException {
    if (loaded) {
      return;
    }
    String os = System.getProperty("os.name").toLowerCase(java.util.Locale.ROOT);
    String machine =
        System.getProperty("os.arch").equals("amd64") ? "x86_64" : System.getProperty("os.arch");
    String name = "/io/afterglow/native/" + os + "-" + machine + "/libafterglow_ffi.so";
    try (InputStream library = Native.class.getResourceAsStream(name)) {
      if (library == null) {
        throw new IOException("this jar was built without " + name + ": build it for this machine");
      }
      Files.createDirectories(folder);
      // A new file that nobody else can have prepared or change; once loaded its name is not
      // needed.
      Path file = Files.createTempFile(folder, "afterglow-", ".so");
      try {
        Files.copy(library, file, StandardCopyOption.REPLACE_EXISTING);
        System.load(file.toAbsolutePath().toString());
      } catch (UnsatisfiedLinkError e) {
        throw new IOException(
            "cannot load the native library from "
                + folder
                + " ("
                + e.getMessage()
                + "): if that file system is mounted noexec, set afterglow.native.dir to another folder",
            e);
      } finally {
        Files.deleteIfExists(file);
      }
    }
    if (abi() != ABI) {
      throw new IOException("the native library has form " + abi() + ", this jar needs " + ABI);
    }
    loaded = true;
  }

  static native int abi();

  static native long open(long config, long configLen, long message, long messageCapacity);

  static native long get(long handle, long key, long keyLen, long buffer, long capacity);

  /** What this thread's last get found and had no room for; it is as old as that get. */
  static native long rest(long buffer, long capacity);

  /** The two keys follow each other in memory; the second value's length goes to an address. */
  static native long getTwo(
      long handle,
      long keys,
      long keyLen,
      long buffer,
      long capacity,
      long second,
      long secondCapacity,
      long secondLen);

  static native long put(long handle, long key, long keyLen, long value, long valueLen, int group);

  static native long remove(long handle, long key, long keyLen);

  static native long removeGroup(long handle, int group);

  static native long clear(long handle);

  static native long close(long handle);

  static native long stats(long handle, long buffer, long capacity);

  static native long log(long buffer, long capacity);

  static native long keysOpen(long handle);

  static native long keysNext(long keys, long buffer, long capacity);

  static native long keysClose(long keys);
}
