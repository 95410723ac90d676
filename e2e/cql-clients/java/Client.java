import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DriverException;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.BatchStatementBuilder;
import com.datastax.oss.driver.api.core.cql.ColumnDefinition;
import com.datastax.oss.driver.api.core.cql.DefaultBatchType;
import com.datastax.oss.driver.api.core.cql.ResultSet;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import com.datastax.oss.driver.api.core.cql.Statement;
import com.datastax.oss.driver.api.core.metadata.EndPoint;
import com.datastax.oss.driver.api.core.ssl.SslEngineFactory;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;

/** A client with the Java driver that does what it is told: see ../README.md for the commands. */
public class Client {
    static final String INSERT = "INSERT INTO rows (k, c, v) VALUES (?, ?, ?)";
    // The driver's only word on UNPREPARED, at level TRACE of its request handler.
    static final String HANDLER = "com.datastax.oss.driver.internal.core.cql.CqlRequestHandler";
    static final String UNPREPARED = "is not prepared on";

    final CqlSession session;
    final String keyspace;
    final Log log;

    /** Standard error, where the driver's log goes, with its complaints counted on the way. */
    static class Log extends java.io.PrintStream {
        int unprepared;

        Log(java.io.PrintStream through) {
            super(through, true);
        }

        @Override
        public synchronized void println(String line) {
            if (line.contains(UNPREPARED)) {
                unprepared++;
            }
            super.println(line);
        }
    }

    /** TLS with files in PEM, to an address that the certificate has. */
    static class Tls implements SslEngineFactory {
        final SSLContext context;

        Tls(String ca, String cert, String key) throws GeneralSecurityException, IOException {
            context = SSLContext.getInstance("TLS");
            KeyStore trusted = store();
            trusted.setCertificateEntry("ca", certificate(ca));
            TrustManagerFactory trust =
                    TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            KeyStore own = store();
            if (cert != null) {
                Certificate[] chain = {certificate(cert)};
                own.setKeyEntry("own", privateKey(key), new char[0], chain);
            }
            KeyManagerFactory keys =
                    KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(own, new char[0]);
            context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        }

        /** As the environment has it; null without a CA there. */
        static Tls fromEnvironment() throws GeneralSecurityException, IOException {
            String ca = System.getenv("CQL_TLS_CA");
            return ca == null ? null : new Tls(ca, System.getenv("CQL_TLS_CERT"), System.getenv("CQL_TLS_KEY"));
        }

        static KeyStore store() throws GeneralSecurityException, IOException {
            KeyStore empty = KeyStore.getInstance(KeyStore.getDefaultType());
            empty.load(null, null);
            return empty;
        }

        static Certificate certificate(String file) throws GeneralSecurityException, IOException {
            try (InputStream pem = Files.newInputStream(Path.of(file))) {
                return CertificateFactory.getInstance("X.509").generateCertificate(pem);
            }
        }

        static PrivateKey privateKey(String file)
                throws GeneralSecurityException, IOException {
            String body = Files.readString(Path.of(file)).replaceAll("-----[A-Z ]+-----", "");
            byte[] der = Base64.getMimeDecoder().decode(body);
            return KeyFactory.getInstance("RSA").generatePrivate(new PKCS8EncodedKeySpec(der));
        }

        /** The driver's own factory asks the DNS for a name of the address, and verifies that. */
        @Override
        public SSLEngine newSslEngine(EndPoint remote) {
            InetSocketAddress address = (InetSocketAddress) remote.resolve();
            SSLEngine engine =
                    context.createSSLEngine(address.getAddress().getHostAddress(), address.getPort());
            engine.setUseClientMode(true);
            SSLParameters parameters = engine.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            engine.setSSLParameters(parameters);
            return engine;
        }

        @Override
        public void close() {}
    }

