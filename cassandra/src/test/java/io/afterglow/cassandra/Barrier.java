package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Whoever comes here waits until it opens. */
final class Barrier implements Runnable {
  final CountDownLatch reached = new CountDownLatch(1);
  final CountDownLatch opens = new CountDownLatch(1);

  @Override
  public void run() {
    reached.countDown();
    await(opens);
  }

  static void await(CountDownLatch latch) {
    assertDoesNotThrow(() -> assertTrue(latch.await(60, TimeUnit.SECONDS)));
  }

  /** Until it is true. */
  static void await(BooleanSupplier comes) {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (!comes.getAsBoolean()) {
      assertTrue(System.nanoTime() < end, "it does not come");
      Thread.yield();
    }
  }
}
