package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class CassandraNodeTest {
  /** What this has run writes the marker of a clean stop, which the next start believes. */
  @Test
  void onlyADrainThatSucceededIsTold() {
    CassandraNode node = new CassandraNode(null);
    AtomicInteger told = new AtomicInteger();
    node.onDrained(told::incrementAndGet);
    node.afterDrain(false);
    assertEquals(0, told.get());
    node.afterDrain(true);
    assertEquals(1, told.get());
  }
}
