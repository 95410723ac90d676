package io.afterglow.cassandra;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import javax.management.InstanceNotFoundException;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * {@code java -jar afterglow-cassandra.jar}: puts the jar into a Cassandra, shows that it works,
 * takes it out.
 */
public final class Main {
  private static final String USAGE =
      "usage: java -jar afterglow-cassandra.jar install CASSANDRA_HOME PATH:SIZE          (row cache)\n"
          + "       java -jar afterglow-cassandra.jar install-chunks CASSANDRA_HOME PATH:SIZE   (chunk cache)\n"
          + "       java -jar afterglow-cassandra.jar verify [HOST:JMX_PORT]     (default 127.0.0.1:7199)\n"
          + "       java -jar afterglow-cassandra.jar remove CASSANDRA_HOME\n";

  private Main() {}

  /**
   * Ends with status 0 when what was asked for is so, otherwise with words that say what is not.
   */
  public static void main(String[] arguments) throws Exception {
    try {
      String command = arguments.length == 0 ? "" : arguments[0];
      if (command.equals("install") && arguments.length == 3) {
        new Installation(Paths.get(arguments[1])).install(self(), arguments[2]);
      } else if (command.equals("install-chunks") && arguments.length == 3) {
        new Installation(Paths.get(arguments[1])).installChunks(self(), arguments[2]);
      } else if (command.equals("remove") && arguments.length == 2) {
        new Installation(Paths.get(arguments[1])).remove();
      } else if (command.equals("verify") && arguments.length <= 2) {
        verify(arguments.length == 2 ? arguments[1] : "127.0.0.1:7199");
      } else {
        System.err.print(USAGE);
        System.exit(2);
      }
    } catch (ConfigException | IOException e) {
      System.err.println("error: " + e.getMessage());
      System.exit(1);
    }
  }

  private static Path self() throws Exception {
    Path jar = Paths.get(Main.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    if (!Files.isRegularFile(jar)) {
      throw new ConfigException(jar + " is not a jar");
    }
    return jar;
  }

  /** Prints the figures of each cache there is; one must be there, and all must work. */
  private static void verify(String address) throws Exception {
    try (JMXConnector connector = connect(address)) {
      MBeanServerConnection server = connector.getMBeanServerConnection();
      List<String> states = new ArrayList<>();
      boolean rows = verify(server, "RowCache", "the row cache", states);
      if (!verify(server, "ChunkCache", "the chunk cache", states) && !rows) {
        throw new ConfigException(
            "the Cassandra at "
                + address
                + " runs without a cache of ours: none was configured where it looks, or it was not"
                + " restarted");
      }
      if (!states.isEmpty()) {
        throw new ConfigException(String.join("\nerror: ", states));
      }
    }
  }

  private static JMXConnector connect(String address) throws IOException, ConfigException {
    JMXServiceURL url = new JMXServiceURL("service:jmx:rmi:///jndi/rmi://" + address + "/jmxrmi");
    try {
      return JMXConnectorFactory.connect(url);
    } catch (IOException | SecurityException e) {
      throw new ConfigException(
          "no JMX at "
              + address
              + ": is the node up, is that its JMX port, does it let one in without a password? ("
              + e.getMessage()
              + ")");
    }
  }

  /** Prints the figures of a cache; false if there is none. One that does not work is added. */
  private static boolean verify(
      MBeanServerConnection server, String type, String what, List<String> states)
      throws Exception {
    ObjectName name = new ObjectName("io.afterglow:type=" + type);
    String state = "";
    try {
      for (MBeanAttributeInfo info : server.getMBeanInfo(name).getAttributes()) {
        if (!info.getName().equals("Engine")) {
          Object value = server.getAttribute(name, info.getName());
          System.out.println(info.getName() + " " + value);
          state = info.getName().equals("State") ? value.toString() : state;
        }
      }
    } catch (InstanceNotFoundException e) {
      return false;
    }
    if (state.startsWith("on")) {
      System.out.println(what + " works");
    } else {
      states.add(what + " is " + state + (state.contains(":") ? "" : ": the log says why"));
    }
    return true;
  }
}
