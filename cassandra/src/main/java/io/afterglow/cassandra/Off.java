package io.afterglow.cassandra;

import java.lang.management.ManagementFactory;
import javax.management.JMException;
import javax.management.ObjectName;
import org.slf4j.Logger;

/** A cache that could not be opened: the node runs without it, and its log and JMX say why. */
final class Off implements OffMXBean {
  private final String why;

  private Off(String why) {
    this.why = why;
  }

  @Override
  public String getState() {
    return "off: " + why;
  }

  /**
   * Says it.
   *
   * @param cache as it is called in the log
   * @param type of its MBean
   */
  static void because(Throwable e, Logger logger, String cache, String type) {
    String why = e.getMessage() == null ? e.toString() : e.getMessage();
    try {
      ManagementFactory.getPlatformMBeanServer()
          .registerMBean(new Off(why), new ObjectName("io.afterglow:type=" + type));
    } catch (JMException | RuntimeException unseen) {
      logger.warn("Afterglow {}: its state is not to be seen by JMX", cache, unseen);
    }
    // Where an option is wrong, nobody needs to know where in our source that was seen.
    Throwable trace = e instanceof ConfigException ? null : e;
    logger.error("Afterglow {}: the node runs without it: {}", cache, why, trace);
  }
}
