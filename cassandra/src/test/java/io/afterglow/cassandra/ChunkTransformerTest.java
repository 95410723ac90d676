package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.instrument.Instrumentation;
import java.lang.reflect.Proxy;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class ChunkTransformerTest {
  private static final String SIMPLE = "org/apache/cassandra/io/util/SimpleChunkReader";

  /** Has its own copies of the classes that are changed, and nothing else. */
  private static final class Changed extends ClassLoader {
    private final ChunkTransformer transformer = new ChunkTransformer(() -> {});

    Changed() {
      super(ChunkTransformerTest.class.getClassLoader());
    }

    Class<?> define(String name) throws IOException {
      byte[] bytes = transformer.transform(this, name, null, null, bytes(name));
      assertNotNull(bytes, name);
      return defineClass(name.replace('/', '.'), bytes, 0, bytes.length);
    }
  }

  private static byte[] bytes(String name) throws IOException {
    try (InputStream in =
        ChunkTransformerTest.class.getClassLoader().getResourceAsStream(name + ".class")) {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      for (int b = in.read(); b >= 0; b = in.read()) {
        out.write(b);
      }
      return out.toByteArray();
    }
  }

  @Test
  void everyClassThatIsHookedPassesTheVerifier() throws Exception {
    Changed loader = new Changed();
    int readers = 0;
    for (String name : ChunkTransformer.wanted()) {
      Class<?> changed = loader.define(name);
      // Initialised, and so linked and verified.
      Class.forName(changed.getName(), true, loader);
      readers += HookedReader.class.isAssignableFrom(changed) ? 1 : 0;
    }
    assertEquals(3, readers);
  }

  @Test
  void othersAreLeftAloneAndUnknownShapesRefused() throws Exception {
    AtomicInteger begun = new AtomicInteger();
    ChunkTransformer transformer = new ChunkTransformer(begun::incrementAndGet);
    String other = "org/apache/cassandra/io/util/MmapRebufferer";
    assertNull(transformer.transform(null, other, null, null, bytes(other)));
    assertEquals(0, begun.get());
    byte[] wrong = bytes("org/apache/cassandra/io/util/ChannelProxy");
    assertThrows(IllegalStateException.class, () -> ChunkTransformer.change(SIMPLE, wrong));
    assertNull(transformer.transform(null, SIMPLE, null, null, wrong));
    transformer.transform(null, SIMPLE, null, null, bytes(SIMPLE));
    assertEquals(1, begun.get(), "also when the first was not known, so that it is said");
  }

  @Test
  void aClassThatWasLoadedWithoutTheCallsIsNoticed() throws Exception {
    Changed loader = new Changed();
    for (String name : ChunkTransformer.wanted()) {
      Class<?> hooked = loader.define(name);
      ChunkTransformer.checkLoaded(String.class, hooked);
      Class<?> plain = Class.forName(hooked.getName(), false, getClass().getClassLoader());
      ConfigException said =
          assertThrows(ConfigException.class, () -> ChunkTransformer.checkLoaded(plain));
      assertTrue(said.getMessage().contains(plain.getName()), said.getMessage());
    }
  }

  @Test
  void withoutTheOptionNothingIsTouched() {
    AtomicInteger calls = new AtomicInteger();
    Instrumentation counting =
        (Instrumentation)
            Proxy.newProxyInstance(
                getClass().getClassLoader(),
                new Class<?>[] {Instrumentation.class},
                (proxy, method, arguments) -> {
                  calls.incrementAndGet();
                  return null;
                });
    ChunkCacheAgent.premain(null, counting);
    assertEquals(0, calls.get());
    System.setProperty(ChunkOptions.FLASH, "anything");
    try {
      ChunkCacheAgent.premain(null, counting);
      assertEquals(1, calls.get());
    } finally {
      System.clearProperty(ChunkOptions.FLASH);
    }
  }
}
