import jakarta.persistence.Column;
import jakarta.persistence.Entity;
import jakarta.persistence.GeneratedValue;
import jakarta.persistence.GenerationType;
import jakarta.persistence.Id;
import jakarta.persistence.LockModeType;
import jakarta.persistence.SequenceGenerator;
import jakarta.persistence.Table;
import jakarta.persistence.Version;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;

/**
 * Hibernate on pgjdbc: identifiers from sequences, statements prepared on the server, batches. Prints {@code ok NAME} or
 * {@code FAIL NAME why}. Its pool holds ten connections, on five server connections: none of this may pin. Not more than ten, because
 * whoever generates identifiers holds a lock of Hibernate's while he waits for the server: if all server connections, the
 * five of idle_transaction_reserve included, were with threads that wait for that lock in a transaction, nobody could go on.
 */
public final class HibernateTest {
    static final int THREADS = 10;

    /** Its identifier is asked for by {@code select nextval(...)} ahead of the INSERT, each time. */
    @Entity
    @Table(name = "hibernate_one")
    public static class One {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE, generator = "ones")
        @SequenceGenerator(name = "ones", sequenceName = "hibernate_ones", allocationSize = 1)
        public Long id;

        @Column(unique = true)
        public String name;
        public int amount;

        @Version
        public int version;
    }

    /** Here by blocks of 50 (the default). */
    @Entity
    @Table(name = "hibernate_many")
    public static class Many {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE)
        public Long id;
        public String name;
    }

    /** Here the server's identity column gives it, by RETURNING. */
    @Entity
    @Table(name = "hibernate_identity")
    public static class Identity {
        @Id
        @GeneratedValue(strategy = GenerationType.IDENTITY)
        public Long id;
        public String name;
    }

    interface Work {
        void run(int number) throws Exception;
    }

    interface Test {
        void run() throws Exception;
    }

    static SessionFactory factory;

    static void check(boolean condition, String what) {
        if (!condition) {
            throw new IllegalStateException(what);
        }
    }

    static void open() {
        Configuration configuration = new Configuration();
        configuration.addAnnotatedClass(One.class).addAnnotatedClass(Many.class).addAnnotatedClass(Identity.class);
        configuration.setProperty("hibernate.connection.url", "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/"
            + System.getenv("PGDATABASE") + "?sslmode=disable&prepareThreshold=1&ApplicationName=hibernate");
        configuration.setProperty("hibernate.connection.username", System.getenv("PGUSER"));
        configuration.setProperty("hibernate.connection.password", System.getenv("PGPASSWORD"));
        configuration.setProperty("hibernate.connection.pool_size", String.valueOf(THREADS));
        configuration.setProperty("hibernate.jdbc.batch_size", "20");
        configuration.setProperty("hibernate.jdbc.time_zone", "UTC");
        configuration.setProperty("hibernate.hbm2ddl.auto", "create");
        factory = configuration.buildSessionFactory();
    }

    static void inThreads(Work work) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<Future<?>> running = new ArrayList<>();
        for (int n = 0; n < THREADS; n++) {
            int number = n;
            running.add(threads.submit(() -> {
                work.run(number);
                return null;
            }));
        }
        try {
            for (Future<?> one : running) {
                one.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }

    static long count(String entity) {
        return factory.fromSession(session -> session.createQuery("select count(*) from " + entity, Long.class).getSingleResult());
    }

    static void nextval() throws Exception {
        Set<Long> ids = java.util.Collections.synchronizedSet(new HashSet<>());
        inThreads(number -> {
            for (int n = 0; n < 20; n++) {
                One one = new One();
                one.name = number + " " + n;
                factory.inTransaction(session -> session.persist(one));
                check(ids.add(one.id), "an identifier was given twice");
            }
        });
        check(count("HibernateTest$One") == THREADS * 20, "rows are missing");
    }

    static void batches() throws Exception {
        inThreads(number -> factory.inTransaction(session -> {
            for (int n = 0; n < 120; n++) {
                Many many = new Many();
                many.name = number + " " + n;
                session.persist(many);
            }
        }));
        check(count("HibernateTest$Many") == THREADS * 120, "rows are missing");
    }

    static void identity() throws Exception {
        inThreads(number -> {
            for (int n = 0; n < 10; n++) {
                String name = number + " " + n;
                Identity made = factory.fromTransaction(session -> {
                    Identity row = new Identity();
                    row.name = name;
                    session.persist(row);
                    session.flush();
                    return row;
                });
                check(name.equals(factory.fromSession(session -> session.find(Identity.class, made.id).name)), "another's row");
            }
        });
    }

    static void locks() throws Exception {
        inThreads(number -> {
            for (int n = 0; n < 10; n++) {
                factory.inTransaction(session -> {
                    One one = session.createQuery("from HibernateTest$One where name = '0 0'", One.class).setLockMode(LockModeType.PESSIMISTIC_WRITE).getSingleResult();
                    one.amount++;
                });
            }
        });
        int amount = factory.fromSession(session -> session.createQuery("select amount from HibernateTest$One where name = '0 0'", Integer.class).getSingleResult());
        check(amount == THREADS * 10, "lost updates: " + amount);
    }

    static void conflicts() {
        for (int n = 0; n < 5; n++) {
            try {
                factory.inTransaction(session -> {
                    One twice = new One();
                    twice.name = "0 0";
                    session.persist(twice);
                });
                check(false, "a duplicate was taken");
            } catch (jakarta.persistence.PersistenceException expected) {
                check(count("HibernateTest$One") == THREADS * 20, "the session does not go on");
            }
        }
    }

    static void scrolling() {
        try (Session session = factory.openSession()) {
            session.beginTransaction();
            long seen = session.createQuery("from HibernateTest$Many", Many.class).setFetchSize(50).getResultStream().count();
            check(seen == THREADS * 120, "rows are missing: " + seen);
            session.getTransaction().commit();
        }
    }

    public static void main(String[] arguments) {
        java.util.logging.LogManager.getLogManager().reset();
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("schema", HibernateTest::open);
        tests.put("nextval", HibernateTest::nextval);
        tests.put("batches", HibernateTest::batches);
        tests.put("identity", HibernateTest::identity);
        tests.put("locks", HibernateTest::locks);
        tests.put("conflicts", HibernateTest::conflicts);
        tests.put("scrolling", HibernateTest::scrolling);
        tests.put("schema_away", () -> {
            factory.getSchemaManager().dropMappedObjects(false);
            factory.close();
        });
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
