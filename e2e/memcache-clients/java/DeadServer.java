import com.spotify.folsom.MemcacheClient;
import com.spotify.folsom.MemcacheClientBuilder;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.DefaultHashAlgorithm;
import net.spy.memcached.FailureMode;
import net.spy.memcached.MemcachedClient;

/** Stores keys again and again, whatever comes of it, and says after each round that it did. */
public class DeadServer {
    static final int KEYS = 100;

    interface Store {
        Future<?> set(String key, String value);
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        String servers = System.getenv("SERVERS");
        Store store = arguments[0].equals("folsom") ? folsom(servers) : spy(servers, arguments[0]);
        for (int round = 0; ; round++) {
            for (int i = 0; i < KEYS; i++) {
                try {
                    store.set("key" + i, "value").get(500, TimeUnit.MILLISECONDS);
                } catch (Exception failed) {
                    // What becomes of the key is looked at from outside.
                }
            }
            System.out.println("round " + round);
            Thread.sleep(50);
        }
    }

    static Store spy(String servers, String mode) throws Exception {
        ConnectionFactoryBuilder builder = new ConnectionFactoryBuilder()
            .setLocatorType(ConnectionFactoryBuilder.Locator.CONSISTENT)
            .setHashAlg(DefaultHashAlgorithm.KETAMA_HASH)
            .setOpTimeout(500)
            .setMaxReconnectDelay(5);
        if (mode.equals("spymemcached-cancel")) {
            builder.setFailureMode(FailureMode.Cancel);
        }
        MemcachedClient client =
            new MemcachedClient(builder.build(), AddrUtil.getAddresses(servers.replace(',', ' ')));
        return (key, value) -> client.set(key, 0, value);
    }

    static Store folsom(String servers) throws Exception {
        MemcacheClientBuilder<String> builder = MemcacheClientBuilder.newStringClient()
            .withRequestTimeoutMillis(500);
        for (String server : servers.split(",")) {
            String[] parts = server.split(":");
            builder = builder.withAddress(parts[0], Integer.parseInt(parts[1]));
        }
        MemcacheClient<String> client = builder.connectAscii();
        client.awaitFullyConnected(10, TimeUnit.SECONDS);
        return (key, value) -> client.set(key, value, 0).toCompletableFuture();
    }
}
