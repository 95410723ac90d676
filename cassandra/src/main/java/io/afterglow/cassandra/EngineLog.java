package io.afterglow.cassandra;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Brings what the engine logs into Cassandra's log. */
final class EngineLog {
  private static final Logger logger = LoggerFactory.getLogger("io.afterglow.engine");
  private static final long MILLIS = 1000;
  private static boolean started;

  private EngineLog() {}

  static synchronized void start() {
    if (started) {
      return;
    }
    started = true;
    Thread thread = new Thread(EngineLog::run, "afterglow-log");
    thread.setDaemon(true);
    thread.start();
  }

  private static void run() {
    try {
      while (true) {
        for (String line = FlashStore.log(); line != null; line = FlashStore.log()) {
          say(line);
        }
        Thread.sleep(MILLIS);
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private static void say(String line) {
    if (line.startsWith("ERROR ")) {
      logger.error(line.substring(6));
    } else if (line.startsWith("WARN ")) {
      logger.warn(line.substring(5));
    } else {
      logger.info(line.substring(line.indexOf(' ') + 1));
    }
  }
}
