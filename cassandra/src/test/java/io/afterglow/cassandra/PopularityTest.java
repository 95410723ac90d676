package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class PopularityTest {
  @Test
  void countsAreHalvedWhenEnoughWasCountedSince() {
    Popularity popularity = new Popularity(1);
    popularity.count(42);
    popularity.count(42);
    popularity.ageIfDue();
    assertEquals(2, popularity.estimate(42));
    assertEquals(0, popularity.estimate(43));
    for (long n = 0; n < 10 * 4096; n++) {
      popularity.count(1L << 40 | n % 3);
    }
    assertEquals(15, popularity.estimate(1L << 40), "no more is counted");
    popularity.ageIfDue();
    assertEquals(1, popularity.estimate(42));
    assertTrue(popularity.estimate(1L << 40) <= 7);
  }
}
