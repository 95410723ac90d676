package io.afterglow.cassandra;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.cassandra.io.sstable.format.SSTableReader;
import org.apache.cassandra.io.util.ChunkReader;
import org.apache.cassandra.service.StorageService;

/** What Cassandra and the file system tell of SSTables, for the chunk cache. */
final class CassandraFiles implements ChunkCache.Files {
  private static final String DATA = "-Data.db";

  /** KEYSPACE/TABLE-ID/FILE below a data directory; a secondary index has a folder in between. */
  private static final Pattern PATH =
      Pattern.compile(".*?((\\w+)/(\\w+)-([0-9a-f]{32})/(?:\\.[^/]+/)?[^/]+" + DATA + ")");

  private static final Set<String> SYSTEM =
      new HashSet<>(
          Arrays.asList(
              "system",
              "system_auth",
              "system_cluster_metadata",
              "system_distributed",
              "system_schema",
              "system_traces",
              "system_views",
              "system_virtual_schema"));

  private final OptionValues.TableLists tables;
  private final Runnable onDrained;

  /**
   * @param onDrained run when the node has drained
   */
  CassandraFiles(OptionValues.TableLists tables, Runnable onDrained) {
    this.tables = tables;
    this.onDrained = onDrained;
  }

  static String path(Object sstable) {
    return new File(((SSTableReader) sstable).getFilename()).getAbsolutePath();
  }

  @Override
  public ChunkFile file(HookedReader reader) {
    ChunkReader chunks = (ChunkReader) reader;
    String path = new File(chunks.channel().filePath()).getAbsolutePath();
    String name = cached(path);
    if (name == null || chunks.chunkSize() <= 0) {
      return ChunkFile.NONE;
    }
    // The same file may be read as it is and decompressed.
    String kind = reader.getClass().getSimpleName();
    kind = kind.startsWith("Simple") ? "plain" : "decompressed";
    return new ChunkFile(
        new Source(chunks, path, name, kind), chunks.fileLength(), chunks.chunkSize());
  }

  /** The path below the data directory, if chunks of the file may be cached; else null. */
  String cached(String path) {
    Matcher match = PATH.matcher(path);
    if (!match.matches()
        || SYSTEM.contains(match.group(2))
        || !tables.allows(match.group(2), match.group(3))) {
      return null;
    }
    return match.group(1);
  }

  @Override
  public void ready() {
    StorageService.instance.addPostShutdownHook(onDrained);
  }

  @Override
  public boolean gone(String path) {
    return Files.notExists(Paths.get(path));
  }

  private static final class Source implements ChunkFile.Source {
    private final ChunkReader reader;
    private final String path;
    private final String name;
    private final String kind;

    Source(ChunkReader reader, String path, String name, String kind) {
      this.reader = reader;
      this.path = path;
      this.name = name;
      this.kind = kind;
    }

    @Override
    public String path() {
      return path;
    }

    @Override
    public ChunkIdentity identity() throws IOException {
      String text = describe(Paths.get(path), name, kind, reader.channel().size());
      return text == null ? null : ChunkIdentity.of(text);
    }
  }

  /**
   * All that tells a finished SSTable from any other; null for one that is not finished.
   *
   * @param open bytes of the file that is open: another one than that of the path is not described
   */
  static String describe(Path data, String name, String kind, long open) throws IOException {
    String file = data.getFileName().toString();
    String base = file.substring(0, file.length() - DATA.length());
    Path digest = data.resolveSibling(base + "-Digest.crc32");
    if (!SSTables.finished(data, base)) {
      return null;
    }
    String sum;
    try {
      sum = new String(Files.readAllBytes(digest), StandardCharsets.US_ASCII).trim();
    } catch (NoSuchFileException e) {
      return null;
    }
    Map<String, Object> facts = Files.readAttributes(data, "unix:ino,size,lastModifiedTime");
    if (sum.isEmpty() || !facts.get("size").equals(open)) {
      return null;
    }
    java.nio.file.attribute.FileTime time =
        (java.nio.file.attribute.FileTime) facts.get("lastModifiedTime");
    // The name holds the ids of the table and of the SSTable.
    return "chunks 1\n"
        + name
        + '\n'
        + kind
        + '\n'
        + facts.get("size")
        + ' '
        + facts.get("ino")
        + ' '
        + time.to(java.util.concurrent.TimeUnit.NANOSECONDS)
        + ' '
        + sum;
  }
}
