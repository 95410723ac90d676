package io.afterglow.cassandra;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.zip.CRC32;

/**
 * What the rows on flash belong to, written after a clean stop and taken away at the next start
 * before anything is served. Without it, or when it does not hold, the cache starts empty.
 *
 * <p>It is text: {@code afterglow-rows 2}, the stamp of the Cassandra that wrote the rows, and the
 * highest group. Then comes {@code table ID GROUP SCHEMA} for each table, followed by its SSTables.
 * The CRC of all that is last.
 *
 * <p>It lies on the drive of the cache, which may hang. So each access has a thread of its own that
 * is waited for no longer than a limit, and left behind then. That may still take the marker away
 * or write it: both are true whenever they happen. A marker says which rows are whole on flash, and
 * the SSTables that they are compared with.
 */
final class CleanMarker {
  private static final String MAGIC = "afterglow-rows 2";
  private static final String NAME = "rows.clean";

  /** As long as the engine waits for a drive. */
  static final long LIMIT_MILLIS = 10_000;

  /** A table with rows. */
  static final class Kept {
    final UUID id;
    final int group;
    final Tables.State state;

    Kept(UUID id, int group, Tables.State state) {
      this.id = id;
      this.group = group;
      this.state = state;
    }
  }

  final String stamp;
  final int lastGroup;
  final List<Kept> tables;

  CleanMarker(String stamp, int lastGroup, List<Kept> tables) {
    this.stamp = stamp;
    this.lastGroup = lastGroup;
    this.tables = tables;
  }

  /**
   * Takes the marker away, durably; null if there is none that holds.
   *
   * @param millis that the drive has for it
   */
  static CleanMarker take(Path dir, long millis) throws IOException {
    return within(dir, millis, () -> take(dir));
  }

  private static CleanMarker take(Path dir) throws IOException {
    Path file = dir.resolve(NAME);
    byte[] bytes;
    try {
      bytes = Files.readAllBytes(file);
    } catch (NoSuchFileException e) {
      return null;
    }
    Files.delete(file);
    force(dir);
    try {
      return decode(new String(bytes, StandardCharsets.UTF_8));
    } catch (RuntimeException e) {
      return null;
    }
  }

  /**
   * Writes it, durably and as a whole.
   *
   * @param millis that the drive has for it
   */
  void write(Path dir, long millis) throws IOException {
    within(
        dir,
        millis,
        () -> {
          write(dir);
          return null;
        });
  }

  private static <T> T within(Path dir, long millis, Callable<T> access) throws IOException {
    FutureTask<T> task = new FutureTask<>(access);
    Thread thread = new Thread(task, "afterglow-marker");
    thread.setDaemon(true);
    thread.start();
    try {
      return task.get(millis, TimeUnit.MILLISECONDS);
    } catch (ExecutionException e) {
      throw new IOException(e.getCause().getMessage(), e.getCause());
    } catch (TimeoutException e) {
      throw new IOException("the drive of " + dir + " has not answered for " + millis + " ms");
    } catch (InterruptedException e) {
      throw new InterruptedIOException("interrupted at the marker in " + dir);
    }
  }

  private void write(Path dir) throws IOException {
    Path file = dir.resolve(NAME);
    Path temporary = dir.resolve(NAME + ".new");
    try (FileChannel out =
        FileChannel.open(
            temporary,
            StandardOpenOption.CREATE,
            StandardOpenOption.TRUNCATE_EXISTING,
            StandardOpenOption.WRITE)) {
      ByteBuffer bytes = ByteBuffer.wrap(encode().getBytes(StandardCharsets.UTF_8));
      while (bytes.hasRemaining()) {
        out.write(bytes);
      }
      out.force(true);
    }
    Files.move(temporary, file, StandardCopyOption.ATOMIC_MOVE);
    force(dir);
  }

  private static void force(Path dir) throws IOException {
    try (FileChannel channel = FileChannel.open(dir, StandardOpenOption.READ)) {
      channel.force(true);
    }
  }

  String encode() {
    StringBuilder text = new StringBuilder();
    text.append(MAGIC).append('\n').append(stamp).append('\n').append(lastGroup).append('\n');
    for (Kept table : tables) {
      text.append("table ").append(table.id).append(' ').append(table.group);
      text.append(' ').append(table.state.schema).append('\n');
      table.state.sstables.forEach(sstable -> text.append(sstable).append('\n'));
    }
    return text.append(crc(text.toString())).append('\n').toString();
  }

  static CleanMarker decode(String text) {
    int end = text.lastIndexOf('\n', text.length() - 2) + 1;
    String body = text.substring(0, end);
    if (!text.endsWith("\n") || !text.substring(end, text.length() - 1).equals(crc(body))) {
      return null;
    }
    String[] lines = body.split("\n");
    if (!lines[0].equals(MAGIC)) {
      return null;
    }
    List<Kept> tables = new ArrayList<>();
    for (int n = 3; n < lines.length; n++) {
      String[] words = lines[n].split(" ");
      if (words[0].equals("table")) {
        Tables.State state = new Tables.State(words[3], new ArrayList<>());
        tables.add(new Kept(UUID.fromString(words[1]), Integer.parseInt(words[2]), state));
      } else {
        tables.get(tables.size() - 1).state.sstables.add(lines[n]);
      }
    }
    return new CleanMarker(
        lines[1], Integer.parseInt(lines[2]), Collections.unmodifiableList(tables));
  }

  private static String crc(String text) {
    CRC32 crc = new CRC32();
    crc.update(text.getBytes(StandardCharsets.UTF_8));
    return "crc " + Long.toHexString(crc.getValue());
  }
}
