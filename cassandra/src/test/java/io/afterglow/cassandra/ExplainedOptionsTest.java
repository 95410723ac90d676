package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** What operators read of the options: the properties file that is installed, and the docs. */
class ExplainedOptionsTest {
  private static Set<String> known() {
    return OptionNames.known();
  }

  @Test
  void everyOptionIsInTheFileAndMayBeSetAsItStandsThere() throws Exception {
    List<String> lines = Installation.explained();
    assertTrue(lines.stream().allMatch(line -> line.isEmpty() || line.startsWith("#")), "all off");
    String text =
        lines.stream()
            .filter(line -> line.startsWith("#afterglow."))
            .map(line -> line.substring(1))
            .collect(Collectors.joining("\n"));
    Properties all = new Properties();
    all.load(new StringReader(text));
    assertEquals(known(), new TreeSet<>(all.stringPropertyNames()));

    // What is said to be the default is what is taken where nothing is set.
    Properties flash = new Properties();
    for (String name : new String[] {"afterglow.rowcache.flash", ChunkOptions.FLASH}) {
      flash.setProperty(name, all.getProperty(name));
    }
    ChunkOptions chunks = new ChunkOptions(all);
    ChunkOptions plain = new ChunkOptions(flash);
    assertEquals(plain.queue, chunks.queue);
    assertEquals(plain.admit, chunks.admit);
    assertEquals(plain.compress, chunks.compress);
    assertEquals(plain.verify, chunks.verify);
    assertSame(plain, chunks);
    assertSame(new Options(flash, 256 << 20), new Options(all, 0));
  }

  private static void assertSame(FlashOptions expected, FlashOptions seen) {
    assertEquals(expected.dir, seen.dir);
    assertEquals(expected.memory, seen.memory);
    assertEquals(expected.reads, seen.reads);
    assertEquals(expected.timeout, seen.timeout);
  }

  @Test
  void everyOptionIsInTheDocs() throws Exception {
    byte[] docs = Files.readAllBytes(Paths.get("..", "docs", "guide", "inside-cassandra.md"));
    String text = new String(docs, StandardCharsets.UTF_8);
    for (String name : known()) {
      assertTrue(
          text.contains("| `" + name + "` |"),
          name + " has no line in docs/guide/inside-cassandra.md");
    }
  }
}
