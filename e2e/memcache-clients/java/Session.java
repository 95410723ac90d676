import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.MemcachedClient;

/** Sessions with spymemcached, text and binary, the way an application uses it. */
public class Session {
    static void check(boolean ok, String what) {
        if (!ok) {
            System.out.println("wrong: " + what);
            System.exit(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        Logger.getLogger("net.spy.memcached").setLevel(Level.WARNING);
        session(arguments[0], new DefaultConnectionFactory());
        session(arguments[0], new BinaryConnectionFactory());
        System.out.println("all is well");
        System.exit(0);
    }

    static void session(String address, ConnectionFactory factory) throws Exception {
        MemcachedClient client = new MemcachedClient(factory, AddrUtil.getAddresses(address));
        check(client.flush().get(), "flush");
        check(client.get("missing") == null, "get of nothing");
        check(client.set("a", 100, "one").get(), "set");
        check("one".equals(client.get("a")), "get");
        check(!client.add("a", 0, "x").get(), "add");
        check(client.add("b", 0, "5").get(), "add of a new key");
        check(client.replace("b", 0, "10").get(), "replace");
        check(!client.replace("c", 0, "x").get(), "replace of nothing");
        check(client.incr("b", 7) == 17, "incr");
        check(client.decr("b", 100) == 0, "decr");
        check(client.incr("n", 1, 40) == 40 && client.incr("n", 2) == 42, "incr with a first value");
        check(client.touch("a", 50).get(), "touch");
        if (factory instanceof BinaryConnectionFactory) {
            // spymemcached has it in the binary protocol only.
            check("one".equals(client.getAndTouch("a", 60).getValue()), "get and touch");
        }
        CASValue<Object> token = client.gets("a");
        check(client.cas("a", token.getCas(), "two") == CASResponse.OK, "cas");
        check(client.cas("a", token.getCas(), "three") == CASResponse.EXISTS, "cas with an old token");
        check(client.cas("c", 1, "three") == CASResponse.NOT_FOUND, "cas of nothing");
        check(client.append("a", "!").get() && "two!".equals(client.get("a")), "append");
        check(client.prepend("a", "!").get() && "!two!".equals(client.get("a")), "prepend");

        List<Future<Boolean>> sets = new java.util.ArrayList<>();
        String[] keys = new String[500];
        for (int i = 0; i < keys.length; i++) {
            keys[i] = "key" + i;
            sets.add(client.set(keys[i], 0, "value" + i));
        }
        for (Future<Boolean> set : sets) {
            check(set.get(), "many sets at once");
        }
        Map<String, Object> found = client.getBulk(Arrays.asList(keys));
        check(found.size() == keys.length && "value77".equals(found.get("key77")), "many gets at once");
        byte[] large = new byte[900_000];
        new java.util.Random(7).nextBytes(large);
        check(client.set("large", 0, large).get(), "set of 900 KB");
        check(Arrays.equals(large, (byte[]) client.get("large")), "get of 900 KB");
        check(client.delete("a").get() && !client.delete("a").get(), "delete");
        check(client.getStats().values().iterator().next().get("version") != null, "stats");
        check(client.getVersions().size() == 1, "version");
        client.shutdown();
    }
}
