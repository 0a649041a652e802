import java.io.ByteArrayOutputStream;
import java.io.StringReader;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Timer;
import java.util.TimerTask;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;

/** pgjdbc, with and without server-side prepared statements. Prints {@code ok NAME} or {@code FAIL NAME why}. */
public final class PgjdbcTest {
    interface Work {
        void on(Connection connection) throws Exception;
    }

    interface Test {
        void run() throws Exception;
    }

    static void with(Work work, String... options) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", System.getenv("PGUSER"));
        properties.setProperty("password", System.getenv("PGPASSWORD"));
        properties.setProperty("sslmode", "disable");
        String host = System.getenv("PGHOST");
        for (int n = 0; n < options.length; n += 2) {
            if (options[n].equals("host")) {
                host = options[n + 1];
            } else {
                properties.setProperty(options[n], options[n + 1]);
            }
        }
        String url = "jdbc:postgresql://" + host + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        try (Connection connection = DriverManager.getConnection(url, properties)) {
            work.on(connection);
        }
    }

    static void check(boolean condition, String what) {
        if (!condition) {
            throw new IllegalStateException(what);
        }
    }

    static int number(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            check(rows.next(), "no row");
            return rows.getInt(1);
        }
    }

    interface Action {
        void run() throws Exception;
    }

    static void fails(String state, Action action) throws Exception {
        try {
            action.run();
        } catch (SQLException problem) {
            check(state.equals(problem.getSQLState()), problem.getSQLState() + " " + problem.getMessage());
            return;
        }
        check(false, "no error " + state);
    }

    /** From its fifth use on (prepareThreshold) a statement has a name on the server. */
    static void prepared() throws Exception {
        for (String threshold : new String[] {"0", "1", "5"}) {
            with(first -> with(second -> {
                try (PreparedStatement one = first.prepareStatement("select ?::int + 1"); PreparedStatement two = second.prepareStatement("select ?::int * 2")) {
                    for (int n = 0; n < 20; n++) {
                        for (PreparedStatement statement : new PreparedStatement[] {one, two}) {
                            statement.setInt(1, n);
                            try (ResultSet rows = statement.executeQuery()) {
                                check(rows.next() && rows.getInt(1) == (statement == one ? n + 1 : n * 2), "a wrong value");
                            }
                        }
                    }
                }
            }, "prepareThreshold", threshold), "prepareThreshold", threshold);
        }
    }

    static void batch() throws Exception {
        for (String rewrite : new String[] {"false", "true"}) {
            with(connection -> {
                connection.setAutoCommit(false);
                try (Statement statement = connection.createStatement()) {
                    statement.execute("create temp table batch (i int primary key) on commit drop");
                }
                try (PreparedStatement insert = connection.prepareStatement("insert into batch values (?)")) {
                    for (int n = 0; n < 1000; n++) {
                        insert.setInt(1, n);
                        insert.addBatch();
                    }
                    check(insert.executeBatch().length == 1000, "rows of the batch");
                    check(number(connection, "select count(*) from batch") == 1000, "rows");
                    insert.setInt(1, 2000);
                    insert.addBatch();
                    insert.setInt(1, 5);
                    insert.addBatch();
                    try {
                        insert.executeBatch();
                        check(false, "no error");
                    } catch (BatchUpdateException problem) {
                        check("23505".equals(problem.getSQLState()), problem.getMessage());
                    }
                }
                connection.rollback();
            }, "reWriteBatchedInserts", rewrite);
        }
    }

    static void copy() throws Exception {
        with(connection -> {
            try (Statement statement = connection.createStatement()) {
                statement.execute("create temp table copied (i int, t text)");
            }
            CopyManager manager = connection.unwrap(PGConnection.class).getCopyAPI();
            StringBuilder rows = new StringBuilder();
            for (int n = 0; n < 5000; n++) {
                rows.append(n).append("\trow ").append(n).append('\n');
            }
            check(manager.copyIn("copy copied from stdin", new StringReader(rows.toString())) == 5000, "in");
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            check(manager.copyOut("copy copied to stdout", out) == 5000 && out.size() == rows.length(), "out");
            fails("22P02", () -> manager.copyIn("copy copied from stdin", new StringReader("not a number\tx\n")));
            check(number(connection, "select 1") == 1, "after an error");
        });
    }

    /** Rows in portions: a portal that is suspended and resumed. */
    static void fetchSize() throws Exception {
        with(connection -> {
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                statement.setFetchSize(100);
                int sum = 0;
                try (ResultSet rows = statement.executeQuery("select generate_series(1, 1000)")) {
                    while (rows.next()) {
                        sum += rows.getInt(1);
                    }
                }
                check(sum == 500500, "sum " + sum);
            }
            connection.commit();
        });
    }

    static void cancel() throws Exception {
        with(connection -> {
            try (Statement statement = connection.createStatement()) {
                Timer timer = new Timer(true);
                timer.schedule(new TimerTask() {
                    @Override
                    public void run() {
                        try {
                            statement.cancel();
                        } catch (SQLException ignored) {
                            // The query then runs on, which fails the test.
                        }
                    }
                }, 500);
                long started = System.nanoTime();
                fails("57014", () -> statement.execute("select pg_sleep(20)"));
                check(System.nanoTime() - started < 10_000_000_000L, "late");
                statement.setQueryTimeout(1);
                fails("57014", () -> statement.execute("select pg_sleep(20)"));
            }
            check(number(connection, "select 1") == 1, "after a cancel");
        });
    }

    static void tlsRequire() throws Exception {
        with(connection -> check(number(connection, "select 1") == 1, "a value"), "sslmode", "require");
    }

    static void tlsVerifyFull() throws Exception {
        with(connection -> check(number(connection, "select 1") == 1, "a value"), "host", "localhost", "sslmode", "verify-full", "sslrootcert", System.getenv("TEST_CA"));
        fails("08006", () -> with(connection -> { }, "host", "localhost", "sslmode", "verify-full", "sslrootcert", System.getenv("TEST_OTHER_CA")));
    }

    static void transactions() throws Exception {
        with(connection -> {
            connection.setAutoCommit(false);
            connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
            try (Statement statement = connection.createStatement()) {
                statement.execute("create temp table tx (i int)");
                statement.execute("insert into tx values (1)");
                Savepoint savepoint = connection.setSavepoint();
                fails("22012", () -> statement.execute("select 1/0"));
                connection.rollback(savepoint);
                connection.commit();
            }
            check(number(connection, "select count(*) from tx") == 1, "rows");
            connection.rollback();
        });
    }

    static void error() throws Exception {
        with(connection -> {
            for (int n = 0; n < 8; n++) {
                try (PreparedStatement statement = connection.prepareStatement("select 1 / ?::int")) {
                    statement.setInt(1, 0);
                    fails("22012", statement::executeQuery);
                }
                check(number(connection, "select 1") == 1, "after an error");
            }
        });
    }

    static void notifications() throws Exception {
        with(listener -> with(sender -> {
            try (Statement statement = listener.createStatement()) {
                statement.execute("listen jdbc_test");
            }
            try (Statement statement = sender.createStatement()) {
                statement.execute("notify jdbc_test, 'hello'");
            }
            PGNotification[] heard = listener.unwrap(PGConnection.class).getNotifications(20_000);
            check(heard != null && heard.length == 1 && heard[0].getParameter().equals("hello"), "nothing heard");
        }));
    }

    public static void main(String[] arguments) {
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("prepared", PgjdbcTest::prepared);
        tests.put("batch", PgjdbcTest::batch);
        tests.put("copy", PgjdbcTest::copy);
        tests.put("fetch_size", PgjdbcTest::fetchSize);
        tests.put("cancel", PgjdbcTest::cancel);
        tests.put("tls_require", PgjdbcTest::tlsRequire);
        tests.put("tls_verify_full", PgjdbcTest::tlsVerifyFull);
        tests.put("transactions", PgjdbcTest::transactions);
        tests.put("error", PgjdbcTest::error);
        tests.put("notifications", PgjdbcTest::notifications);
        boolean failed = false;
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            try {
                test.getValue().run();
                System.out.println("ok " + test.getKey());
            } catch (Exception problem) {
                failed = true;
                System.out.println("FAIL " + test.getKey() + " " + String.valueOf(problem).replace('\n', ' '));
            }
        }
        System.exit(failed ? 1 : 0);
    }
}
