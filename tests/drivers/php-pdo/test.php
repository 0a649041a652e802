<?php
// PHP's PDO: what it does in a session. Prints `ok NAME`, `FAIL NAME why` or `skip NAME why`; libpq's variables say where.
//
// It prepares each statement on the server (pdo_stmt_...), and takes it away by a DEALLOCATE as a simple query;
// lastInsertId() is SELECT LASTVAL(), or CURRVAL of a name, in a transaction of its own.

function connect(array $options = []): PDO {
    $how = sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE'));
    return new PDO($how, getenv('PGUSER'), getenv('PGPASSWORD'), [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION] + $options);
}

function equal($got, $expected, string $what = 'value'): void {
    if ($got !== $expected) {
        throw new Exception("$what: got " . json_encode($got) . ', expected ' . json_encode($expected));
    }
}

final class Skipped extends Exception {}

$tests = [
    // Twelve sessions on five server connections: neither the statements nor their DEALLOCATE may pin.
    'statements_come_and_go' => function () {
        $sessions = array_map(fn () => connect(), range(1, 12));
        for ($turn = 0; $turn < 5; $turn++) {
            foreach ($sessions as $number => $session) {
                $statement = $session->prepare('select ?::int + ?::int');
                foreach ([1, 2, 3] as $n) {
                    $statement->execute([$n, $number]);
                    equal($statement->fetchColumn(), $n + $number);
                }
                $statement = null; // DEALLOCATE
                equal($session->query("select 'still here'")->fetchColumn(), 'still here');
            }
        }
    },
    'emulated_prepares' => function () {
        $session = connect([PDO::ATTR_EMULATE_PREPARES => true]);
        $statement = $session->prepare('select :a, :b');
        $statement->execute(['a' => "it's", 'b' => 'x\\y']);
        equal($statement->fetch(PDO::FETCH_NUM), ["it's", 'x\\y']);
    },
    'a_failed_prepare_leaves_nothing' => function () {
        $session = connect();
        for ($turn = 0; $turn < 3; $turn++) {
            try {
                $session->prepare('selekt ?')->execute([1]);
                throw new LogicException('no error');
            } catch (PDOException $error) {
                equal($error->getCode(), '42601');
            }
            equal($session->query('select 1')->fetchColumn(), 1);
        }
    },
    'last_insert_id_in_a_transaction' => function () {
        $session = connect();
        $session->exec('create table if not exists pdo_item (id serial, name text)');
        for ($turn = 0; $turn < 3; $turn++) {
            $session->beginTransaction();
            $insert = $session->prepare('insert into pdo_item (name) values (?) returning id');
            $insert->execute(["item $turn"]);
            $id = (string) $insert->fetchColumn();
            equal($session->lastInsertId(), $id);
            equal($session->lastInsertId('pdo_item_id_seq'), $id);
            $session->commit();
        }
        $session->exec('drop table pdo_item');
    },
    // Its own value, or the server's error; never another session's.
    'last_insert_id_is_never_anothers' => function () {
        [$first, $second, $third] = [connect(), connect(), connect()];
        $first->exec('create table if not exists pdo_shared (id serial, name text)');
        for ($turn = 0; $turn < 10; $turn++) {
            $given = [];
            foreach ([$first, $second] as $number => $session) {
                $insert = $session->prepare('insert into pdo_shared (name) values (?) returning id');
                $insert->execute(["item $turn"]);
                $given[$number] = (string) $insert->fetchColumn();
            }
            foreach ([$first, $second, $third] as $number => $session) {
                try {
                    equal($session->lastInsertId(), $given[$number] ?? 'none', "session $number");
                } catch (PDOException $error) {
                    equal($error->getCode(), '55000');
                }
            }
        }
        $first->exec('drop table pdo_shared');
    },
    'last_insert_id_in_a_transaction_of_its_own' => function () {
        $sessions = [connect(), connect(), connect()];
        $sessions[0]->exec('create table if not exists pdo_own (id serial, name text)');
        try {
            for ($turn = 0; $turn < 5; $turn++) {
                $given = [];
                foreach ($sessions as $number => $session) {
                    $insert = $session->prepare('insert into pdo_own (name) values (?) returning id');
                    $insert->execute(["item $turn"]);
                    $given[$number] = (string) $insert->fetchColumn();
                }
                foreach ($sessions as $number => $session) {
                    equal($session->lastInsertId(), $given[$number], "session $number, turn $turn");
                }
            }
        } catch (PDOException $error) {
            if ($error->getCode() !== '55000') {
                throw $error;
            }
            throw new Skipped('not yet: the first lastval() in a later transaction than its INSERT may find another server connection');
        } finally {
            $sessions[0]->exec('drop table pdo_own');
        }
    },
    'transactions_and_savepoints' => function () {
        $session = connect();
        $session->beginTransaction();
        $session->exec('create table pdo_gone (i int)');
        $session->exec('savepoint a');
        try {
            $session->exec('select 1/0');
        } catch (PDOException $error) {
            equal($error->getCode(), '22012');
        }
        $session->exec('rollback to a');
        equal($session->query('select count(*) from pdo_gone')->fetchColumn(), 0);
        $session->rollBack();
        equal($session->query("select to_regclass('pdo_gone')")->fetchColumn(), null);
    },
    'scrolling_cursors' => function () {
        $session = connect();
        $session->beginTransaction();
        $cursor = $session->prepare('select generate_series(1, 5)', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
        $cursor->execute();
        equal($cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_LAST), [5]);
        equal($cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_FIRST), [1]);
        $session->commit();
    },
];

$failed = 0;
foreach ($tests as $name => $test) {
    try {
        $test();
        echo "ok $name\n";
    } catch (Skipped $reason) {
        echo "skip $name {$reason->getMessage()}\n";
    } catch (Throwable $problem) {
        $failed++;
        echo "FAIL $name ", get_class($problem), ': ', str_replace("\n", ' ', $problem->getMessage()), "\n";
    }
}
exit(min($failed, 1));
