package io.afterglow.cassandra;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/**
 * The finished SSTables of a table, found on disk. Every version of Cassandra has the same layout:
 * a table's folder ends with its id, and a finished SSTable has statistics.
 */
final class SSTables {
  private static final String DATA = "-Data.db";

  private SSTables() {}

  /** A line for each: name, length, time of the last change and digest. Sorted. */
  static List<String> list(String[] dataDirectories, UUID table) throws IOException {
    String suffix = "-" + table.toString().replace("-", "");
    List<String> lines = new ArrayList<>();
    for (String directory : dataDirectories) {
      for (Path keyspace : children(Paths.get(directory), "*")) {
        for (Path folder : children(keyspace, "*" + suffix)) {
          for (Path data : children(folder, "*" + DATA)) {
            String line = line(data);
            if (line != null) {
              lines.add(line);
            }
          }
        }
      }
    }
    Collections.sort(lines);
    return lines;
  }

  private static String line(Path data) throws IOException {
    String name = data.getFileName().toString();
    String base = name.substring(0, name.length() - DATA.length());
    Path digest = data.resolveSibling(base + "-Digest.crc32");
    if (!finished(data, base)) {
      return null;
    }
    BasicFileAttributes attributes = Files.readAttributes(data, BasicFileAttributes.class);
    String sum = "none";
    if (Files.exists(digest)) {
      sum = new String(Files.readAllBytes(digest), StandardCharsets.US_ASCII).trim();
    }
    // Spaces and line ends have a meaning where this is kept.
    String path = data.toString().replaceAll("\\s", "?");
    return "sstable "
        + path
        + " "
        + attributes.size()
        + " "
        + attributes.lastModifiedTime().to(TimeUnit.NANOSECONDS)
        + " "
        + sum;
  }

  /** The name of the data file in such a line. */
  static String name(String line) {
    String[] words = line.split(" ");
    String path = words.length > 1 ? words[1] : line;
    return path.substring(path.lastIndexOf('/') + 1);
  }

  /**
   * Whether an SSTable is written to its end: its statistics are written after all of its data. Not
   * its table of contents: SSTables that are streamed as whole files have none before a restart.
   *
   * @param base what the names of its files begin with
   */
  static boolean finished(Path data, String base) {
    return Files.exists(data.resolveSibling(base + "-Statistics.db"));
  }

  private static List<Path> children(Path folder, String glob) throws IOException {
    List<Path> paths = new ArrayList<>();
    if (Files.isDirectory(folder)) {
      try (DirectoryStream<Path> children = Files.newDirectoryStream(folder, glob)) {
        children.forEach(paths::add);
      }
    }
    return paths;
  }
}