    Client(String host, int port, String keyspace, boolean idempotent, Log log)
            throws GeneralSecurityException, IOException {
        this.keyspace = keyspace;
        this.log = log;
        DriverConfigLoader options = DriverConfigLoader.programmaticBuilder()
                .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, Duration.ofSeconds(15))
                .withDuration(
                        DefaultDriverOption.CONNECTION_INIT_QUERY_TIMEOUT, Duration.ofSeconds(20))
                .withDuration(
                        DefaultDriverOption.CONTROL_CONNECTION_TIMEOUT, Duration.ofSeconds(20))
                .withDuration(
                        DefaultDriverOption.METADATA_SCHEMA_REQUEST_TIMEOUT, Duration.ofSeconds(20))
                .withDuration(DefaultDriverOption.METADATA_SCHEMA_WINDOW, Duration.ofMillis(100))
                .withString(DefaultDriverOption.RECONNECTION_POLICY_CLASS, "ConstantReconnectionPolicy")
                .withDuration(DefaultDriverOption.RECONNECTION_BASE_DELAY, Duration.ofMillis(100))
                .withString(DefaultDriverOption.REQUEST_CONSISTENCY, "LOCAL_QUORUM")
                .withBoolean(DefaultDriverOption.REQUEST_DEFAULT_IDEMPOTENCE, idempotent)
                .build();
        session = CqlSession.builder()
                .addContactPoint(new InetSocketAddress(host, port))
                .withLocalDatacenter("datacenter1")
                .withKeyspace(keyspace)
                .withConfigLoader(options)
                .withSslEngineFactory(Tls.fromEnvironment())
                .build();
    }

    /** Prepared once: the session keeps what it has prepared. */
    ResultSet run(String text, Object... values) {
        return session.execute(session.prepare(text).bind(values));
    }

    boolean batch(int k, int n) {
        BatchStatementBuilder batch = new BatchStatementBuilder(DefaultBatchType.LOGGED);
        for (int c = 0; c < n; c++) {
            batch.addStatement(session.prepare(INSERT).bind(k, c, "b" + c));
        }
        String text = String.format("INSERT INTO rows (k, c, v) VALUES (%d, %d, 'text')", k, n);
        session.execute(batch.addStatement(SimpleStatement.newInstance(text)).build());
        return true;
    }

    int[] page(int k, int size) {
        int rows = 0;
        int pages = 0;
        ByteBuffer state = null;
        do {
            Statement<?> select =
                    session.prepare("SELECT c FROM rows WHERE k = ?").bind(k).setPageSize(size).setPagingState(state);
            ResultSet page = session.execute(select);
            pages++;
            for (int left = page.getAvailableWithoutFetching(); left > 0; left--) {
                int c = page.one().getInt(0);
                if (c != rows++) {
                    throw new IllegalStateException("row " + c + " in place " + (rows - 1));
                }
            }
            state = page.getExecutionInfo().getPagingState();
        } while (state != null);
        return new int[] {rows, pages};
    }

    static List<String> names(ResultSet result) {
        List<String> names = new ArrayList<>();
        for (ColumnDefinition column : result.getColumnDefinitions()) {
            names.add(column.getName().asInternal());
        }
        return names;
    }

    static List<Object> values(Row row, int columns) {
        List<Object> values = new ArrayList<>();
        for (int i = 0; i < columns; i++) {
            values.add(row.getObject(i));
        }
        return values;
    }

    List<Object> read(int k, int c) {
        ResultSet result = run("SELECT * FROM rows WHERE k = ? AND c = ?", k, c);
        List<String> names = names(result);
        Row row = result.one();
        List<Object> answer = new ArrayList<>();
        answer.add(names);
        answer.add(row == null ? null : values(row, names.size()));
        return answer;
    }

    int copy(String table, int from, int to) {
        ResultSet result = run("SELECT * FROM " + table + " WHERE k = ?", from);
        List<String> names = names(result);
        List<Object> values = values(result.one(), names.size());
        values.set(names.indexOf("k"), to);
        String marks = String.join(", ", Collections.nCopies(names.size(), "?"));
        run("INSERT INTO " + table + " (" + String.join(", ", names) + ") VALUES (" + marks + ")", values.toArray());
        return names.size();
    }

    TreeSet<String> columns(String table) {
        TreeSet<String> names = new TreeSet<>();
        session.getMetadata()
                .getKeyspace(keyspace)
                .flatMap(known -> known.getTable(table))
                .ifPresent(
                        known ->
                                known.getColumns()
                                        .keySet()
                                        .forEach(name -> names.add(name.asInternal())));
        return names;
    }

    List<String> hosts() {
        List<String> known = new ArrayList<>();
        session.getMetadata().getNodes().values().forEach(node -> {
            InetSocketAddress address = (InetSocketAddress) node.getEndPoint().resolve();
            known.add(address.getAddress().getHostAddress() + ":" + address.getPort());
        });
        return known;
    }

    Object command(JsonNode line) {
        String text = line.path(1).asText();
        int first = line.path(1).asInt();
        int second = line.path(2).asInt();
        switch (line.get(0).asText()) {
            case "hosts":
                return hosts();
            case "version":
                return session.getContext().getProtocolVersion().getCode();
            case "unprepared":
                return log.unprepared;
            case "ddl":
                return session.execute(text).wasApplied();
            case "write":
                return run(INSERT, first, second, line.get(3).asText()).wasApplied();
            case "read":
                return read(first, second);
            case "batch":
                return batch(first, second);
            case "page":
                return page(first, second);
            case "cas":
                return run(INSERT + " IF NOT EXISTS", first, second, line.get(3).asText()).wasApplied();
            case "columns":
                return columns(text);
            case "copy":
                return copy(text, second, line.get(3).asInt());
            default:
                throw new IllegalArgumentException("no such command: " + line);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        System.setProperty("org.slf4j.simpleLogger.log." + HANDLER, "trace");
        Log log = new Log(System.err);
        System.setErr(log);
        ObjectMapper json = new ObjectMapper();
        Client client = new Client(
                arguments[0],
                Integer.parseInt(arguments[1]),
                arguments[2],
                List.of(arguments).contains("--idempotent"),
                log);
        System.out.println("{\"ok\":\"connected\"}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer;
            try {
                answer = Collections.singletonMap("ok", client.command(json.readTree(line)));
            } catch (RuntimeException error) {
                if (!(error instanceof DriverException)) {
                    error.printStackTrace();
                }
                answer = Collections.singletonMap("error", error.toString());
            }
            System.out.println(json.writeValueAsString(answer));
        }
        client.session.close();
    }
}
