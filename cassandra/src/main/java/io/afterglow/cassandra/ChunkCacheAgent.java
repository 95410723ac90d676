package io.afterglow.cassandra;

import java.io.IOException;
import java.io.InputStream;
import java.lang.instrument.Instrumentation;
import java.lang.management.ManagementFactory;
import java.util.Set;
import java.util.TreeSet;
import javax.management.ObjectName;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * {@code -javaagent:afterglow-cassandra.jar}: the chunk cache, where {@code
 * afterglow.chunkcache.flash} is set. Whatever is wrong with it, the node starts: without it, and
 * with a line in its log that says why.
 */
public final class ChunkCacheAgent {
  private ChunkCacheAgent() {}

  /** Before anything of Cassandra runs; so nothing is logged yet. */
  public static void premain(String arguments, Instrumentation instrumentation) {
    try {
      if (wanted()) {
        // Opening waits until Cassandra has set up its log, and is nothing a start waits for.
        Runnable open = () -> begin(instrumentation);
        instrumentation.addTransformer(new ChunkTransformer(open));
      }
    } catch (Throwable e) {
      System.err.println("Afterglow chunk cache: the node runs without it: " + e);
    }
  }

  /** Also when the options cannot be read: that is said later. */
  private static boolean wanted() {
    try {
      return OptionValues.read().getProperty(ChunkOptions.FLASH) != null;
    } catch (IOException | ConfigException | IllegalArgumentException e) {
      return true;
    }
  }

  private static void begin(Instrumentation instrumentation) {
    Thread thread = new Thread(() -> Opening.run(instrumentation), "afterglow-chunk-open");
    thread.setDaemon(true);
    thread.start();
  }

  /** A class of its own, so that logging is not touched before. */
  private static final class Opening {
    private static final Logger logger = LoggerFactory.getLogger(ChunkCacheAgent.class);

    static void run(Instrumentation instrumentation) {
      try {
        open(new ChunkOptions(OptionValues.read()), instrumentation);
      } catch (Throwable e) {
        Off.because(e, logger, "chunk cache", "ChunkCache");
      }
    }

    private static void open(ChunkOptions options, Instrumentation instrumentation)
        throws Exception {
      Set<String> hooked = check();
      ChunkTransformer.checkLoaded(instrumentation.getAllLoadedClasses());
      Native.load(options.nativeDir);
      EngineLog.start();
      options.makeDir();
      FlashStore store = new FlashStore(options.engine());
      CassandraFiles files = new CassandraFiles(options.tables, () -> close(store));
      ChunkCache cache = new ChunkCache(store, files, options);
      cache.start();
      ManagementFactory.getPlatformMBeanServer()
          .registerMBean(
              new ChunkCacheStatus(cache, store), new ObjectName("io.afterglow:type=ChunkCache"));
      logger.info(
          "Afterglow chunk cache: {} MiB of flash at {}, {} MiB of memory, {} MiB of queue{}{}; hooked: {}",
          options.flash() >> 20,
          options.devices.get(0).path + (options.devices.size() > 1 ? " and others" : ""),
          options.memory >> 20,
          options.queue >> 20,
          options.compress ? ", LZ4" : "",
          options.verify ? ", verifying: every hit is read from its SSTable too" : "",
          String.join(", ", hooked));
      ChunkHooks.cache = cache;
    }

    /**
     * That this Cassandra is one we know: else nothing is served. The simple names of what is
     * hooked.
     */
    private static Set<String> check() throws IOException, ConfigException {
      Set<String> names = new TreeSet<>();
      for (String name : ChunkTransformer.wanted()) {
        try (InputStream bytes =
            ChunkCacheAgent.class.getClassLoader().getResourceAsStream(name + ".class")) {
          if (bytes == null) {
            throw new ConfigException("this Cassandra is not known: it has no " + name);
          }
          ChunkTransformer.change(name, bytes(bytes));
          names.add(name.substring(name.lastIndexOf('/') + 1));
        } catch (IllegalStateException e) {
          throw new ConfigException("this Cassandra is not known: " + e.getMessage());
        }
      }
      return names;
    }

    private static byte[] bytes(InputStream from) throws IOException {
      java.io.ByteArrayOutputStream all = new java.io.ByteArrayOutputStream();
      byte[] part = new byte[8192];
      for (int n = from.read(part); n >= 0; n = from.read(part)) {
        all.write(part, 0, n);
      }
      return all.toByteArray();
    }

    private static void close(FlashStore store) {
      try {
        ChunkCache cache = ChunkHooks.cache;
        if (cache != null) {
          cache.close();
        }
        if (store.close()) {
          logger.info("Afterglow chunk cache: stopped cleanly");
        } else {
          logger.warn("Afterglow chunk cache: no clean stop, the next start is as after a crash");
        }
      } catch (Throwable e) {
        logger.warn("Afterglow chunk cache: no clean stop", e);
      }
    }
  }
}
