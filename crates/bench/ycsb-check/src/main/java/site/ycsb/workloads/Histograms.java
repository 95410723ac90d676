package site.ycsb.workloads;

import java.util.Properties;
import java.util.function.LongSupplier;
import site.ycsb.Utils;
import site.ycsb.generator.CounterGenerator;
import site.ycsb.generator.HotspotIntegerGenerator;
import site.ycsb.generator.NumberGenerator;
import site.ycsb.generator.ScrambledZipfianGenerator;
import site.ycsb.generator.SequentialGenerator;
import site.ycsb.generator.SkewedLatestGenerator;
import site.ycsb.generator.UniformLongGenerator;
import site.ycsb.generator.ZipfianGenerator;

/**
 * Prints a histogram of each YCSB generator, and of the key choice of CoreWorkload, in the format
 * of golden/ycsb.txt. The package is YCSB's own because CoreWorkload.nextKeynum is visible only
 * there. Names, items and buckets are those of src/ycsb/check.rs.
 */
public final class Histograms {
  private static final int SAMPLES = 1_000_000;
  private static final long FEW = 400;
  private static final long MANY = 1_000_000;

  private enum Bucketing { EXACT, WIDTH_400, OCTAVES, OCTAVES_FROM_END }

  public static void main(String[] args) throws Exception {
    System.out.println("# Histograms of the generators of site.ycsb:core 0.17.0, " + SAMPLES + " draws each.");
    System.out.println("# Made by crates/bench/ycsb-check/run.sh --update; read by src/ycsb/check.rs.");
    for (long value : new long[] {0, 1, 2, 255, 256, 123456789, 9999999999L, Long.MAX_VALUE, -1}) {
      System.out.println("fnv " + value + " " + Utils.fnvhash64(value));
    }
    for (int n : new int[] {2, 400, 100_000}) {
      System.out.println("zeta " + n + " " + zeta(n));
    }
    print("uniform", FEW, Bucketing.EXACT, new UniformLongGenerator(0, FEW - 1));
    print("zipfian", FEW, Bucketing.EXACT, new ZipfianGenerator(0, FEW - 1));
    print("zipfian-many", MANY, Bucketing.OCTAVES, new ZipfianGenerator(0, MANY - 1));
    print("scrambled", FEW, Bucketing.EXACT, new ScrambledZipfianGenerator(0, FEW - 1));
    print("scrambled-many", MANY, Bucketing.WIDTH_400, new ScrambledZipfianGenerator(0, MANY - 1));
    print("latest", FEW, Bucketing.EXACT, new SkewedLatestGenerator(new CounterGenerator(FEW)));
    print("latest-many", MANY, Bucketing.OCTAVES_FROM_END, new SkewedLatestGenerator(new CounterGenerator(MANY)));
    print("hotspot", FEW, Bucketing.EXACT, new HotspotIntegerGenerator(0, FEW - 1, 0.1, 0.7));
    print("sequential", FEW, Bucketing.EXACT, new SequentialGenerator(0, FEW - 1));
    for (String distribution : new String[] {"uniform", "zipfian", "latest", "hotspot", "sequential"}) {
      CoreWorkload workload = core(distribution);
      print("core-" + distribution, FEW, Bucketing.EXACT, workload::nextKeynum);
    }
  }

  /**
   * The sum that ZipfianGenerator.zetastatic (not visible here) computes, taken through a
   * generator of a known constant.
   */
  private static double zeta(int n) throws Exception {
    var method = ZipfianGenerator.class.getDeclaredMethod("zetastatic", long.class, double.class);
    method.setAccessible(true);
    return (double) method.invoke(null, (long) n, ZipfianGenerator.ZIPFIAN_CONSTANT);
  }

  private static CoreWorkload core(String distribution) throws Exception {
    Properties properties = new Properties();
    properties.setProperty("recordcount", Long.toString(FEW));
    properties.setProperty("operationcount", "1000");
    properties.setProperty("requestdistribution", distribution);
    properties.setProperty("insertproportion", "0");
    site.ycsb.measurements.Measurements.setProperties(properties);
    CoreWorkload workload = new CoreWorkload();
    workload.init(properties);
    return workload;
  }

  private static void print(
          String name, long items, Bucketing bucketing, NumberGenerator generator) {
    print(name, items, bucketing, () -> generator.nextValue().longValue());
  }

  private static void print(String name, long items, Bucketing bucketing, LongSupplier next) {
    int buckets =
                bucketing == Bucketing.EXACT
                        ? (int) items
                        : bucketing == Bucketing.WIDTH_400
                                ? 400
                                : bucket(items - 1, items, Bucketing.OCTAVES) + 1;
    long[] counts = new long[buckets];
    for (int i = 0; i < SAMPLES; i++) {
      counts[bucket(next.getAsLong(), items, bucketing)]++;
    }
    StringBuilder line = new StringBuilder("case ").append(name);
    for (long count : counts) {
      line.append(' ').append(count);
    }
    System.out.println(line);
  }

  private static int bucket(long item, long items, Bucketing bucketing) {
    return switch (bucketing) {
      case EXACT -> (int) item;
      case WIDTH_400 -> (int) (item * 400 / items);
      case OCTAVES -> octave(item);
      case OCTAVES_FROM_END -> octave(items - 1 - item);
    };
  }

  /** Four buckets per doubling of rank + 1. */
  private static int octave(long rank) {
    int log = 63 - Long.numberOfLeadingZeros(rank + 1);
    return log * 4 + (log < 2 ? 0 : (int) (((rank + 1) >> (log - 2)) & 3));
  }

  private Histograms() {
  }
}
