import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * A node's JMX, line by line, for tests: starting a JVM for each nodetool takes longer than what it
 * does.
 */
class Jmx {
  private static final String STORAGE = "org.apache.cassandra.db:type=StorageService";

  public static void main(String[] arguments) throws Exception {
    String url = "service:jmx:rmi:///jndi/rmi://127.0.0.1:" + arguments[0] + "/jmxrmi";
    MBeanServerConnection server =
        JMXConnectorFactory.connect(new JMXServiceURL(url)).getMBeanServerConnection();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      try {
        answer(server, words);
        System.out.println("ok");
      } catch (Exception e) {
        System.out.println("failed " + e.toString().replace('\n', ' '));
      }
    }
  }

  private static void answer(MBeanServerConnection server, String[] words) throws Exception {
    String[] tables = words.length > 2 ? Arrays.copyOfRange(words, 2, words.length) : new String[0];
    String strings = String[].class.getName();
    String text = String.class.getName();
    switch (words[0]) {
      case "attributes":
        ObjectName name = new ObjectName(words[1]);
        for (MBeanAttributeInfo info : server.getMBeanInfo(name).getAttributes()) {
          System.out.println(info.getName() + " " + server.getAttribute(name, info.getName()));
        }
        break;
      case "flush":
        server.invoke(
            new ObjectName(STORAGE),
            "forceKeyspaceFlush",
            new Object[] {words[1], tables},
            new String[] {text, strings});
        break;
      case "compact":
        server.invoke(
            new ObjectName(STORAGE),
            "forceKeyspaceCompaction",
            new Object[] {false, words[1], tables},
            new String[] {"boolean", text, strings});
        break;
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }
}
